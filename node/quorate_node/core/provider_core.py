"""The provider's whole machine: executions, jury duties, debts of coordinators and the offer.

It has one writer and one state. It passes events to `execution` and `jury_duty`. It decides itself
whether a run slot is free and its pay is secured, because that needs the whole state.
"""

from typing import assert_never

from msgspec import Struct

from quorate_node.core import (
    bidding,
    capacity,
    debts,
    effects,
    events,
    execution,
    jury_duty,
    machines,
    rental,
)
from quorate_node.core.debts import NO_DEBT, Debt, LeasePay
from quorate_node.core.effects import Effect
from quorate_node.core.events import Event
from quorate_node.core.jury_duty import Case, JuryDuty
from quorate_node.core.phases import Accepted, Declined, Done, Execution, Lapsed, Live, Over
from quorate_node.core.terms import Terms
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.codec.tables import Table, Tables
from quorate_protocol.messages.offer import (
    BANDWIDTH_DEFAULT,
    BYTES_OF_SLOT_MAX,
    WITHDRAWN,
    SlotOffer,
    in_steps,
)
from quorate_protocol.messages.signed import FreeSlots
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.tabs import Owed, Tab
from quorate_protocol.step import Input, StepOutcome
from quorate_protocol.units import Address, Amount, Hash32, Sequence, Small, UnixSeconds
from quorate_protocol.values import replace

EXECUTIONS_KEPT_MAX = 200_000
# Beyond this the oldest is forgotten. If its Assignment comes again, the core decides again.
DECLINED_KEPT_MAX = 1_000
# Sequence numbers from one journaled offer to the next. Refreshes in between take them in turn and
# are not journaled. So an offer after a restart has a higher number than all refreshes before.
OFFER_NUMBERS = 1 << 16
NEVER = UnixSeconds(2**63)
FORGET_AT_ONCE_MAX = 64
FETCH_RATES_KEPT = 16
# Beyond this the oldest is forgotten. One takes about 140 bytes. A million are seven days of 1.6
# executions a second.
SETTLED_KEPT_MAX = 1_000_000
_FACTS = "facts"
_TERMS = "terms"


class Scalars(Struct, frozen=True):
    """The values of the state that are not tables. `recent_ms`: how long the last runs took."""

    offer_seq: int = 0
    is_draining: bool = False
    recent_ms: tuple[int, ...] = ()
    store_bytes: int = BYTES_OF_SLOT_MAX  # room in the content store, `in_steps`
    fetch_rates: tuple[int, ...] = ()  # bytes a second of the last fetches
    gpus_gone: tuple[str, ...] = ()  # GPUs of the terms that the driver does not list any more
    gpus_kept_back: tuple[str, ...] = ()  # that the owner uses, or that are too hot
    is_outside_schedule: bool = False

    @property
    def bandwidth(self) -> int:
        """What the offer says. The fastest of the last fetches counts: a client whose sources are
        slow must not make a provider look slow.
        """
        return in_steps(max(self.fetch_rates)) if self.fetch_rates else BANDWIDTH_DEFAULT


