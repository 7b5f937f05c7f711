"""Pools, determinism classes and job classes (PROTOCOL §2).

Providers stake and are drawn in a pool. Two executions of one determinism class must give equal
results, bit for bit; of two classes they may. A provider earns trust in one job class.
"""

import re
from functools import lru_cache

from msgspec import Struct

from quorate_protocol.codec.canonical import canonical
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Comparator, Hash32, JobKind, Small

CPU_ARCHITECTURES = ("x86_64", "aarch64")
CPU_LEVELS = ("v1", "v2", "v3", "v4", "armv8")
GVISOR = "gvisor"  # a kernel of its own, with other results than the machine's
SM_COUNT_MAX = 65_535
GPU_NAME_MAX = 64
GPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+/-]{0,63}")
_MIG_PROFILE = re.compile(r"[a-z0-9.+-]{0,32}")
_BRANCH = re.compile(r"[0-9]{1,6}")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")

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
"""Variables that make libraries take the same code paths on every CPU of a level.

They are part of every determinism class, and every executor sets them.
"""

_OLD_CORES = {"v1": "Prescott", "v2": "Nehalem", "armv8": "ARMV8"}  # below Haswell

GPU_ENVIRONMENT: tuple[tuple[str, str], ...] = (
    *CPU_ENVIRONMENT,
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ("NVIDIA_TF32_OVERRIDE", "0"),
)


class Pool(Struct, frozen=True):
    """What is staked in and drawn from: the exact product, and how many of it a run slot holds. All
    CPUs are one pool.
    """

    gpu: str = ""  # the catalogue's name of the model, or else the driver's; "" = CPUs
    mig_profile: str = ""  # of a partition; "" = the whole GPU
    gpus: Small = Small(0)  # in one run slot

    @property
    def is_gpu(self) -> bool:
        return bool(self.gpu)

    def validate(self) -> None:
        """Raises `Refused(MALFORMED)` unless it is one that can be."""
        good = (
            GPU_NAME.fullmatch(self.gpu) is not None and self.gpus > 0
            if self.is_gpu
            else not self.gpus and not self.mig_profile
        )
        if not good or not _MIG_PROFILE.fullmatch(self.mig_profile):
            raise Refused(Code.MALFORMED, f"pool: {str(self)[:300]} is not a pool")

    def __str__(self) -> str:
        profile = f"/{self.mig_profile}" if self.mig_profile else ""
        several = f"{self.gpus}x " if self.gpus > 1 else ""
        return f"{several}{self.gpu}{profile}" if self.is_gpu else "cpu"

    def id(self) -> Hash32:
        """H("pool", model, MIG profile, GPUs in a run slot)."""
        return _pool_id(self)


CPUS = Pool()


def pools_id(pools: tuple[Hash32, ...]) -> Hash32:
    """`Ack.pool`: the only one, or H("pools", ids in order) of several."""
    return pools[0] if len(pools) == 1 else hash_tuple("pools", *pools)


class Host(Struct, frozen=True):
    """What of a machine decides the bits of a result beside the pool. Its provider says so."""

    architecture: str  # of the CPU
    level: str  # of the CPU: the x86-64 micro-architecture level as seen inside the sandbox
    sandbox: str = ""  # "gvisor", or "" for all that share the machine's kernel
    capability: str = ""  # of the GPU, e.g. "9.0"; "" without one
    sm_count: int = 0  # of the GPU or partition: streaming multiprocessors
    driver: str = ""  # branch of the GPU's driver, e.g. "550"

    def validate(self, is_gpu: bool) -> None:
        """Raises `Refused(MALFORMED)` unless this module knows every value."""
        good = self.architecture in CPU_ARCHITECTURES and self.level in CPU_LEVELS
        good = good and self.sandbox in ("", GVISOR)
        if is_gpu:
            good = (
                good
                and _CAPABILITY.fullmatch(self.capability) is not None
                and 0 < self.sm_count <= SM_COUNT_MAX
                and _BRANCH.fullmatch(self.driver) is not None
            )
        else:
            good = good and not self.capability and not self.sm_count and not self.driver
        if not good:
            raise Refused(Code.MALFORMED, f"host: {str(self)[:300]} is not a known machine")

    def environment(self) -> tuple[tuple[str, str], ...]:
        """The variables that every execution on such a machine gets."""
        found = dict(GPU_ENVIRONMENT if self.capability else CPU_ENVIRONMENT)
        found["OPENBLAS_CORETYPE"] = _OLD_CORES.get(self.level, found["OPENBLAS_CORETYPE"])
        return tuple(sorted(found.items()))

    def digest(self) -> Hash32:
        """H("host", all fields, sha2-256 of `environment` as canonical JSON)."""
        return _host_digest(self)

    def __str__(self) -> str:
        gpu = f"{self.capability}/{self.sm_count}/{self.driver} " if self.capability else ""
        return f"{gpu}{self.architecture}-{self.level}{'-' * bool(self.sandbox)}{self.sandbox}"


@lru_cache(maxsize=4096)
def _pool_id(pool: Pool) -> Hash32:
    """Results are kept, because each offer and each order needs one."""
    return hash_tuple("pool", pool.gpu, pool.mig_profile, pool.gpus)


@lru_cache(maxsize=4096)
def _host_digest(host: Host) -> Hash32:
    return hash_tuple(
        "host",
        host.architecture,
        host.level,
        host.sandbox,
        host.capability,
        host.sm_count,
        host.driver,
        environment_digest(host.environment()),
    )


def environment_digest(environment: tuple[tuple[str, str], ...]) -> Hash32:
    """sha2-256 of the canonical JSON of a determinism environment."""
    return sha256(canonical(dict(environment)))


@lru_cache(maxsize=4096)
def determinism_class(pool: Hash32, host: Hash32, image_digest: Hash32, profile: Hash32) -> Hash32:
    """`Commit.class_id`: H(pool, digest of the host, image digest, digest of the profile)."""
    return hash_tuple(pool, host, image_digest, profile)


@lru_cache(maxsize=4096)
def job_class(kind: JobKind, comparator: Comparator, pool: Hash32) -> Hash32:
    """Id of the class in which a provider earns trust: H(kind, comparator, pool). Neither the image
    nor the client is part of it.
    """
    return hash_tuple(int(kind), int(comparator), pool)
