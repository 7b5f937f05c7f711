"""Chooses the engine that answers a claim: the claimed GPU, or numpy for a CPU."""

from quorate_attestation.catalogue import CPU
from quorate_attestation.challenge import GpuClaim
from quorate_attestation.provers.cuda_device import open_gpu
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.kernel_engine import KernelEngine
from quorate_attestation.provers.numpy_engine import NumpyEngine


def engine_of(claim: GpuClaim) -> Engine:
    """Raises Unavailable with the remedy. A GPU is never answered for by the CPU."""
    return NumpyEngine() if claim.model == CPU.name else KernelEngine(open_gpu(claim.uuid))