class ProviderCore(Tables):
    """The state and `step` of one provider (`quorate_protocol.step.Core`)."""

    def __init__(self, terms: Terms) -> None:
        self._first_terms = terms
        self.terms_table: Table[str, Terms] = Table(str, Terms)
        self.executions: Table[Hash32, Execution] = Table(Hash32, Execution)
        self.active: Table[Hash32, bool] = Table(Hash32, bool)  # executions that have not ended
        # Each of the next three maps an assignment hash to the time to forget it, oldest first.
        # In this order: declined; lapsed after a Commit; with a verdict or without a Commit.
        self.declined: Table[Hash32, UnixSeconds] = Table(Hash32, UnixSeconds)
        self.ended: Table[Hash32, UnixSeconds] = Table(Hash32, UnixSeconds)
        self.done: Table[Hash32, UnixSeconds] = Table(Hash32, UnixSeconds)
        # The same for hashes that left `executions`. A verdict may still come for them.
        self.settled: Table[Hash32, UnixSeconds] = Table(Hash32, UnixSeconds)
        self.commits: Table[Hash32, Hash32] = Table(Hash32, Hash32)  # Commit digest -> its lease
        # By the execution that the case is about; duties by the id of their case.
        self.cases: Table[Hash32, Case] = Table(Hash32, Case)
        self.jury: Table[Hash32, JuryDuty] = Table(Hash32, JuryDuty)
        self.debts: Table[Address, Debt] = Table(Address, Debt)  # by coordinator
        self.pays: Table[Hash32, LeasePay] = Table(Hash32, LeasePay)  # of leases with a Verdict
        self.scalars_table: Table[str, Scalars] = Table(str, Scalars)

    # ---------------------------------------------------------------------------------------- views

    @property
    def terms(self) -> Terms:
        """The terms that the owner set last, or the initial ones before the first `Configured`."""
        return self.terms_table.get(_TERMS) or self._first_terms

    def is_configured(self, terms: Terms) -> bool:
        return self.terms_table.get(_TERMS) == terms

    @property
    def scalars(self) -> Scalars:
        return self.scalars_table.get(_FACTS) or Scalars()

    def live(self) -> tuple[Execution, ...]:
        # A Table is not a dict, so ruff's advice does not fit.
        return tuple(self.executions[assignment_hash] for assignment_hash in self.active.keys())  # noqa: SIM118

    def is_idle(self) -> bool:
        """Returns whether no job and no jury duty runs, and new work is taken."""
        return not self.active and not self.jury and not self.takes_no_work

    def debt(self, coordinator: Address) -> Debt:
        return self.debts.get(coordinator) or NO_DEBT

    def owed(self, coordinator: Address) -> Owed:
        debt = self.debt(coordinator)
        under_way = (
            debts.may_pay(item, self.terms.limits)
            for item in self.live()
            if item.coordinator == coordinator
            and (item.is_rental or item.assignment_hash not in self.pays)
        )
        return Owed(debt.vouched, debt.held, Amount(sum(under_way)))

    def free_slots(self) -> tuple[FreeSlots, ...]:
        jury, is_draining = tuple(self.jury.values()), self.takes_no_work
        return capacity.free_slots(self.terms, self.live(), jury, is_draining, self.unusable())

    def gone(self) -> frozenset[str]:
        return frozenset(self.scalars.gpus_gone)

    def unusable(self) -> frozenset[str]:
        """GPUs that get no new lease. Jury duties are due all the same, as during a pause."""
        return self.gone() | frozenset(self.scalars.gpus_kept_back)

    @property
    def takes_no_work(self) -> bool:
        return self.scalars.is_draining or self.scalars.is_outside_schedule

    def offered_slots(self) -> tuple[SlotOffer, ...]:
        """Returns the slots that the offer names: all, except GPU slots with an unusable GPU."""
        return capacity.offered(self.terms, self.unusable())

    def is_withdrawn(self) -> bool:
        """Returns whether the provider offers nothing: it takes no work, or has no slot."""
        return self.takes_no_work or not self.offered_slots()

    def offered(self, can_work: bool) -> tuple[FreeSlots, ...]:
        """Returns the free run slots that a heartbeat announces.

        It announces none while the provider cannot work, for example without a container engine. On
        a full disk the next Assignment could not even be journaled.
        """
        return tuple(
            item if can_work else replace(item, free=Small(0)) for item in self.free_slots()
        )

    def next_due(self) -> UnixSeconds:
        """What is only to be forgotten may wait longer."""
        leases = [machines.next_due(item, self.terms) for item in self.live()]
        ends = [
            next(iter(table.values()), NEVER)
            for table in (self.declined, self.ended, self.done, self.settled)
        ]
        return min(
            (*leases, *ends, *(jury_duty.next_due(item) for item in self.jury.values())),
            default=NEVER,
        )

    def resume(self) -> tuple[Effect, ...]:
        """A restart performs these again, so that it does not depend on the outbox alone."""
        due: list[Effect] = []
        for item in self.live():
            due.extend(machines.duties(item))
        for duty in self.jury.values():
            due.extend(jury_duty.duties(duty))
        return tuple(due)

    # ----------------------------------------------------------------------------------------- step

    def step(self, item: Input[Event]) -> StepOutcome[Effect]:
        """The only way the state changes. Raises Refused, with the state unchanged."""
        self.begin()
        try:
            due = (*self._step(item), *self._begin_duties(), *self._change_places(item.at))
        except Refused:
            self.rollback()
            raise
        self.commit()
        return StepOutcome(due)

    def _step(self, item: Input[Event]) -> tuple[Effect, ...]:
        event, at = item.event, item.at
        match event:
            case events.AssignmentReceived():
                return self._on_assignment(event, at)
            case events.CommitReceiptReceived():
                assignment_hash = self.commits.get(event.receipt.message.commit_hash)
                if assignment_hash is None:
                    raise Refused(Code.UNKNOWN, "receipt: this provider signed no such Commit")
                return self._on_execution(assignment_hash, event, item)
            case events.CommitSetReceived() | events.VerdictReceived() | events.StopReceived():
                self._check_known(event)
                return self._on_execution(event.assignment_hash, event, item)
            case events.InputsFetched():
                due = self._on_execution(event.assignment_hash, event, item)
                return (*due, *self._on_fetch_rate(event.rate, at))
            case (
                events.AcceptDelivered()
                | events.TaskStarted()
                | events.TaskFailed()
                | events.TaskExited()
                | events.MeterAnswered()
                | events.OutputPublished()
            ):
                return self._on_execution(event.assignment_hash, event, item)
            case events.Tick():
                return self._on_tick(item)
            case events.GpusRead():
                return self._on_gpus_read(event, item)
            case events.ScheduleRead():
                self._set_scalars(replace(self.scalars, is_outside_schedule=not event.is_open))
                spot = [] if event.is_open else capacity.spot_rentals(self.terms, self.live())
                return self._give_way(spot, "its owner's schedule closes", item)
            case events.EvictRequested():
                return self._on_evict(event, item)
            case events.ChainCaseOpened():
                jury_duty.note_case(self.cases, event, self.terms)
                return ()
            case events.ChainVoted():
                jury_duty.note_vote(self.cases, event)
                return ()
            case events.ChainJuryDrawn():
                return jury_duty.seat(self.cases, self.jury, event, self.terms, at, item.random)
            case events.ChainCaseDecided() | events.ChainVotingEnded():
                return self._on_case(event, item)
            case events.Reexecuted() | events.VoteConfirmed():
                return self._on_duty(event.case_id, event, item)
            case (
                events.VoucherReceived()
                | events.TabSeen()
                | events.ReceiptChecked()
                | events.OrderFunded()
            ):
                self._on_money(event, at)
                return ()
            case _:
                return self._on_own_event(event, at)

    def _on_own_event(self, event: events.OwnEvent, at: UnixSeconds) -> tuple[Effect, ...]:
        match event:
            case events.OfferDue():
                return (self._next_offer(at),)
            case events.DrainRequested():
                self._set_scalars(replace(self.scalars, is_draining=event.is_on))
                return ()
            case events.StoreRead():
                return self._on_store_read(event, at)
            case events.Configured():
                self._configure(event.terms)
                return ()
            case _:
                assert_never(event)

    def _configure(self, terms: Terms) -> None:
        """Provider and deployment may not change, because leases are bound to both."""
        if (terms.provider, terms.domain) != (self.terms.provider, self.terms.domain):
            raise Refused(
                Code.WRONG_CHAIN,
                "this folder belongs to another provider or deployment; give the new one another "
                "folder",
            )
        terms.check_gpus()
        self.terms_table[_TERMS] = terms
        self._set_scalars(replace(self.scalars, gpus_gone=tuple(sorted(self.gone() & terms.gpus))))

    def _next_offer(self, at: UnixSeconds) -> effects.SendOffer:
        """Withdraws the offer while draining or with no GPU left: a provider that declines audit
        draws would not be drawn for longer (PROTOCOL §4).
        """
        seq = Sequence(self.scalars.offer_seq + OFFER_NUMBERS)
        self._set_scalars(replace(self.scalars, offer_seq=seq))
        expires = (
            WITHDRAWN if self.is_withdrawn() else UnixSeconds(at + self.terms.limits.offer_ttl)
        )
        return effects.SendOffer(seq, expires)

    def _on_gpus_read(self, event: events.GpusRead, item: Input[Event]) -> tuple[Effect, ...]:
        """Gives up what ran on GPUs that are gone, and changes the offer at once."""
        listed, before = frozenset(event.uuids), self.offered_slots()
        self._set_scalars(
            replace(
                self.scalars,
                gpus_gone=tuple(sorted(self.terms.gpus - listed)),
                gpus_kept_back=tuple(sorted(self.terms.gpus.intersection(event.kept_back))),
            )
        )
        due: list[Effect] = []
        for found in self.live():
            lost = tuple(uuid for uuid in found.gpus if uuid not in listed)
            if lost and found.occupies_slot:
                moved, more = machines.lose_gpus(found, lost, item.at)
                self._store_execution(moved)
                due.extend(more)
        used = frozenset(event.in_use)
        for found in capacity.spot_rentals(self.terms, self.live()):
            if not used.isdisjoint(found.gpus):
                due.extend(self._give_way([found], "its owner uses the GPU", item))
        for duty in list(self.jury.values()):
            if not listed.issuperset(duty.gpus):
                salt = hash_tuple(item.random, duty.case_id)  # each ballot needs its own
                self.jury[duty.case_id], votes = jury_duty.lose_gpus(duty, salt)
                due.extend(votes)
        if self.offered_slots() != before and self.scalars.offer_seq:
            due.append(self._next_offer(item.at))
        return tuple(due)

    def _give_way(
        self,
        rentals: list[Execution],
        why: str,
        item: Input[Event],
        notice: int = rental.NOTICE_SECONDS,
    ) -> tuple[Effect, ...]:
        due: list[Effect] = []
        for found in rentals:
            moved, more = rental.give_way(found, why, item.at, notice)
            self._store_execution(moved)
            due.extend(more)
        return tuple(due)

    def _change_places(self, at: UnixSeconds) -> tuple[Effect, ...]:
        due: list[Effect] = []
        jury, gone = tuple(self.jury.values()), self.unusable()
        while change := rental.change_places(self.terms, self.live(), jury, gone, at):
            self._store_execution(change[0])
            due.extend(change[1])
        return tuple(due)

    def _on_evict(self, event: events.EvictRequested, item: Input[Event]) -> tuple[Effect, ...]:
        found = self.executions.get(event.assignment_hash)
        if found is None or not (found.is_rental and found.is_under_way):
            raise Refused(
                Code.UNKNOWN, "evict: no such rental runs here; see `quorate node status`"
            )
        return self._give_way([found], event.why, item, rental.EVICT_SECONDS)

    def has_store(self, room: int) -> bool:
        """Whether the offer says what a content store with this room may take."""
        return self.scalars.store_bytes == in_steps(room)

    def _on_store_read(self, event: events.StoreRead, at: UnixSeconds) -> tuple[Effect, ...]:
        if self.has_store(event.room):
            return ()
        self._set_scalars(replace(self.scalars, store_bytes=in_steps(event.room)))
        return (self._next_offer(at),) if self.scalars.offer_seq else ()

    def _on_fetch_rate(self, rate: int, at: UnixSeconds) -> tuple[Effect, ...]:
        if not rate:
            return ()
        before = self.scalars.bandwidth
        rates = (*self.scalars.fetch_rates, rate)[-FETCH_RATES_KEPT:]
        self._set_scalars(replace(self.scalars, fetch_rates=rates))
        is_changed = self.scalars.bandwidth != before
        return (self._next_offer(at),) if is_changed and self.scalars.offer_seq else ()

    def _set_scalars(self, scalars: Scalars) -> None:
        self.scalars_table[_FACTS] = scalars

    # ----------------------------------------------------------------------------------- executions

    def _on_assignment(
        self, event: events.AssignmentReceived, at: UnixSeconds
    ) -> tuple[Effect, ...]:
        assignment, terms = event.assignment.message, self.terms
        bidding.check_parties(event, terms)
        assignment_hash = digest(terms.domain, assignment)
        known = self.executions.get(assignment_hash)
        if known is not None:
            # The Assignment came again, perhaps because the answer was lost: the core sends the
            # answer again. The outbox still has all later effects.
            return execution.duties(known) if isinstance(known.phase, Accepted | Declined) else ()
        if assignment_hash in self.settled:
            raise Refused(
                Code.REPLAYED,
                "assignment: it has ended here; a provider runs and commits each one once",
            )
        bidding.check_accept_by(assignment, at)
        debt = debts.with_assignment(self.debt(assignment.coordinator), event.assignment)
        self.debts[assignment.coordinator] = debt
        if len(self.executions) >= EXECUTIONS_KEPT_MAX:
            raise Refused(Code.BUSY, "assignment: this provider keeps too many executions")
        quoted = capacity.quoted_run_seconds(self.scalars.recent_ms, assignment.max_duration)
        live, jury = self.live(), tuple(self.jury.values())
        no, start_by = bidding.answer(
            event,
            at,
            quoted,
            terms,
            live,
            jury,
            self.takes_no_work,
            self.unusable(),
            self.scalars.store_bytes,
            self.scalars.bandwidth,
        )
        if no is None:
            owed = self.owed(assignment.coordinator)
            is_rental = event.spec.kind.is_rental
            ahead = debts.pay_ahead(assignment, terms.limits)
            most = ahead if is_rental else debts.most_pay(assignment)
            no = debts.why_unsecured(debt.tab, owed, most, terms.policy)
        pool, gone = assignment.pool, self.unusable()
        gpus = () if no else self._gpus_for(pool, gone)
        has_slot = capacity.free(terms, pool, live, jury, gone) > 0
        bandwidth = self.scalars.bandwidth
        begun, due = execution.begin(event, at, no, start_by, quoted, terms, gpus, bandwidth)
        begun = replace(begun, has_slot=has_slot or no is not None)
        self._store_execution(begun)
        surplus = (
            [next(iter(self.declined.keys()))] if len(self.declined) > DECLINED_KEPT_MAX else []
        )
        if begun.occupies_slot:
            capacity.check_room(terms, begun, self.live(), jury)
        return (*due, *self._forget(self.declined, surplus))

    def _check_known(
        self, event: events.CommitSetReceived | events.VerdictReceived | events.StopReceived
    ) -> None:
        found = self.executions.get(event.assignment_hash)
        if found is None:
            is_late = event.assignment_hash in self.settled and not isinstance(
                event, events.CommitSetReceived
            )
            if is_late and (
                isinstance(event, events.StopReceived)
                or event.signer in self.terms.statement_keys.values()
            ):
                # A final verdict after a provisional one may take the pay back. A Stop of an ended
                # lease changes nothing.
                return
            raise Refused(Code.UNKNOWN, "no such assignment here")
        if isinstance(event, events.StopReceived) and found.coordinator != event.coordinator:
            raise Refused(Code.NOT_YOURS, "stop: another coordinator made this assignment")

    def _on_execution(
        self, assignment_hash: Hash32, event: events.ExecutionEvent, item: Input[Event]
    ) -> tuple[Effect, ...]:
        found = self.executions.get(assignment_hash)
        if found is None:
            # The core has forgotten it in the meantime, but a later Verdict may deny its pay.
            if isinstance(event, events.VerdictReceived):
                self._deny_pay(event)
            return ()
        moved, due = machines.step(found, event, item.at, item.random, self.terms)
        if moved is not found:
            if isinstance(event, events.TaskExited) and not found.is_rental:
                self._set_scalars(
                    replace(
                        self.scalars,
                        recent_ms=(*self.scalars.recent_ms, int(event.usage_ms))[
                            -capacity.RECENT_RUNS :
                        ],
                    )
                )
            self._store_execution(moved)
            if isinstance(moved.phase, Live) and not isinstance(found.phase, Live):
                self._begin_rental(moved)
            if isinstance(event, events.VerdictReceived) and isinstance(moved.phase, Done):
                self._set_pay(assignment_hash, moved.coordinator, debts.expected_pay(moved))
        if isinstance(event, events.MeterAnswered) and not event.refusal:
            self._take_meter(moved, event)
        return due

    def _store_execution(self, moved: Execution) -> None:
        before, commit = self.executions.get(moved.assignment_hash), moved.commit()
        was = before.commit() if before else None
        assert was is None or was == commit, "two Commits for one assignment"
        if commit is not None and was is None:
            self.commits[digest(self.terms.domain, commit)] = moved.assignment_hash
        self.executions[moved.assignment_hash] = moved
        if not moved.is_ended:
            self.active[moved.assignment_hash] = True
            return
        if moved.assignment_hash in self.active:
            del self.active[moved.assignment_hash]
        match moved.phase:
            case Declined():
                table = self.declined
            case Done() | Lapsed(commit=None) | Over():
                table = self.done
            case _:
                table = self.ended
        table[moved.assignment_hash] = machines.next_due(moved, self.terms)

    def _on_tick(self, item: Input[Event]) -> tuple[Effect, ...]:
        due: list[Effect] = []
        for assignment_hash in [
            found.assignment_hash
            for found in self.live()
            if machines.next_due(found, self.terms) <= item.at
        ]:
            due.extend(self._on_execution(assignment_hash, events.Tick(), item))
        for case_id in [
            duty.case_id for duty in self.jury.values() if jury_duty.next_due(duty) <= item.at
        ]:
            if self.jury[case_id].is_ended:
                del self.jury[case_id]
            else:
                due.extend(self._on_duty(case_id, events.Tick(), item))
        for table in (self.declined, self.ended, self.done):
            due.extend(self._forget(table, _due_first(table, item.at)))
        self._forget_settled(item.at)
        return tuple(due)

    def _forget(self, table: Table[Hash32, UnixSeconds], gone: list[Hash32]) -> list[Effect]:
        for assignment_hash in gone:
            found = self.executions[assignment_hash]
            commit = found.commit()
            if commit is not None:
                del self.commits[digest(self.terms.domain, commit)]
            del self.executions[assignment_hash], table[assignment_hash]
            if isinstance(found.phase, Done | Lapsed | Over):
                self.settled[assignment_hash] = found.phase.forget_at
        return [effects.ForgetLease(assignment_hash) for assignment_hash in gone]

    def _forget_settled(self, at: UnixSeconds) -> None:
        gone = _due_first(self.settled, at)
        while gone or len(self.settled) > SETTLED_KEPT_MAX:
            assignment_hash = gone.pop() if gone else next(iter(self.settled))
            del self.settled[assignment_hash]
            if assignment_hash in self.pays:
                del self.pays[assignment_hash]

    # ----------------------------------------------------------------------------------------- jury

    def _on_case(
        self, event: events.ChainVotingEnded | events.ChainCaseDecided, item: Input[Event]
    ) -> tuple[Effect, ...]:
        case = self.cases.get(event.execution)
        if case is None:
            return ()
        if isinstance(event, events.ChainCaseDecided):
            del self.cases[event.execution]
        return self._on_duty(case.opened.case_id, event, item, case.votes)

    def _on_duty(
        self,
        case_id: Hash32,
        event: events.JuryEvent | events.Tick,
        item: Input[Event],
        votes: tuple[events.Vote, ...] = (),
    ) -> tuple[Effect, ...]:
        found = self.jury.get(case_id)
        if found is None:
            return ()  # this provider is no juror of the case
        self.jury[case_id], due = jury_duty.step(found, event, item.at, item.random, votes)
        return due

    def _begin_duties(self) -> tuple[Effect, ...]:
        """Duties come before new leases: a juror that misses its short window is a no-show."""
        due: list[Effect] = []
        for duty in [
            duty for duty in self.jury.values() if isinstance(duty.phase, jury_duty.Waiting)
        ]:
            jury, pool = tuple(self.jury.values()), duty.pool
            free = capacity.free(self.terms, pool, self.live(), jury, self.gone())
            if free > 0 and jury_duty.has_room(jury, self.terms):
                gpus = self._gpus_for(pool, self.gone())
                self.jury[duty.case_id], more = jury_duty.begin(duty, gpus)
                due.extend(more)
        return tuple(due)

    def _gpus_for(self, pool: Hash32, unusable: frozenset[str]) -> tuple[str, ...]:
        """Returns the GPUs of the run slot that the next lease gets; none in a CPU class."""
        jury = tuple(self.jury.values())
        groups = capacity.free_groups(self.terms, pool, self.live(), jury, unusable)
        return groups[0] if groups else ()

    # ---------------------------------------------------------------------------------------- money

    def _on_money(self, event: events.MoneyEvent, at: UnixSeconds) -> None:
        match event:
            case events.VoucherReceived(coordinator, voucher, signer):
                debts.check_voucher(voucher, coordinator, signer, self.terms)
                debt = self.debt(coordinator)
                self.debts[coordinator] = debts.with_voucher(debt, voucher, at)
            case events.TabSeen(coordinator, locked, paid, closes_at):
                debt, tab = self.debt(coordinator), Tab(locked, paid, closes_at)
                self.debts[coordinator] = debts.with_tab(debt, tab, at)
            case events.ReceiptChecked(lease, seq, pay):
                found = self.executions.get(lease)
                is_newest = (
                    found is not None
                    and isinstance(found.phase, Done)
                    and found.phase.verdict.message.seq == seq
                )
                if found is not None and is_newest:
                    self._set_pay(lease, found.coordinator, pay)
            case events.OrderFunded(lease):
                place = self.pays.get(lease) or self.executions.get(lease)
                if place is not None:
                    self._set_pay(lease, place.coordinator, Amount(0))
                    self.pays[lease] = LeasePay(place.coordinator, Amount(0), is_escrowed=True)
            case _:
                assert_never(event)
        if isinstance(event, events.VoucherReceived | events.TabSeen):
            self._cover_rentals(event.coordinator)

    def _rentals(self, coordinator: Address) -> list[Execution]:
        return [
            item
            for item in self.live()
            if isinstance(item.phase, Live) and item.coordinator == coordinator
        ]

    def _begin_rental(self, begun: Execution) -> None:
        if len(self._rentals(begun.coordinator)) > 1:
            return
        debt = self.debt(begun.coordinator)
        before = Amount(max(debt.vouched, debt.tab.paid) - debt.rented)
        self.debts[begun.coordinator] = replace(debt, paid_before=before)

    def _take_meter(self, found: Execution, event: events.MeterAnswered) -> None:
        """What it pays counts as earned from now on, and is to be covered. What the last one pays,
        only the coordinator knows: it counts once it is vouched.
        """
        if not isinstance(found.phase, Live):
            return
        lease, coordinator = found.assignment_hash, found.coordinator
        before = self.pays.get(lease) or LeasePay(coordinator, Amount(0))
        pay = debts.rented_pay(found, event.usage_ms, self.terms.limits)
        if pay > before.amount:
            self._set_pay(lease, coordinator, pay)
            debt = self.debt(coordinator)
            rented = Amount(debt.rented + pay - before.amount)
            self.debts[coordinator] = replace(debt, rented=rented)
        self._cover_rentals(coordinator)

    def _cover_rentals(self, coordinator: Address) -> None:
        if not self.debt(coordinator).covers_rentals:
            return
        for item in self._rentals(coordinator):
            covered = rental.cover(item)
            if covered is not item:
                self.executions[item.assignment_hash] = covered

    def _deny_pay(self, event: events.VerdictReceived) -> None:
        """Takes a forgotten lease's pay out of the debt if a late Verdict denies it."""
        pay = self.pays.get(event.assignment_hash)
        if pay is None or self.terms.statement_keys.get(pay.coordinator) != event.signer:
            return
        if debts.is_denied(event.verdict.message, event.assignment_hash):
            self._set_pay(event.assignment_hash, pay.coordinator, Amount(0))

    def _set_pay(self, lease: Hash32, coordinator: Address, amount: Amount) -> None:
        """Counts what a lease is owed, in place of what was counted for it before."""
        before = self.pays.get(lease) or LeasePay(coordinator, Amount(0))
        if before.is_escrowed:
            return
        debt = self.debt(coordinator)
        earned = Amount(debt.earned - before.amount + amount)
        self.debts[coordinator] = replace(debt, earned=earned)
        self.pays[lease] = replace(before, amount=amount)


def _due_first(table: Table[Hash32, UnixSeconds], at: UnixSeconds) -> list[Hash32]:
    """At most FORGET_AT_ONCE_MAX rows, in order of time; the next Tick takes the rest."""
    found: list[Hash32] = []
    for assignment_hash, due_at in table.items():
        if due_at > at or len(found) >= FORGET_AT_ONCE_MAX:
            break
        found.append(assignment_hash)
    return found
