"""The simulated chain: stakes, tabs, funded orders and cases. One block a second.

It checks what the contracts check. Coordinators and owners read what blocks say that nothing can
replace; a transaction's sender hears of it at the same depth.
"""

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from random import Random

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import (
    OpenCase,
    ProveEquivocation,
    ReleaseOrder,
    SendGiveBack,
    SendLocks,
    SendPayroll,
    SendRedeem,
    ShownRun,
)
from quorate_node.core import effects as node_effects
from quorate_node.core import events as node_events
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import JuryVote, Order, Voucher
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, UnixSeconds
from sim.blocks import Blocks
from sim.court import Case, Court
from sim.escrow import FOREVER, Coordinator, Escrow, Tab, need
from sim.funded import Jobs
from sim.operator_keys import OperatorKeys
from sim.parties import DOMAIN, key
from sim.process import Finish
from sim.schedule import Schedule

OWN = key("coordinator").address
POSTING = key("posting").address
CLIENTS = {key("client", number).address: f"client-{number}" for number in range(2)}
ACCUSATIONS = 20_000_000  # what the posting key may burn as an accuser


@dataclass(frozen=True, slots=True)
class Money:
    """The books of one block."""

    escrow: Escrow
    jobs: Jobs


class Chain(Blocks):
    """The ledger and its clock."""

    STAKES = ("stakes", "staked", "left", "faults", "fines")

    def __init__(self, schedule: Schedule, random: Random, limits: Limits) -> None:
        super().__init__(schedule, random, limits)
        self.escrow, self.jobs = Escrow(limits), Jobs(limits)
        self.stakes: dict[Address, int] = {}
        self.pools: dict[Address, Hash32] = {}  # in which each owner has its slots
        self.staked: dict[Address, int] = {}  # what each owner put up
        self.left: set[Address] = set()
        self.faults: dict[Address, int] = {}  # when each owner's last double Commit was
        self.fines: dict[Address, int] = {}  # what two Commits cost each owner
        self.keys: dict[Address, OperatorKeys] = {}  # operator keys of every owner
        self.specs: dict[Hash32, JobSpec] = {}  # the public content store, as far as juries need it
        self.sent: Counter[str] = Counter()  # transactions of clients by name
        self.court = Court(self)
        self._checked: Escrow | None = None

    # -------------------------------------------------------------------------------------- genesis

    def register(
        self,
        keys: dict[Address, OperatorKeys],
        slots: list[tuple[Hash32, int]],
        clients: list[Address],
        money: int,
        capital: int,
    ) -> None:
        """Registers everybody who takes part from the beginning."""
        notes = self.blocks[0].notes
        statements = ((key("statement").address, FOREVER),)
        limit = max(capital, 10**8)
        self.escrow.coordinators[OWN] = Coordinator(POSTING, statements, limit, limit)
        self.escrow.deposit(OWN, capital)
        self.escrow.deposit(POSTING, ACCUSATIONS)
        places, self.keys = Counter[Hash32](), keys
        for number, (owner, ring) in enumerate(keys.items()):
            pool, count = slots[number]
            self.pools[owner] = pool
            network = hash_tuple("network", number)
            notes.append(ev.ChainProviderRegistered(owner, ring.current.address, owner, network))
            for _ in range(count):
                notes.append(ev.ChainSlotOpened(pool, places[pool], owner, BlockNumber(0)))
                places[pool] += 1
            self.stakes[owner] = self.staked[owner] = count * self.limits.slot_stake
        for client in clients:
            self.escrow.deposit(client, money, OWN)
            notes.append(self._tab_note(self.escrow, client, OWN))
        notes.extend(self._own_notes(self.escrow))

    def had_before(self, payer: Address, amount: int) -> None:
        """A client of earlier times, whose charge is in the coordinator's balance."""
        self.escrow.deposit(OWN, amount)
        self.escrow.tabs[payer, OWN] = Tab(amount, amount, amount)
        self.escrow.promised[payer, OWN] = amount

    def leave(self, owner: Address) -> None:
        """Stakes.exit: the slots are not drawn any more; the stake stays liable until it has
        unbonded.
        """

        def act() -> None:
            closed = BlockNumber(self.height + 1)
            self.left.add(owner)
            self.note(ev.ChainSlotsClosed(owner, closed))

        self.do(owner.hex(), act)

    def rotate(self, owner: Address) -> None:
        """Stakes.rotate_key: the old key stays valid for everything up to this second."""
        self.keys[owner].rotate(since := self.now)
        rotated = ev.ChainKeyRotated(owner, self.keys[owner].current.address, since)
        self.do(owner.hex(), lambda: self.note(rotated), may_wait=False)

    # ---------------------------------------------------------------------------------------- money

    def pays(self, act: Callable[[], object]) -> Callable[[], None]:
        """An act on money: it happens as a whole or not at all, and is told of."""

        def whole() -> None:
            escrow, jobs = self.escrow.copy(), self.jobs.copy()
            try:
                act()
            except BaseException:
                self.escrow, self.jobs = escrow, jobs
                raise
            self._tell_money(escrow)

        return whole

    def _tell_money(self, before: Escrow) -> None:
        for payer, payee in self.escrow.tabs:
            if self.escrow.tabs[payer, payee] != before.tabs.get((payer, payee), Tab()):
                self.note(self._tab_note(self.escrow, payer, payee))
        now, earlier = self._own_notes(self.escrow), self._own_notes(before)
        self.note(*(each for each in now if each not in earlier))

    def _tab_note(self, escrow: Escrow, payer: Address, payee: Address) -> ev.ChainNote:
        tab = escrow.tabs.get((payer, payee), Tab())
        closes_at = UnixSeconds(tab.closes_at)
        return ev.ChainTabChanged(payer, payee, Amount(tab.locked), Amount(tab.paid), closes_at)

    def _own_notes(self, escrow: Escrow) -> tuple[ev.ChainNote, ...]:
        payroll, locks = (escrow.left(OWN, what, self.now) for what in ("payroll", "locks"))
        balance = Amount(escrow.balances.get(OWN, 0))
        return (ev.ChainBalanceChanged(balance, payroll, locks),)

    def final_money(self) -> Money:
        """The books of the newest block that nothing can replace."""
        later = self.blocks[self.confirmed] if self.confirmed < self.height else self._pending
        if later.before[0] is None:
            return Money(self.escrow, self.jobs)
        return later.before[0][0]  # type: ignore[index, no-any-return]

    def asked(self) -> tuple[ev.ChainNote, ...]:
        """What final blocks say of the coordinator's tabs and balance."""
        escrow = self.final_money().escrow
        tabs = [self._tab_note(escrow, *place) for place in escrow.tabs if OWN in place]
        return (*tabs, *self._own_notes(escrow))

    def client_acts(self, client: Address, act: Callable[[], object]) -> None:
        """A client's own transaction."""
        self.sent[CLIENTS.get(client, "")] += 1
        self.do(client.hex(), self.pays(act), insists=True)

    def close_for_owner(self, owner: Address) -> None:
        """The coordinator's account closes its tab for an owner; anyone finishes it."""
        if self.escrow.tabs[OWN, owner] != Tab() and not self.escrow.tabs[OWN, owner].closes_at:
            self.do("coordinator account", self.pays(partial(self._close, owner)), insists=True)

    def _close(self, owner: Address) -> None:
        self.escrow.close(OWN, owner, self.now)

    def _finish_tabs(self) -> None:
        for (payer, payee), tab in list(self.escrow.tabs.items()):
            if payer == OWN and 0 < tab.closes_at < self.now:
                self.escrow.finish(payer, payee, self.now)

    # --------------------------------------------------------------------------------- transactions

    def payroll(self, effect: SendPayroll, finish: Finish) -> None:
        """Escrow.payroll, by the posting key."""
        self._coordinator_acts(
            effect.key, lambda: self.escrow.payroll(POSTING, OWN, effect.pays, self.now), finish
        )

    def redeem(self, effect: SendRedeem, finish: Finish) -> None:
        """Escrow.redeem, by the posting key. Every voucher is good when it is sent."""
        shown = tuple((item.voucher, item.session) for item in effect.vouchers)
        for voucher, session in shown:
            assert voucher.message.cumulative <= session.message.up_to, "I4: above the session"
        self._coordinator_acts(effect.key, lambda: self.escrow.redeem(OWN, shown, self.now), finish)

    def lock(self, effect: SendLocks, finish: Finish) -> None:
        """Escrow.lock_many, by the posting key."""
        locks = {item.payee: int(item.amount) for item in effect.locks}
        self._coordinator_acts(
            effect.key, lambda: self.escrow.lock_many(POSTING, OWN, locks, self.now), finish
        )

    def give_back(self, effect: SendGiveBack, finish: Finish) -> None:
        """Escrow.give_back, by the posting key."""

        def act() -> None:
            self.escrow.give_back(POSTING, effect.client, OWN, effect.amount, self.now)

        self._coordinator_acts(effect.key, act, finish)

    def _coordinator_acts(self, purpose: str, act: Callable[[], object], finish: Finish) -> None:
        self.transact("coordinator", purpose, self.pays(act), finish)

    def redeem_of(self, owner: Address, voucher: Envelope[Voucher], finish: Finish) -> None:
        """Escrow.redeem, by an owner."""
        purpose = f"{owner.hex()}-redeem-{voucher.message.cumulative}-{self.now}"
        act = self.pays(lambda: self.escrow.redeem(owner, ((voucher, None),), self.now))
        self.transact(owner.hex(), purpose, act, finish)

    def draw(self, owner: Address, finish: Finish) -> None:
        """Escrow.draw, by an owner."""
        act = self.pays(lambda: self.escrow.draw(owner))
        self.transact(owner.hex(), f"{owner.hex()}-draw-{self.now}", act, finish)

    def show(self, sender: str, order: Order, run: ShownRun, finish: Finish) -> None:
        """Jobs.show, by anyone."""
        purpose = f"{sender}-show-{run.commit.message.assignment_hash.hex()}"
        act = self.pays(lambda: self.jobs.show(self.keys, order, run, self.now))
        self.transact(sender, purpose, act, finish)

    def pay_order(self, sender: str, order: Order, finish: Finish) -> None:
        """Jobs.pay, by anyone."""
        purpose = f"{sender}-pay-{order.nonce}-{self.now}"
        act = self.pays(lambda: self.jobs.pay(self.escrow, order, self.now))
        self.transact(sender, purpose, act, finish)

    def release_order(self, effect: ReleaseOrder, finish: Finish) -> None:
        """Jobs.release, by the posting key."""
        place = effect.order.client, digest(DOMAIN, effect.order)
        act = self.pays(lambda: self.jobs.release(place, self.now))
        self.transact("coordinator", effect.key, act, finish)

    # ---------------------------------------------------------------------------------------- court

    def open_case(self, effect: OpenCase, finish: Finish) -> None:
        """Court.open_case, by the posting key and from its own balance."""
        act = self.pays(lambda: self.court.open(effect, POSTING))
        self.transact("coordinator", effect.key, act, finish)

    def prove(self, effect: ProveEquivocation, finish: Finish) -> None:
        """Faults.equivocation: mild the first time, and whatever lies as close is the same one."""
        body = effect.assignment.message

        def act() -> None:
            at, last = body.accept_by, self.faults.get(body.provider)
            need(at <= self.now <= at + self.limits.case_evidence_age, "late")
            need(last is None or at > last + self.limits.case_evidence_age, "proven")
            pay = body.max_duration * body.price_per_hour // 3600
            first = self.limits.slot_stake // 10 + max(self.limits.jury_gas_fee, pay)
            self.faults[body.provider] = at
            taken = self.slash(body.provider, first if last is None else self.limits.slot_stake)
            self.fines[body.provider] = self.fines.get(body.provider, 0) + taken

        self.transact("coordinator", effect.key, act, finish)

    def vote(self, effect: node_effects.SendVote, vote: Envelope[JuryVote], finish: Finish) -> None:
        """Court.vote."""
        juror = vote.message.juror.hex()
        act = self.pays(lambda: self.court.vote(effect.execution, vote))
        self.transact(juror, f"{juror}-{effect.key}", act, finish)

    def reveal(self, effect: node_effects.SendJuryReveal, juror: Address, finish: Finish) -> None:
        """Court.reveal."""

        def act() -> None:
            self.court.reveal(effect.execution, juror, effect.salt, effect.digest)

        self.transact(juror.hex(), f"{juror.hex()}-{effect.key}", self.pays(act), finish)

    def slash(self, owner: Address, amount: int) -> int:
        """Burns stake, at most a slot's. An owner that lost half of its stake is out."""
        taken = min(amount, self.limits.slot_stake, self.stakes[owner])
        self.stakes[owner] -= taken
        if 2 * self.stakes[owner] < self.staked[owner]:
            closed = BlockNumber(self.height + 1)
            self.note(ev.ChainSlotsClosed(owner, closed))
        return taken

    def case_opened(self, case: Case) -> None:
        """Opens a case."""
        item = case.opened.execution
        body, other = item.run.assignment.message, item.contradiction.assignment.digest(DOMAIN)
        self.note(ev.ChainCaseOpened(case.execution, other, case.accused, case.case_id))
        self.tell(
            node_events.ChainCaseOpened(
                case.execution,
                case.case_id,
                case.accused,
                spec_hash=body.spec_hash,
                pool=body.pool,
                class_id=item.run.commit.message.class_id,
                max_duration=body.max_duration,
                pay=Amount(case.pay),
            )
        )

    def jury_drawn(self, case: Case) -> None:
        """Names a jury."""
        by = UnixSeconds(case.deadline)
        self.note(ev.ChainJuryDrawn(case.execution, case.jurors))
        self.tell(node_events.ChainJuryDrawn(case.execution, case.jurors, by))

    def voted(self, execution: Hash32, juror: Address, ballot: Hash32) -> None:
        """Takes a ballot."""
        self.tell(node_events.ChainVoted(execution, node_events.Vote(juror, ballot)))

    def voting_ended(self, case: Case, reveal_by: UnixSeconds) -> None:
        """Begins the reveals."""
        self.tell(node_events.ChainVotingEnded(case.execution, reveal_by))

    def case_decided(self, case: Case) -> None:
        """Decides a case."""
        self.note(ev.ChainCaseDecided(case.execution, case.is_convicted, Amount(case.taken)))
        self.tell(node_events.ChainCaseDecided(case.execution))

    # ------------------------------------------------------------------------------ reorganisations

    def copies(self) -> object:
        """As `Blocks`."""
        stakes = {name: copy(getattr(self, name)) for name in self.STAKES}
        return Money(self.escrow.copy(), self.jobs.copy()), stakes, self.court.copies()

    def take_back(self, copies: object) -> None:
        """As `Blocks`."""
        money, stakes, cases = copies  # type: ignore[misc]
        self.escrow, self.jobs = money.escrow.copy(), money.jobs.copy()
        for name in self.STAKES:
            setattr(self, name, stakes[name])
        self.court.take_back(cases)
        self._checked = None

    def advance(self) -> None:
        """As `Blocks`."""
        self.pays(self.court.advance)()
        self.pays(self._finish_tabs)()

    # --------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """I1 and I11 on chain, after each block."""
        self.escrow.check(self._checked)
        self.jobs.check(self.escrow)
        self._checked = self.escrow.copy()
