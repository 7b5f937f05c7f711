"""Offers and their slots, for tests that need one and do not look at most of its fields."""

from collections.abc import Sequence as Ordered

from quorate_attestation.catalogue import models
from quorate_protocol.messages.classes import CPUS, Host, Pool, determinism_class
from quorate_protocol.messages.job_spec import JobSpec, image_digest
from quorate_protocol.messages.offer import Hardware, Offer, SlotOffer
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Hash32,
    JobKind,
    Price,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace

GIB = 1 << 30
INVENTORY = Hardware(64, 256 * GIB, 1 << 41).digest()
MACHINE = Host("x86_64", "v3")
GPU_MACHINE = Host("x86_64", "v3", "", "8.9", 142, "550")


def machine_of(pool: Pool) -> Host:
    """MACHINE, or one with the GPU that the pool names."""
    found = next((model for model in models() if model.name == pool.gpu), None)
    if found is None or pool.mig_profile:
        return GPU_MACHINE if pool.is_gpu else MACHINE
    return replace(GPU_MACHINE, capability=found.compute_capability, sm_count=found.sm_count or 1)


def class_of(spec: JobSpec, host: Host = MACHINE, pool: Pool = CPUS) -> Hash32:
    """The determinism class of a job on such a machine."""
    image, profile = image_digest(spec.image), spec.profile().digest()
    return determinism_class(pool.id(), host.digest(), image, profile)


def a_slot(
    pool: Pool,
    price: int,
    count: int = 1,
    *,
    cpu_millis: int = 64_000,
    memory_bytes: int = 128 * GIB,
    disk_bytes: int = 1 << 40,
    vram_bytes: int = 48 * GIB,
    host: Host | None = None,
) -> SlotOffer:
    """Run slots of a pool at one on-demand price, on a machine that has it. `vram_bytes` is of a
    GPU pool; that of CPUs has none.
    """
    return SlotOffer(
        pool=pool,
        host=host or machine_of(pool),
        count=Small(count),
        vram_bytes=vram_bytes if pool.is_gpu else 0,
        cpu_millis=cpu_millis,
        memory_bytes=memory_bytes,
        scratch_bytes=disk_bytes,
        output_bytes=disk_bytes,
        input_bytes=disk_bytes,
        spot=Price(0),
        on_demand=Price(price),
        reserved=Price(0),
    )


def an_offer(owner: Address, seq: int, expires: int, slots: Ordered[SlotOffer]) -> Offer:
    """An offer of tasks in no sandbox, without addresses."""
    return Offer(
        provider=owner,
        seq=Sequence(seq),
        expires=UnixSeconds(expires),
        slots=tuple(slots),
        inventory=INVENTORY,
        sandboxes=("noop",),
        kinds=(JobKind.TASK,),
        region="eu",
        peer_key=ZERO_HASH,
        box_key=ZERO_HASH,
        addresses=(),
    )
