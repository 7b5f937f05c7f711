"""Decides whether the provider takes an Assignment.

A chain of small checks gives the first reason to decline, with a sentence for the owner. These
checks find what can never fit; `capacity` then finds what does not fit now.
"""

from collections.abc import Callable

from msgspec import Struct

from quorate_attestation import gpu_match
from quorate_node.core import cuda_versions
from quorate_node.core.terms import Terms
from quorate_protocol.messages.job_spec import JobSpec, validate
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.ports import Sandbox
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import DeclineReason, PriceTier, usd

FETCH_SECONDS_LEAST = 10
STORE_SECONDS_LEAST = 5


class DeclineCause(Struct, frozen=True):
    """Why the provider declines. `text` is for its owner's log and status."""

    reason: DeclineReason
    text: str


class Bid(Struct, frozen=True):
    """The Assignment and spec to decide about, and the provider's terms.

    `cuda_requirement`: what the image asks of the driver; "" if that is not known yet.
    """

    assignment: Assignment
    spec: JobSpec
    terms: Terms
    cuda_requirement: str = ""


Check = Callable[[Bid], DeclineCause | None]


def decide(bid: Bid) -> DeclineCause | None:
    """Returns the first reason not to run the job.

    None means that the job fits this provider whenever a slot is free.
    """
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


def _check_jury_could_repeat(bid: Bid) -> DeclineCause | None:
    """Declines a sealed or networked job: a jury could not repeat it, and this node cannot run
    it.
    """
    if bid.spec.sealed or bid.spec.network:
        return DeclineCause(
            DeclineReason.MISMATCH,
            "the job is sealed or needs the network, which this node does not support",
        )
    return None


def _check_kind(bid: Bid) -> DeclineCause | None:
    if bid.spec.kind not in bid.terms.policy.kinds:
        return DeclineCause(
            DeclineReason.KIND, f"the owner takes no jobs of kind {bid.spec.kind.name.lower()}"
        )
    return None


def _check_validity(bid: Bid) -> DeclineCause | None:
    """Declines a spec that no provider may run, so that it never reaches the executor."""
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
    """Declines a price below the owner's lowest price or below the cheapest tier offered."""
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


def _check_image(bid: Bid) -> DeclineCause | None:
    allowed = bid.terms.policy.images
    if allowed and bid.spec.image not in allowed:
        return DeclineCause(
            DeclineReason.IMAGE, f"image {bid.spec.image} is not on the owner's list"
        )
    return None


def _check_sandbox(bid: Bid) -> DeclineCause | None:
    """Declines a job that demands another sandbox than this provider's.

    It also declines an image of a registry where there is no container engine to run it.
    """
    sandbox = bid.terms.sandbox
    if sandbox is Sandbox.DOCKER_RUNSC and bid.spec.resources.gpu is not None:
        sandbox = Sandbox.DOCKER_RUNC  # jobs with a GPU run in this sandbox
    if bid.spec.sandbox not in ("", sandbox.value):
        return DeclineCause(
            DeclineReason.SANDBOX,
            f"the job demands the sandbox {bid.spec.sandbox}; here jobs run in {sandbox.value}",
        )
    has_registry_image = "@" in bid.spec.image
    if has_registry_image and bid.terms.sandbox in (Sandbox.PROCESS, Sandbox.BWRAP):
        return DeclineCause(
            DeclineReason.SANDBOX,
            f"the sandbox {bid.terms.sandbox.value} runs only images named by CID",
        )
    return None


def _check_resources(bid: Bid) -> DeclineCause | None:
    """Declines a job that asks for more of a resource than one run slot has.

    The size of a registry's image is checked when the node fetches it.
    """
    slots = bid.terms.run_slots(bid.assignment.host_class)
    assert slots is not None, "an earlier check declines an unknown host class"
    wanted, slot_resources = bid.spec.resources, slots.resources
    pairs = (
        ("cpu", wanted.cpu_millis, slot_resources.cpu_millis),
        ("memory", wanted.memory_bytes, slot_resources.memory_bytes),
        ("scratch", wanted.scratch_bytes, slot_resources.scratch_bytes),
        ("output", wanted.output_bytes, slot_resources.output_bytes),
        ("inputs", bid.spec.input_bytes(), slot_resources.input_bytes),
    )
    for name, asked, given in pairs:
        if asked > given:
            return DeclineCause(
                DeclineReason.RESOURCES, f"{name}: the job asks for {asked}, a slot has {given}"
            )
    return None


def _check_gpus(bid: Bid) -> DeclineCause | None:
    """Declines a job whose GPUs the slot does not have, and a job without GPUs for a GPU slot."""
    slot, wanted = bid.terms.slot(bid.assignment.host_class), bid.spec.resources.gpu
    assert slot is not None, "an earlier check declines an unknown host class"
    if wanted is None:
        text = "the slot has GPUs, and the job asks for none"
        return DeclineCause(DeclineReason.RESOURCES, text) if slot.host.is_gpu else None
    lacking = gpu_match.shortfalls(slot, wanted)
    return DeclineCause(DeclineReason.RESOURCES, f"gpu: {lacking[0]}") if lacking else None


def _check_cuda(bid: Bid) -> DeclineCause | None:
    """Declines an image that needs a newer CUDA than the driver supports, before it is fetched."""
    if bid.spec.resources.gpu is None:
        return None
    problem = cuda_versions.problem(bid.cuda_requirement, bid.terms.driver)
    return DeclineCause(DeclineReason.RESOURCES, problem) if problem else None


def _check_times(bid: Bid) -> DeclineCause | None:
    """Declines a job whose fetch or store takes longer here than an Accept may quote."""
    for name, seconds, most in (
        ("fetching image and inputs", quoted_fetch_seconds(bid), quotes.fetch_seconds_max),
        ("storing the output", quoted_store_seconds(bid), quotes.store_seconds_max),
    ):
        if seconds > most(bid.spec):
            return DeclineCause(
                DeclineReason.RESOURCES,
                f"{name} takes about {seconds} s here, and {most(bid.spec)} s are allowed",
            )
    return None


CHECKS: tuple[Check, ...] = (
    _check_consistency,
    _check_jury_could_repeat,
    _check_kind,
    _check_validity,
    _check_host_class,
    _check_price,
    _check_image,
    _check_sandbox,
    _check_resources,
    _check_gpus,
    _check_cuda,
    _check_times,
)


def quoted_fetch_seconds(bid: Bid) -> int:
    """Returns how long fetching image and inputs may take here.

    It becomes part of the commit deadline, so it is generous.
    """
    size = quotes.fetch_bytes(bid.spec)
    return FETCH_SECONDS_LEAST + size // bid.terms.policy.input_bytes_per_second


def quoted_store_seconds(bid: Bid) -> int:
    """Returns how long sealing and uploading the output may take here."""
    size = bid.spec.resources.output_bytes
    return STORE_SECONDS_LEAST + size // bid.terms.policy.upload_bytes_per_second
