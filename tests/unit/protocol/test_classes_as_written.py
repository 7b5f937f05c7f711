"""Tests that host, determinism and job classes are the hashes that PROTOCOL §2 states.

The environment fixes the variables that it names.
"""

from pathlib import Path

import pytest
from eth_abi.abi import encode

from quorate_node.base.config import Config
from quorate_node.machine.host_probe import detect_host
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.classes import (
    CPU_ENVIRONMENT,
    CPUS,
    GPU_ENVIRONMENT,
    GVISOR,
    Host,
    Pool,
    determinism_class,
    environment_digest,
    job_class,
)
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.units import Comparator, Hash32, JobKind, Small
from quorate_protocol.values import replace

CPU = CPUS
GPU = Pool("H100 SXM", "1g.10gb", Small(2))
IMAGE, PROFILE = Hash32(b"\x0a" * 32), Hash32(b"\x0b" * 32)


@pytest.mark.rule("2.18", "2.20")
def test_class_ids_are_hashes_of_what_decides_the_result_bits() -> None:
    pool = encode(["string", "string", "string", "uint256"], ["pool", "H100 SXM", "1g.10gb", 2])
    assert GPU.id() == keccak256(pool)
    host = Host("x86_64", "v3", "", "9.0", 132, "550")
    facts = ["host", "x86_64", "v3", "", "9.0", 132, "550"]
    types = [*["string"] * 5, "uint256", "string", "bytes32"]
    pinned = environment_digest(host.environment())
    assert host.digest() == keccak256(encode(types, [*facts, pinned]))
    named = [GPU.id(), host.digest(), IMAGE, PROFILE]
    expected = keccak256(encode(["bytes32"] * 4, named))
    assert determinism_class(GPU.id(), host.digest(), IMAGE, PROFILE) == expected
    others = [
        replace(host, level="v4"),
        replace(host, architecture="aarch64"),
        replace(host, sandbox=GVISOR),
        replace(host, capability="8.9"),
        replace(host, sm_count=131),
        replace(host, driver="570"),
    ]
    assert len({host.digest(), *(other.digest() for other in others)}) == 7


@pytest.mark.rule("2.18", "2.27")
def test_jobs_in_gvisor_are_of_one_pool_and_a_class_of_their_own() -> None:
    plain, in_gvisor = detect_host(Sandbox.BWRAP), detect_host(Sandbox.DOCKER_RUNSC)
    in_gvisor.validate(is_gpu=False)
    assert in_gvisor == replace(plain, sandbox=GVISOR) and plain == detect_host()
    assert plain == detect_host(Sandbox.DOCKER_RUNC)
    assert plain.environment() == in_gvisor.environment()


@pytest.mark.rule("2.21")
def test_an_owner_may_run_jobs_as_on_older_cpus() -> None:
    older = detect_host(None, Config(home=Path("/"), coordinators=(), cpu_level="v1"))
    assert older.level == "v1" and older.digest() != detect_host().digest()
    assert dict(older.environment())["OPENBLAS_CORETYPE"] == "Prescott"


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
