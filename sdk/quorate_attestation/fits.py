"""Whether one run slot of an offer can hold a job. Coordinator and provider ask this alone.

The offer's price, and what the owner's machine does at the moment, are asked elsewhere.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from quorate_attestation import gpu_match
from quorate_protocol.messages import egress
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.job_spec import JobSpec, image_digest, is_image_cid
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.quantity_input import size_text
from quorate_protocol.rules import quotes
from quorate_protocol.units import DeclineReason, Hash32, JobKind

WITHOUT_ENGINE = (Sandbox.BWRAP.value, Sandbox.PROCESS.value)
_RUNC, _RUNSC = Sandbox.DOCKER_RUNC.value, Sandbox.DOCKER_RUNSC.value


class Promise(Protocol):
    """What an offer says of all its slots."""

    @property
    def sandboxes(self) -> tuple[str, ...]: ...
    @property
    def kinds(self) -> tuple[JobKind, ...]: ...
    @property
    def images(self) -> tuple[Hash32, ...]: ...
    @property
    def store_bytes(self) -> int: ...
    @property
    def bandwidth(self) -> int: ...
    @property
    def egress(self) -> tuple[str, ...]: ...


def fits(spec: JobSpec, slot: SlotOffer, offer: Promise) -> bool:
    """Whether a run slot of an offer can hold the job."""
    return next(shortfalls(spec, slot, offer), None) is None


def pools_that_fit(spec: JobSpec, pools: Iterable[Pool]) -> tuple[Pool, ...]:
    """Those whose machines may hold the job, by what a stranger knows of a pool, in order of their
    ids.
    """
    gpu = spec.resources.gpu
    found = (it for it in pools if (gpu_match.may_fit(it, gpu) if gpu else not it.is_gpu))
    return tuple(sorted(found, key=Pool.id))


def are_pools_fitting(spec: JobSpec, pools: tuple[Pool, ...]) -> bool:
    """Whether an Ack may name these for the job. What fits the only one is its offers' word."""
    return len(pools) == 1 or pools_that_fit(spec, pools) == pools


def sandboxes_in(slot: SlotOffer, sandboxes: Collection[str]) -> tuple[str, ...]:
    """With GPUs, runc takes the place of gVisor."""
    return tuple(_RUNC if slot.pool.is_gpu and name == _RUNSC else name for name in sandboxes)


def takes_registry_images(sandboxes: Collection[str]) -> bool:
    """A sandbox without an engine takes only CIDs."""
    return any(name not in WITHOUT_ENGINE for name in sandboxes)


def shortfalls(
    spec: JobSpec, slot: SlotOffer, offer: Promise
) -> Iterator[tuple[DeclineReason, str]]:
    """The reason of a Decline, and in words."""
    wanted = spec.resources
    if spec.kind not in offer.kinds:
        yield DeclineReason.KIND, f"it runs no jobs of the kind {spec.kind.name.lower()}"
    if spec.kind.is_rental and slot.is_spot and not spec.spot:
        yield DeclineReason.KIND, "it rents at spot only; ask for spot, or for another owner"
    lacking = egress.lacking(offer.egress, spec.egress)
    if lacking:
        yield DeclineReason.KIND, f"its owner allows no egress to {', '.join(lacking)}"
    run_in = sandboxes_in(slot, offer.sandboxes)
    if spec.sandbox not in ("", *run_in):
        text = f"its sandbox is {', '.join(run_in)}, the job asks for {spec.sandbox}"
        yield DeclineReason.SANDBOX, text
    if not is_image_cid(spec.image) and not takes_registry_images(run_in):
        yield DeclineReason.SANDBOX, f"{', '.join(run_in)} runs only images named by CID"
    if offer.images and image_digest(spec.image) not in offer.images:
        yield DeclineReason.IMAGE, f"image {spec.image} is not on its owner's list"
    if wanted.cpu_millis > slot.cpu_millis:
        text = f"it has {slot.cpu_millis / 1000:g} cores, the job asks for "
        yield DeclineReason.RESOURCES, f"{text}{wanted.cpu_millis / 1000:g}"
    for name, asked, given in (
        ("memory", wanted.memory_bytes, slot.memory_bytes),
        ("disk for /scratch", wanted.disk_scratch_bytes, slot.scratch_bytes),
        ("output", wanted.output_bytes, slot.output_bytes),
        ("image and inputs", spec.input_bytes(), slot.input_bytes),
        ("store for image, inputs and output", spec.store_bytes(), offer.store_bytes),
    ):
        if asked > given:
            text = f"it has {size_text(given)} of {name}, the job asks for {size_text(asked)}"
            yield DeclineReason.RESOURCES, text
    seconds = quotes.fetch_seconds(quotes.fetch_bytes(spec), offer.bandwidth)
    most = quotes.start_within_seconds(spec)
    if seconds > most:
        text = f"it fetches image and inputs in {seconds} s, the job waits {most} s (start_within)"
        yield DeclineReason.RESOURCES, text
    if wanted.gpu is None and slot.pool.is_gpu:
        yield DeclineReason.RESOURCES, "the slot has GPUs, and the job asks for none"
    if wanted.gpu is not None:
        for text in gpu_match.shortfalls(slot, wanted.gpu):
            yield DeclineReason.RESOURCES, text
