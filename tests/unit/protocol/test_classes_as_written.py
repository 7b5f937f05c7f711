"""Tests that host, determinism and job classes are the hashes that PROTOCOL §2 states.

The environment fixes the variables that it names.
"""

import pytest
from eth_abi.abi import encode

from quorate.job.pool import class_name, name_of, parse_pool
from quorate_node.machine.host_probe import detect_cpu_class
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.classes import (
    CPU_ENVIRONMENT,
    GPU_ENVIRONMENT,
    GVISOR,
    Pool,
    determinism_class,
    environment_digest,
    job_class,
)
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.units import Comparator, Hash32, JobKind, Small
from quorate_protocol.values import replace

CPU = Pool("x86_64", "v3", "AuthenticAMD")
GPU = Pool("hopper", sm_count=132, mig_profile="1g.10gb", driver_branch="550", world_size=Small(2))
IMAGE = Hash32(b"\x0a" * 32)


@pytest.mark.rule("2.18", "2.20")
def test_class_ids_are_hashes_of_what_decides_the_result_bits() -> None:
    text = ["string", "string", "string", "string"]
    assert CPU.id() == keccak256(encode(text, ["cpu", "x86_64", "v3", "AuthenticAMD"]))
    gpu = encode(
        ["string", "string", "uint256", "string", "string", "uint256"],
        ["gpu", "hopper", 132, "1g.10gb", "550", 2],
    )
    assert GPU.id() == keccak256(gpu)
    pinned = CPU.environment()
    expected = keccak256(encode(["bytes32"] * 3, [CPU.id(), IMAGE, environment_digest(pinned)]))
    assert determinism_class(CPU.id(), IMAGE, pinned) == expected
    others = (
        replace(CPU, level="v4"),
        replace(CPU, vendor="GenuineIntel"),
        replace(CPU, architecture="aarch64"),
    )
    assert len({CPU.id(), *(other.id() for other in others)}) == 4


@pytest.mark.rule("2.18", "2.27")
def test_jobs_in_gvisor_have_pools_of_their_own() -> None:
    """So only providers with gVisor audit each other, and both classes can be named."""
    plain, in_gvisor = detect_cpu_class(Sandbox.BWRAP), detect_cpu_class(Sandbox.DOCKER_RUNSC)
    in_gvisor.validate()
    assert in_gvisor.level == plain.level + GVISOR and plain == detect_cpu_class()
    assert plain == detect_cpu_class(Sandbox.DOCKER_RUNC)
    assert plain.id() != in_gvisor.id() == parse_pool(class_name(in_gvisor))
    assert name_of(in_gvisor.id()).endswith(f"{GVISOR}/{plain.vendor}")
    pinned = plain.environment()
    assert pinned == in_gvisor.environment()
    classes = {determinism_class(host.id(), IMAGE, pinned) for host in (plain, in_gvisor)}
    assert len(classes) == 2


@pytest.mark.rule("2.21")
def test_the_environment_fixes_the_variables_that_select_code_paths() -> None:
    pinned = dict(CPU_ENVIRONMENT)
    assert {
        pinned[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    } == {"1"}, "BLAS threads"
    assert {
        "OPENBLAS_CORETYPE",
        "NPY_DISABLE_CPU_FEATURES",
        "MKL_CBWR",
        "GLIBC_TUNABLES",
    } <= pinned.keys()
    assert set(CPU_ENVIRONMENT) < set(GPU_ENVIRONMENT)
    changed = tuple(sorted({**pinned, "OMP_NUM_THREADS": "2"}.items()))
    assert determinism_class(CPU.id(), IMAGE, changed) != determinism_class(
        CPU.id(), IMAGE, CPU.environment()
    )


@pytest.mark.rule("2.24")
def test_a_job_class_does_not_depend_on_the_image() -> None:
    """It depends only on job kind, comparator and pool. Otherwise a client's own image
    would be a new class, in which trust is easy to earn.
    """
    known = job_class(JobKind.TASK, Comparator.EXACT, CPU.id())
    assert known == keccak256(
        encode(
            ["uint256", "uint256", "bytes32"], [int(JobKind.TASK), int(Comparator.EXACT), CPU.id()]
        )
    )
    assert (
        known
        != job_class(JobKind.TASK, Comparator.NUMERIC, CPU.id())
        != job_class(JobKind.TASK, Comparator.EXACT, GPU.id())
    )
