"""Checks an Assignment and answers it: accept, or decline with a reason.

A chain of small checks gives the first reason to decline, with a sentence for the owner. These
checks find what can never fit; `capacity` then finds what does not fit now.
"""

from collections.abc import Callable

from msgspec import Struct

from quorate_attestation import fits
from quorate_node.core import capacity, cuda_versions, events
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.phases import Execution
from quorate_node.core.terms import Terms
from quorate_protocol.limits import HOUR
from quorate_protocol.messages.job_spec import JobSpec, image_digest, validate
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT, BYTES_OF_SLOT_MAX
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import DeclineReason, PriceTier, UnixSeconds, usd


class DeclineCause(Struct, frozen=True):
    """Why the provider declines. `text` is for its owner's log and status."""

    reason: DeclineReason
    text: str


class Bid(Struct, frozen=True):
    """The Assignment and spec to decide about, and the provider's terms.

    `cuda_requirement`: what the image asks of the driver; "" if that is not known yet.
    `store_bytes` and `bandwidth`: as the newest offer says.
    """

    assignment: Assignment
    spec: JobSpec
    terms: Terms
    cuda_requirement: str = ""
    store_bytes: int = BYTES_OF_SLOT_MAX
    bandwidth: int = BANDWIDTH_DEFAULT


Check = Callable[[Bid], DeclineCause | None]


def decide(bid: Bid) -> DeclineCause | None:
    for check in CHECKS:
        answer = check(bid)
        if answer is not None:
            return answer
    return None


def _check_consistency(bid: Bid) -> DeclineCause | None:
    """Declines a spec other than the one that the Assignment names, or another duration."""
    if bid.spec.digest() != bid.assignment.spec_hash:
        return DeclineCause(
            DeclineReason.MISMATCH, "the spec is not the one that the assignment names"
        )
    if bid.spec.paid_seconds() != bid.assignment.max_duration:
        return DeclineCause(
            DeclineReason.MISMATCH,
            (
                f"maxDuration is {bid.assignment.max_duration} s, the spec says "
                f"{bid.spec.paid_seconds()} s"
            ),
        )
    return None


def _check_validity(bid: Bid) -> DeclineCause | None:
    try:
        validate(bid.spec)
    except Refused as refused:  # not re-raised: the provider answers with a signed Decline
        return DeclineCause(DeclineReason.MISMATCH, refused.detail)
    return None


def _check_pool(bid: Bid) -> DeclineCause | None:
    if bid.terms.slot(bid.assignment.pool) is None:
        return DeclineCause(DeclineReason.MISMATCH, "this provider offers no slot of that pool")
    return None


def _check_price(bid: Bid) -> DeclineCause | None:
    if bid.assignment.price_tier is not PriceTier.ON_DEMAND:
        return DeclineCause(
            DeclineReason.PRICE,
            f"priceTier {bid.assignment.price_tier.value} is not offered yet, only "
            f"{PriceTier.ON_DEMAND.value} (on demand)",
        )
    slot = bid.terms.slot(bid.assignment.pool)
    offered = slot.price_for(bid.spec.spot) if slot else 0
    least = max(bid.terms.policy.price_floor, offered)
    if bid.assignment.price_per_hour < least:
        return DeclineCause(
            DeclineReason.PRICE,
            f"{usd(bid.assignment.price_per_hour)} USD an hour is below {usd(least)}",
        )
    return None


def _check_image(bid: Bid) -> DeclineCause | None:
    refused = map(image_digest, bid.terms.policy.refused_images)
    if image_digest(bid.spec.image) in refused:
        return DeclineCause(DeclineReason.IMAGE, "the owner refuses this image")
    return None


def _check_fit(bid: Bid) -> DeclineCause | None:
    """Declines what the offer does not promise. The coordinator asks the same function."""
    slot, terms = bid.terms.slot(bid.assignment.pool), bid.terms
    assert slot is not None, "an earlier check declines an unknown pool"
    lacking = fits.shortfalls(bid.spec, slot, terms.promise(bid.store_bytes, bid.bandwidth))
    return next((DeclineCause(reason, text) for reason, text in lacking), None)


def _check_cuda(bid: Bid) -> DeclineCause | None:
    """Declines an image that needs a newer CUDA than the driver's, which its spec did not say."""
    if bid.spec.resources.gpu is None:
        return None
    problem = cuda_versions.problem(bid.cuda_requirement, bid.terms.driver)
    return DeclineCause(DeclineReason.MISMATCH, problem) if problem else None


CHECKS: tuple[Check, ...] = (
    _check_consistency,
    _check_validity,
    _check_pool,
    _check_price,
    _check_image,
    _check_fit,
    _check_cuda,
)


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
    takes_no_work: bool,
    gone: frozenset[str] = frozenset(),
    store_bytes: int = BYTES_OF_SLOT_MAX,
    bandwidth: int = BANDWIDTH_DEFAULT,
) -> tuple[DeclineCause | None, UnixSeconds]:
    """Returns the reason to decline (None to accept), and when a run slot will be free (0 if that
    is not it). `gone` are GPUs that are not listed or kept back; `store_bytes` and `bandwidth` are
    the newest offer's.
    """
    if takes_no_work:
        return DeclineCause(DeclineReason.DRAINING, "the owner wants no new work"), NO_START
    if event.is_rotating:
        text = "the operator key changes, GPUs are challenged, or a receipt was false"
        return DeclineCause(DeclineReason.DRAINING, text), NO_START
    assignment = event.assignment.message
    bid = Bid(assignment, event.spec, terms, event.cuda_requirement, store_bytes, bandwidth)
    no = decide(bid)
    if no is not None:
        return no, NO_START
    offered = {slot.pool.id() for slot in capacity.offered(terms, gone)}
    if assignment.pool not in offered:
        text = "the GPUs of this pool are gone, too hot, or in the owner's use"
        return DeclineCause(DeclineReason.MISMATCH, text), NO_START
    pool, is_on_demand = assignment.pool, event.spec.kind.is_rental and not event.spec.spot
    spot = len(capacity.yielding(terms, pool, live, gone)) if is_on_demand else 0
    waiting = len(capacity.waiting(live, pool))
    if capacity.free(terms, pool, live, jury, gone) > 0 or spot > waiting:
        return _store_is_full(event, live, UnixSeconds(at + terms.limits.decline_ahead_max))
    start_by = capacity.slot_frees_at(terms, pool, live, quoted_run, at)
    text = f"every run slot is taken until about {start_by}"
    return DeclineCause(DeclineReason.BUSY, text), start_by


def _store_is_full(
    event: events.AssignmentReceived, live: tuple[Execution, ...], later: UnixSeconds
) -> tuple[DeclineCause | None, UnixSeconds]:
    """Postpones what fitted the offer until other jobs took the room."""
    asked = capacity.store_bytes(event.spec, live)
    if asked <= event.store_room:
        return None, NO_START
    return DeclineCause(
        DeclineReason.BUSY,
        f"the running jobs and this one need {asked} bytes of the content store, which has room "
        f"for {event.store_room}",
    ), later
