"""Decides whether the provider takes an Assignment.

A chain of small checks gives the first reason to decline, with a sentence for the owner. These
checks find what can never fit; `capacity` then finds what does not fit now.
"""

from collections.abc import Callable

from msgspec import Struct

from quorate_attestation import fits
from quorate_node.core import cuda_versions
from quorate_node.core.terms import FETCHED_PER_SECOND, Terms
from quorate_protocol.messages.job_spec import JobSpec, validate
from quorate_protocol.messages.offer import BYTES_OF_SLOT_MAX
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import DeclineReason, PriceTier, usd

FETCH_SECONDS_LEAST = 10
# Image and inputs of one job that can be fetched within the longest quote. No slot offers more.
FETCHED_MAX = (
    quotes.SECONDS_MAX - FETCH_SECONDS_LEAST
) * FETCHED_PER_SECOND - quotes.REGISTRY_IMAGE_BYTES


class DeclineCause(Struct, frozen=True):
    """Why the provider declines. `text` is for its owner's log and status."""

    reason: DeclineReason
    text: str


class Bid(Struct, frozen=True):
    """The Assignment and spec to decide about, and the provider's terms.

    `cuda_requirement`: what the image asks of the driver; "" if that is not known yet.
    `store_bytes`: as the newest offer says.
    """

    assignment: Assignment
    spec: JobSpec
    terms: Terms
    cuda_requirement: str = ""
    store_bytes: int = BYTES_OF_SLOT_MAX


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
    if bid.spec.max_duration != bid.assignment.max_duration:
        return DeclineCause(
            DeclineReason.MISMATCH,
            (
                f"maxDuration is {bid.assignment.max_duration} s, the spec says "
                f"{bid.spec.max_duration} s"
            ),
        )
    return None


def _check_validity(bid: Bid) -> DeclineCause | None:
    try:
        validate(bid.spec)
    except Refused as refused:  # not re-raised: the provider answers with a signed Decline
        return DeclineCause(DeclineReason.MISMATCH, refused.detail)
    return None


def _check_host_class(bid: Bid) -> DeclineCause | None:
    if bid.terms.slot(bid.assignment.host_class) is None:
        return DeclineCause(
            DeclineReason.MISMATCH, "this provider offers no slot of that host class"
        )
    return None


def _check_price(bid: Bid) -> DeclineCause | None:
    if bid.assignment.price_tier is not PriceTier.ON_DEMAND:
        return DeclineCause(
            DeclineReason.PRICE,
            f"priceTier {bid.assignment.price_tier.value} is not offered yet, only "
            f"{PriceTier.ON_DEMAND.value} (on demand)",
        )
    slot = bid.terms.slot(bid.assignment.host_class)
    offered = (
        [price for price in (slot.spot, slot.on_demand, slot.reserved) if price] if slot else []
    )
    least = max(bid.terms.policy.price_floor, min(offered, default=0))
    if bid.assignment.price_per_hour < least:
        return DeclineCause(
            DeclineReason.PRICE,
            f"{usd(bid.assignment.price_per_hour)} USD an hour is below {usd(least)}",
        )
    return None


def _check_fit(bid: Bid) -> DeclineCause | None:
    """Declines what the offer does not promise. The coordinator asks the same function."""
    slot, terms = bid.terms.slot(bid.assignment.host_class), bid.terms
    assert slot is not None, "an earlier check declines an unknown host class"
    lacking = fits.shortfalls(bid.spec, slot, terms.promise(bid.store_bytes))
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
    _check_host_class,
    _check_price,
    _check_fit,
    _check_cuda,
)


def quoted_fetch_seconds(bid: Bid) -> int:
    """Returns how long a fetch may take here: generous, as it is part of the commit deadline."""
    size = quotes.fetch_bytes(bid.spec)
    return FETCH_SECONDS_LEAST + size // bid.terms.policy.input_bytes_per_second
