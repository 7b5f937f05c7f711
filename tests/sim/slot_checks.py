"""Checks which run slots a coordinator assigns: of live providers, within their windows, and none
that others use.

The formulas are its own. They look at the messages that the coordinator took, and at its leases.
"""

from dataclasses import dataclass

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Running
from quorate_coordinator.core.model.lease import Assigned, Lease
from quorate_protocol.limits import Limits
from quorate_protocol.messages.signed import Heartbeat, Summary
from quorate_protocol.units import Address, ExecutionEnd, Hash32, Label, Outcome, Role, VerifyTier
from sim.coverage import Coverage

FAST = VerifyTier.QUORUM_2_FAST


@dataclass(slots=True)
class _Heard:
    """The last heartbeat of a provider, and when it was taken. `known` are our leases that it
    counts: accepted by its time, and in a slot when it was taken, or accepted here only later.
    """

    beat: Heartbeat
    at: int
    known: set[Hash32]


class SlotChecks:
    """Follows heartbeats and Accepts of one coordinator."""

    def __init__(self, coverage: Coverage, limits: Limits) -> None:
        self._coverage, self._limits = coverage, limits
        self._heard: dict[Address, _Heard] = {}
        self._offers: dict[Address, int] = {}  # sequence numbers
        self._windows: dict[Address, int] = {}  # the most run slots that each may hold at once

    def took(self, core: CoordinatorCore, event: ev.Event, at: int) -> None:
        """Notes a heartbeat, an offer or an Accept that was taken."""
        state = core.state
        if isinstance(event, ev.HeartbeatReceived):
            beat = event.heartbeat.message
            held = state.leases_in_slots.get(beat.provider) or ()
            known = {
                digest
                for digest in held
                if (accept := state.accepts.get(digest)) is not None
                and accept.message.time <= beat.time
            }
            self._heard[beat.provider] = _Heard(beat, at, known)
        elif isinstance(event, ev.OfferReceived):
            owner, seq = event.offer.offer.provider, event.offer.offer.seq
            assert seq >= self._offers.get(owner, 0), "3.8: an older offer replaced a newer one"
            self._offers[owner] = seq
        elif isinstance(event, ev.AcceptReceived):
            lease = state.leases[event.accept.message.assignment_hash]
            heard = self._heard.get(lease.provider)
            if heard is not None and event.accept.message.time <= heard.beat.time:
                heard.known.add(lease.assignment_hash)

    def summed_up(self, core: CoordinatorCore, line: Summary) -> None:
        """Widens and narrows windows by the executions of a job that ended accepted."""
        if line.outcome is not Outcome.ACCEPTED or line.label is Label.NONE:
            return
        for item in line.executions:
            if line.is_again and item.role is Role.PRIMARY:
                continue
            before = self._windows.get(item.provider, 1)
            if item.end in (ExecutionEnd.LAPSED, ExecutionEnd.GAVE_UP):
                offer = core.state.providers[item.provider].offer
                count = sum(slot.count for slot in offer.slots) if offer is not None else 1 << 30
                self._windows[item.provider] = max(1, min(before, count) // 2)
            elif item.end is not ExecutionEnd.DECLINED:
                self._windows[item.provider] = before + 1

    def _is_asked_to_decline(self, core: CoordinatorCore, lease: Lease, at: int) -> bool:
        """5.103: a drawn provider that was busy too long, or is too dear, gets an Assignment.
        5.166: a fast job waits for nobody.
        """
        job, offer = core.state.jobs[lease.job_id], core.state.providers[lease.provider].offer
        assert offer is not None
        message = lease.assignment.message
        prices = [it.on_demand for it in offer.slots if it.pool.id() == message.pool]
        patience = self._limits.decline_ahead_max
        places = job.phase.places if isinstance(job.phase, Running) else ()
        waited = any(
            place.slot.owner == lease.provider and place.since + patience < at for place in places
        )
        is_first = job.submission.order.message.verify_tier is FAST and lease.batch == 0
        is_dear = not prices or message.price_per_hour < prices[0]
        return lease.is_drawn and (waited or is_first or is_dear)

    def assigned(self, core: CoordinatorCore, lease: Lease, at: int) -> None:
        """An Assignment needs a provider that is alive, and a slot that nobody else uses."""
        heard = self._heard.get(lease.provider)
        assert heard is not None, "3.47: an assignment to a provider without a heartbeat"
        assert at <= heard.at + self._limits.heartbeat_alive, (
            f"3.47: an assignment {at - heard.at} s after the provider's last heartbeat"
        )
        state, offer = core.state, core.state.providers[lease.provider].offer
        assert offer is not None, "3.47: an assignment to a provider without an offer"
        if self._is_asked_to_decline(core, lease, at):
            return
        pool = lease.assignment.message.pool
        count = sum(slot.count for slot in offer.slots if slot.pool.id() == pool)
        # Who is asked so that it declines takes no slot, though both were assigned in one step.
        names = state.leases_in_slots.get(lease.provider) or ()
        held = [state.leases[other] for other in names[: names.index(lease.assignment_hash) + 1]]
        spec = state.jobs[lease.job_id].submission.spec
        yielding = spec.kind.is_rental and not spec.spot  # spot rentals make room for it (12.42)
        ours = sum(
            not (isinstance(other.phase, Assigned) and self._is_asked_to_decline(core, other, at))
            and not (yielding and state.jobs[other.job_id].submission.spec.spot)
            for other in held
        )
        widest = self._windows.get(lease.provider, 1)
        assert ours <= widest, f"4.40: {ours} leases at once in a window of {widest}"
        self._coverage.facts["a second lease at once"] += ours > 1
        free = [item.free for item in heard.beat.free_slots if item.pool == pool]
        if not free:
            return
        others = max(0, count - free[0] - len(heard.known))
        assert ours + others <= count, (
            f"I2: {ours} leases, and others use {others} of {count} run slots"
        )
        self._coverage.facts["assigned beside another's lease"] += others > 0
