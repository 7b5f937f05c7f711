"""Translates a job spec into the needs that the columns are searched for."""

from functools import lru_cache

from quorate_attestation.gpu_match import names_called
from quorate_coordinator.core.model.row import (
    ATTESTED,
    FREE,
    KIND_BIT,
    PRESENT,
    PRICED,
    REGISTRY,
    SANDBOX_BIT,
    STAKED,
    Needs,
)
from quorate_protocol.messages.job_spec import JobSpec, Resources, image_digest, is_image_cid
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.rules import quotes
from quorate_protocol.units import Hash32, JobKind


def needs_of(spec: JobSpec) -> Needs:
    return _needs(
        spec.kind,
        spec.sandbox,
        spec.resources,
        spec.attestation_level,
        spec.input_bytes(),
        quotes.bandwidth_least(spec),
        is_image_cid(spec.image),
        image_digest(spec.image),
    )


_SANDBOX_BITS = {kind.value: 1 << SANDBOX_BIT + index for index, kind in enumerate(Sandbox)}


def sandbox_bits(names: tuple[str, ...]) -> int:
    """A name that this version does not know has no bit."""
    bits = 0
    for name in names:
        bits |= _SANDBOX_BITS.get(name, 0)
    return bits


@lru_cache(maxsize=4096)
def _needs(
    kind: JobKind,
    sandbox: str,
    resources: Resources,
    attestation_level: int,
    inputs: int,
    bandwidth: int,
    is_cid: bool,
    image: Hash32,
) -> Needs:
    bits = PRESENT | FREE | PRICED | 1 << KIND_BIT + kind | sandbox_bits((sandbox,))
    bits |= (ATTESTED if attestation_level else 0) | (0 if is_cid else REGISTRY)
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
    return needs._replace(bits=needs.bits & ~FREE)


@lru_cache(maxsize=4096)
def staked(needs: Needs) -> Needs:
    return needs._replace(bits=needs.bits | STAKED)
