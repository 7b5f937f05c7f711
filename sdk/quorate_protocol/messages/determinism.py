"""Determinism profiles: which variables make a framework compute the same bits twice (2.35).

A job names one profile. The node sets the profile's variables, which win over those of the image,
and mounts the profile's import hook where it has one.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.classes import environment_digest
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Hash32
from quorate_protocol.values import replace

NONE, TORCH, JAX, VLLM = "none", "torch", "jax", "vllm"
SCRATCH = "/scratch"
TORCH_HOOK = Hash32(
    bytes.fromhex("19092f710b74350d3af919bcdb2b0b4400a374eb5414ca0f8220d028a662cc07")
)
"""sha2-256 of `quorate_runtime/process/import_hook.py`. Another hook is another environment."""

_LIBRARIES = (
    # cuBLAS, "Results Reproducibility": one fixed workspace for each stream.
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    # NVIDIA, "Accelerating AI Training with TF32": 0 keeps libraries from rounding to TF32.
    ("NVIDIA_TF32_OVERRIDE", "0"),
    # NCCL, "Environment Variables": the order of a ring's sums is fixed, that of NVLS is not.
    ("NCCL_ALGO", "Ring"),
    ("NCCL_NVLS_ENABLE", "0"),
    # The order of a sum on a CPU depends on the count of threads. Names: OpenMP, MKL, OpenBLAS,
    # NumExpr ("Threadpool Configuration").
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("NUMEXPR_NUM_THREADS", "1"),
    # Python, "Command line and environment": the order of sets of texts.
    ("PYTHONHASHSEED", "0"),
)
_COMPILERS = (
    # PyTorch 2.13, torch/_inductor/config.py: no choice by measurement where it changes numbers.
    ("TORCHINDUCTOR_DETERMINISTIC", "1"),
    # torch/_inductor/runtime/cache_dir_utils.py: compiled kernels stay in the lease.
    ("TORCHINDUCTOR_CACHE_DIR", f"{SCRATCH}/.cache/inductor"),
    # Triton, triton/knobs.py.
    ("TRITON_CACHE_DIR", f"{SCRATCH}/.cache/triton"),
)
_TORCH = (
    *_LIBRARIES,
    *_COMPILERS,
    # transformers, modeling_flash_attention_utils.py.
    ("FLASH_ATTENTION_DETERMINISTIC", "1"),
    # Transformer Engine, "Environment variables"; Megatron-LM --deterministic-mode asks for it.
    ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"),
)
_JAX = (
    *_LIBRARIES,
    # XLA, xla/debug_options_flags.cc: refuses operations without a deterministic form, and chooses
    # no kernel by measurement.
    ("XLA_FLAGS", "--xla_gpu_exclude_nondeterministic_ops=true --xla_gpu_autotune_level=0"),
)
_VLLM = (
    *_LIBRARIES,
    *_COMPILERS,
    # vLLM, "Batch Invariance": a request's bits do not depend on the others of its batch.
    ("VLLM_BATCH_INVARIANT", "1"),
    # vLLM, "Reproducibility": offline, the scheduler runs in the program's own process.
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    # vllm/envs.py: its autotuners. That of FlashInfer has no variable, only an engine argument.
    ("VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE", "0"),
    ("VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING", "0"),
    ("VLLM_CACHE_ROOT", f"{SCRATCH}/.cache/vllm"),
)


THREADS = ("MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Pinned to one thread, unless the job's own `env` says otherwise (2.36)."""

_THREAD_COUNT = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


class Profile(Struct, frozen=True):
    """The environment that a job asks for by name."""

    name: str
    variables: tuple[tuple[str, str], ...] = ()  # sorted by name
    hook: Hash32 = ZERO_HASH  # sha2-256 of what each Python runs when it starts; zero = nothing

    def digest(self) -> Hash32:
        """H(name, sha2-256 of the variables as canonical JSON, hook)."""
        return hash_tuple("environment", self.name, environment_digest(self.variables), self.hook)


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(NONE),
        Profile(TORCH, tuple(sorted(_TORCH)), TORCH_HOOK),
        Profile(JAX, tuple(sorted(_JAX))),
        Profile(VLLM, tuple(sorted(_VLLM))),
    )
}


def own_threads(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Thread variables that a job sets to another value than the pinned one.

    Raises Refused(MALFORMED) for a value that is no count.
    """
    found = {name: value for name, value in given if name in THREADS}
    for name, value in found.items():
        if not _THREAD_COUNT.fullmatch(value):
            raise Refused(
                Code.MALFORMED, f"env: {name} is {value[:40]!r}; write a number, 1 to 9999"
            )
    return {name: value for name, value in found.items() if value != "1"}


def with_threads(profile: Profile, threads: Mapping[str, str]) -> Profile:
    """The counts of threads become part of the profile, and so of the determinism class."""
    if not threads:
        return profile
    variables = tuple(sorted({**dict(profile.variables), **threads}.items()))
    return replace(profile, variables=variables)


def digests() -> dict[str, str]:
    """Profile -> its digest in hex: what a provider of this version makes of each name."""
    return {name: f"0x{profile.digest().hex()}" for name, profile in PROFILES.items()}


def profile_of(name: str, needs_gpu: bool) -> Profile:
    """An empty name is the default: `torch` with GPUs, else `none`. Raises Refused(MALFORMED)."""
    found = PROFILES.get(name or (TORCH if needs_gpu else NONE))
    if found is None:
        raise Refused(
            Code.MALFORMED,
            f"determinism: {name[:64]!r} is not a profile; write one of {', '.join(PROFILES)}, or "
            "leave it out",
        )
    return found


def check_variables(profile: Profile, given: Iterable[tuple[str, str]]) -> None:
    """Raises Refused(MALFORMED) for a variable that a job sets to another value than its profile.

    A silent override would leave the client with a program that runs otherwise than it wrote.
    """
    pinned = dict(profile.variables)
    for name, value in given:
        if pinned.get(name, value) != value:
            raise Refused(
                Code.MALFORMED,
                f"env: {name} is {pinned[name]!r} in the determinism profile {profile.name}; leave "
                f"it out, or write determinism: {NONE}",
            )
