"""Translates a job spec into the needs that the columns compare."""

from functools import lru_cache

from quorate_coordinator.core.matching.row import FREE, KIND_BIT, PRESENT, PRICED, STAKED, Needs
from quorate_protocol.messages.job_spec import JobSpec, Resources
from quorate_protocol.units import JobKind


def needs_of(spec: JobSpec) -> Needs:
    """The needs of a job: a free machine with a price that can run it."""
    return _needs(spec.kind, spec.resources)


@lru_cache(maxsize=4096)
def _needs(kind: JobKind, resources: Resources) -> Needs:
    bits = PRESENT | FREE | PRICED | 1 << KIND_BIT + kind
    gpu = resources.gpu
    if gpu is not None:
        return Needs(
            bits, resources.memory_bytes, 0, gpu.count, gpu.vram_bytes_min, gpu.model.lower()
        )
    return Needs(bits, resources.memory_bytes, -(-resources.cpu_millis // 1000))


@lru_cache(maxsize=4096)
def busy_or_not(needs: Needs) -> Needs:
    """The same needs, met also by busy machines."""
    return needs._replace(bits=needs.bits & ~FREE)


@lru_cache(maxsize=4096)
def staked(needs: Needs) -> Needs:
    """The same needs, met only by owners with a stake."""
    return needs._replace(bits=needs.bits | STAKED)
