"""Pools, determinism classes and job classes (PROTOCOL §2).

Two executions of one determinism class must give equal results, bit for bit. A provider earns
trust in one job class.
"""

import re
from functools import lru_cache

from msgspec import Struct

from quorate_protocol.codec.canonical import canonical
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Comparator, Hash32, JobKind, Small

CPU_ARCHITECTURES = ("x86_64", "aarch64")
GVISOR = "-gvisor"  # ends the level of a class whose jobs run in gVisor, a kernel of its own
_PLAIN_LEVELS = ("v1", "v2", "v3", "v4", "armv8")
CPU_LEVELS = (*_PLAIN_LEVELS, *(f"{level}{GVISOR}" for level in _PLAIN_LEVELS))
CPU_VENDORS = ("AuthenticAMD", "GenuineIntel", "ARM", "other")
SM_COUNT_MAX = 65_535
MIG_PROFILE_MAX = 32
_BRANCH = re.compile(r"[0-9]{1,6}")
GPU_ARCHITECTURES = ("turing", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3")

CPU_ENVIRONMENT: tuple[tuple[str, str], ...] = (
    ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F,-AVX512VL"),
    ("MKL_CBWR", "COMPATIBLE"),
    ("MKL_NUM_THREADS", "1"),
    ("NPY_DISABLE_CPU_FEATURES", "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_CORETYPE", "Haswell"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("PYTHONHASHSEED", "0"),
)
"""Variables that make libraries take the same code paths on every CPU of a class.

They are part of every determinism class, and every executor sets them.
"""

GPU_ENVIRONMENT: tuple[tuple[str, str], ...] = (
    *CPU_ENVIRONMENT,
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ("NVIDIA_TF32_OVERRIDE", "0"),
)


class Pool(Struct, frozen=True):
    """The properties of a machine on which the bits of a result depend. For a CPU class the GPU
    fields are empty or zero, and the other way round.
    """

    architecture: str  # CPU or GPU architecture, one of those above
    # CPU: x86-64 micro-architecture level as seen inside the sandbox, and "-gvisor" if that is one
    level: str = ""
    vendor: str = ""  # CPU vendor
    sm_count: int = 0  # GPU: streaming multiprocessors
    mig_profile: str = ""  # GPU: profile of a partition; empty = the whole GPU
    driver_branch: str = ""  # GPU: e.g. "550"
    world_size: Small = Small(1)  # GPU: count of GPUs that work together

    @property
    def is_gpu(self) -> bool:
        return self.architecture in GPU_ARCHITECTURES

    def validate(self) -> None:
        """Raises `Refused(MALFORMED)` unless this module knows every value."""
        if self.is_gpu:
            good = (
                0 < self.sm_count <= SM_COUNT_MAX
                and _BRANCH.fullmatch(self.driver_branch) is not None
            )
            good = (
                good
                and len(self.mig_profile) <= MIG_PROFILE_MAX
                and not self.level
                and not self.vendor
            )
        else:
            good = (
                self.architecture in CPU_ARCHITECTURES
                and self.level in CPU_LEVELS
                and self.vendor in CPU_VENDORS
            )
            good = good and not self.sm_count and not self.driver_branch and not self.mig_profile
            good = good and self.world_size == 1
        if not good:
            raise Refused(Code.MALFORMED, f"pool: {str(self)[:300]} is not a known class")

    def id(self) -> Hash32:
        """32-byte id of the class. GPU: H("gpu", architecture, SM count, MIG profile, driver
        branch, world size). CPU: H("cpu", architecture, level, vendor).
        """
        return _id_of(self)

    def environment(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(GPU_ENVIRONMENT if self.is_gpu else CPU_ENVIRONMENT))


@lru_cache(maxsize=4096)
def _id_of(host: Pool) -> Hash32:
    """Id of a pool; results are kept, because each offer and each order needs one."""
    if host.is_gpu:
        return hash_tuple(
            "gpu",
            host.architecture,
            host.sm_count,
            host.mig_profile,
            host.driver_branch,
            host.world_size,
        )
    return hash_tuple("cpu", host.architecture, host.level, host.vendor)


def environment_digest(environment: tuple[tuple[str, str], ...]) -> Hash32:
    """sha2-256 of the canonical JSON of a determinism environment."""
    return sha256(canonical(dict(environment)))


@lru_cache(maxsize=4096)
def determinism_class(
    pool: Hash32, image_digest: Hash32, environment: tuple[tuple[str, str], ...]
) -> Hash32:
    """`Commit.class_id`: H(pool, image digest, digest of the determinism environment)."""
    return hash_tuple(pool, image_digest, environment_digest(environment))


@lru_cache(maxsize=4096)
def job_class(kind: JobKind, comparator: Comparator, pool: Hash32) -> Hash32:
    """Id of the class in which a provider earns trust: H(kind, comparator, pool). Neither the
    image nor the client is part of it.
    """
    return hash_tuple(int(kind), int(comparator), pool)
