"""Checks an Assignment and answers it: accept, or decline with a reason."""

from quorate_node.core import bidding, capacity, events
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.phases import Execution
from quorate_node.core.terms import Terms
from quorate_protocol.limits import HOUR
from quorate_protocol.messages.offer import BYTES_OF_SLOT_MAX
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import DeclineReason, UnixSeconds

# How far ahead an acceptBy may lie. It is far less than the time for which the core remembers ended
# leases, and far more than clocks differ by.
ACCEPT_AHEAD_MAX = 2 * HOUR
NO_START = UnixSeconds(0)


def check_parties(event: events.AssignmentReceived, terms: Terms) -> None:
    assignment = event.assignment.message
    if terms.statement_keys.get(assignment.coordinator) != event.signer:
        raise Refused(
            Code.WRONG_SIGNER,
            "assignment: not signed by the statement key of a coordinator served here",
        )
    if assignment.provider != terms.provider:
        raise Refused(Code.NOT_YOURS, "assignment: it is for another provider")


def check_accept_by(assignment: Assignment, at: UnixSeconds) -> None:
    ahead = assignment.accept_by - at
    if ahead > ACCEPT_AHEAD_MAX:
        raise Refused(
            Code.TOO_EARLY,
            f"assignment: acceptBy lies {ahead} s ahead, at most {ACCEPT_AHEAD_MAX} s",
        )
    if ahead < 0:
        raise Refused(
            Code.TOO_LATE, f"assignment: acceptBy was {assignment.accept_by}, and the time is {at}"
        )


def answer(
    event: events.AssignmentReceived,
    at: UnixSeconds,
    quoted_run: int,
    terms: Terms,
    live: tuple[Execution, ...],
    jury: tuple[JuryDuty, ...],
    is_draining: bool,
    gone: frozenset[str] = frozenset(),
    store_bytes: int = BYTES_OF_SLOT_MAX,
) -> tuple[bidding.DeclineCause | None, UnixSeconds]:
    """Returns the reason to decline (None to accept), and when a run slot will be free (0 if that
    is not it). `gone` are GPUs that the driver no longer lists; `store_bytes` is the newest
    offer's.
    """
    if is_draining:
        return bidding.DeclineCause(DeclineReason.DRAINING, "the owner wants no new work"), NO_START
    if event.is_rotating:
        text = "the operator key changes, GPUs are challenged, or a receipt was false"
        return bidding.DeclineCause(DeclineReason.DRAINING, text), NO_START
    assignment = event.assignment.message
    bid = bidding.Bid(assignment, event.spec, terms, event.cuda_requirement, store_bytes)
    no = bidding.decide(bid)
    if no is not None:
        return no, NO_START
    offered = {slot.host.id() for slot in capacity.offered(terms, gone)}
    if assignment.host_class not in offered:
        text = "the GPUs of this class are gone: the driver does not list them any more"
        return bidding.DeclineCause(DeclineReason.MISMATCH, text), NO_START
    if capacity.free(terms, assignment.host_class, live, jury, gone) > 0:
        return _store_is_full(event, live, UnixSeconds(at + terms.limits.decline_ahead_max))
    start_by = capacity.slot_frees_at(terms, assignment.host_class, live, quoted_run, at)
    text = f"every run slot is taken until about {start_by}"
    return bidding.DeclineCause(DeclineReason.BUSY, text), start_by


def _store_is_full(
    event: events.AssignmentReceived, live: tuple[Execution, ...], later: UnixSeconds
) -> tuple[bidding.DeclineCause | None, UnixSeconds]:
    """Postpones what fitted the offer until other jobs took the room."""
    asked = capacity.store_bytes(event.spec, live)
    if asked <= event.store_room:
        return None, NO_START
    return bidding.DeclineCause(
        DeclineReason.BUSY,
        f"the running jobs and this one need {asked} bytes of the content store, which has room "
        f"for {event.store_room}",
    ), later
