"""Translates a job spec into the needs that the columns are searched for."""

from functools import lru_cache

from quorate_attestation.gpu_match import names_called
from quorate_coordinator.core.model.row import (
    ATTESTED,
    FREE,
    KIND_BIT,
    ON_DEMAND,
    PRESENT,
    PRICED,
    REGISTRY,
    ROOM,
    SANDBOX_BIT,
    SPOT,
    STAKED,
    Needs,
)
from quorate_protocol.messages.job_spec import JobSpec, Resources, image_digest, is_image_cid
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.rules import quotes
from quorate_protocol.units import Hash32


def needs_of(spec: JobSpec) -> Needs:
    needs = _needs(
        _bits(spec) | sandbox_bits((spec.sandbox,)),
        spec.resources,
        spec.input_bytes(),
        quotes.bandwidth_least(spec),
        image_digest(spec.image),
    )
    return needs._replace(egress=spec.egress) if spec.egress else needs


def _bits(spec: JobSpec) -> int:
    bits = (SPOT if spec.spot else PRESENT) | PRICED | 1 << KIND_BIT + spec.kind
    bits |= ON_DEMAND | ROOM if spec.kind.is_rental and not spec.spot else FREE
    bits |= ATTESTED if spec.attestation_level else 0
    bits |= 0 if is_image_cid(spec.image) else REGISTRY
    return bits


_SANDBOX_BITS = {kind.value: 1 << SANDBOX_BIT + index for index, kind in enumerate(Sandbox)}


def sandbox_bits(names: tuple[str, ...]) -> int:
    """A name that this version does not know has no bit."""
    bits = 0
    for name in names:
        bits |= _SANDBOX_BITS.get(name, 0)
    return bits


@lru_cache(maxsize=4096)
def _needs(bits: int, resources: Resources, inputs: int, bandwidth: int, image: Hash32) -> Needs:
    needs = Needs(
        bits,
        resources.memory_bytes,
        resources.cpu_millis,
        scratch=resources.disk_scratch_bytes,
        output=resources.output_bytes,
        inputs=inputs,
        store=inputs + resources.output_bytes,
        bandwidth=bandwidth,
        image=image,
    )
    gpu = resources.gpu
    if gpu is None:
        return needs
    return needs._replace(
        gpus=gpu.count,
        vram=gpu.vram_bytes_min,
        models=tuple(sorted(names_called(gpu.model))),
        capability=gpu.compute_capability_min,
        cuda=gpu.cuda_min,
    )


@lru_cache(maxsize=4096)
def busy_or_not(needs: Needs) -> Needs:
    return needs._replace(bits=needs.bits & ~(FREE | ROOM))


@lru_cache(maxsize=4096)
def free(needs: Needs) -> Needs:
    return needs._replace(bits=needs.bits | FREE)


@lru_cache(maxsize=4096)
def staked(needs: Needs) -> Needs:
    return needs._replace(bits=needs.bits | STAKED)
