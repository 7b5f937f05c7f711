"""Decides whether the provider takes an Assignment.

A chain of small checks gives the first reason to decline, with a sentence for the owner. What can
never fit is checked before what does not fit now (`capacity`).
"""

from collections.abc import Callable

from msgspec import Struct

from quorate_node.core.terms import Terms
from quorate_protocol.messages.job_spec import JobSpec, is_image_cid, validate
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.ports import Sandbox
from quorate_protocol.refusals import Refused
from quorate_protocol.units import DeclineReason

FETCH_SECONDS_MAX = 3600
STORE_SECONDS_MAX = 3600
STORE_SECONDS_LEAST = 5
# Assumed for an image of a registry: its size is not known before its manifest is read.
REGISTRY_IMAGE_BYTES = 2 << 30


class DeclineCause(Struct, frozen=True):
    """Why the provider declines. `text` is for its owner's log and status."""

    reason: DeclineReason
    text: str


class Bid(Struct, frozen=True):
    """The Assignment and spec to decide about, and the provider's terms."""

    assignment: Assignment
    spec: JobSpec
    terms: Terms


Check = Callable[[Bid], DeclineCause | None]


def decide(bid: Bid) -> DeclineCause | None:
    """The first reason not to run the job.

    None means that the job fits this provider whenever a slot is free.
    """
    for check in CHECKS:
        answer = check(bid)
        if answer is not None:
            return answer
    return None


def _is_consistent(bid: Bid) -> DeclineCause | None:
    """The spec must be the one that the Assignment names, with the same duration."""
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


def _is_caseable(bid: Bid) -> DeclineCause | None:
    """A sealed or networked job is declined.

    A jury could not repeat it, and this node cannot run it.
    """
    if bid.spec.sealed or bid.spec.network:
        return DeclineCause(DeclineReason.MISMATCH, "the job is sealed or wants the network")
    return None


def _is_kind_taken(bid: Bid) -> DeclineCause | None:
    if bid.spec.kind not in bid.terms.policy.kinds:
        return DeclineCause(
            DeclineReason.KIND, f"jobs of kind {bid.spec.kind.name.lower()} are not taken"
        )
    return None


def _is_valid(bid: Bid) -> DeclineCause | None:
    """A spec that no provider may run is declined and never reaches the executor."""
    try:
        validate(bid.spec)
    except Refused as refused:  # not re-raised: the provider answers with a signed Decline
        return DeclineCause(DeclineReason.MISMATCH, refused.detail)
    return None


def _is_host_class_offered(bid: Bid) -> DeclineCause | None:
    if bid.terms.slot(bid.assignment.host_class) is None:
        return DeclineCause(DeclineReason.MISMATCH, "no slot of that host class is offered")
    return None


def _is_paid_enough(bid: Bid) -> DeclineCause | None:
    """The price must reach the owner's floor and the cheapest tier offered."""
    slot = bid.terms.slot(bid.assignment.host_class)
    offered = (
        [price for price in (slot.spot, slot.on_demand, slot.reserved) if price] if slot else []
    )
    least = max(bid.terms.policy.price_floor, min(offered, default=0))
    if bid.assignment.price_per_hour < least:
        return DeclineCause(
            DeclineReason.PRICE,
            f"{bid.assignment.price_per_hour} micro-USD an hour is below {least}",
        )
    return None


def _is_image_allowed(bid: Bid) -> DeclineCause | None:
    allowed = bid.terms.policy.images
    if allowed and bid.spec.image not in allowed:
        return DeclineCause(
            DeclineReason.IMAGE, f"image {bid.spec.image} is not on the owner's list"
        )
    return None


def _is_sandbox_fit(bid: Bid) -> DeclineCause | None:
    """A job may demand a sandbox.

    A provider without a container engine cannot run images from a registry.
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


def _is_room(bid: Bid) -> DeclineCause | None:
    """Each resource that the job asks for must fit into one run slot.

    The size of a registry's image is checked when it is fetched.
    """
    wanted, slot_resources = bid.spec.resources, bid.terms.policy.slot_resources
    pairs = (
        ("cpu", wanted.cpu_millis, slot_resources.cpu_millis),
        ("memory", wanted.memory_bytes, slot_resources.memory_bytes),
        ("scratch", wanted.scratch_bytes, slot_resources.scratch_bytes),
        ("output", wanted.output_bytes, slot_resources.output_bytes),
        (
            "inputs",
            sum(item.size_bytes for item in bid.spec.inputs) + bid.spec.image_bytes,
            slot_resources.input_bytes,
        ),
        ("gpus", wanted.gpu.count if wanted.gpu else 0, slot_resources.gpus),
        ("vram", wanted.gpu.vram_bytes_min if wanted.gpu else 0, slot_resources.vram_bytes),
    )
    for name, asked, given in pairs:
        if asked > given:
            return DeclineCause(
                DeclineReason.RESOURCES, f"{name}: the job asks for {asked}, a slot has {given}"
            )
    return None


CHECKS: tuple[Check, ...] = (
    _is_consistent,
    _is_caseable,
    _is_kind_taken,
    _is_valid,
    _is_host_class_offered,
    _is_paid_enough,
    _is_image_allowed,
    _is_sandbox_fit,
    _is_room,
)


def quoted_fetch_seconds(bid: Bid) -> int:
    """How long fetching may take, at most an hour.

    It becomes part of the deadline, so it is generous.
    """
    image = bid.spec.image_bytes if is_image_cid(bid.spec.image) else REGISTRY_IMAGE_BYTES
    size = sum(item.size_bytes for item in bid.spec.inputs) + image
    return min(FETCH_SECONDS_MAX, 10 + size // bid.terms.policy.input_bytes_per_second)


def quoted_store_seconds(bid: Bid) -> int:
    """How long sealing and uploading the output may take, at most an hour."""
    size = bid.spec.resources.output_bytes
    return min(
        STORE_SECONDS_MAX, STORE_SECONDS_LEAST + size // bid.terms.policy.upload_bytes_per_second
    )
