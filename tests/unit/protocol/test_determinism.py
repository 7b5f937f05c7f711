"""Tests determinism profiles: their variables, their digest, and what a job may set."""

import re

import pytest

from quorate_protocol.messages import job_spec
from quorate_protocol.messages.classes import GPU_ENVIRONMENT
from quorate_protocol.messages.determinism import PROFILES, SCRATCH, THREADS, Profile, profile_of
from quorate_protocol.messages.job_spec import MIB, EnvVar, GpuRequest, JobSpec, Resources
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH
from quorate_protocol.values import replace
from quorate_runtime.process.hook_folder import SOURCE
from support.markets.provider_world import make_spec

PLAIN = make_spec()
ON_GPU = replace(PLAIN, resources=Resources(100, 64 * MIB, 16 * MIB, gpu=GpuRequest(1, "", 0)))


def with_env(spec: JobSpec, **variables: str) -> JobSpec:
    env = tuple(EnvVar(name, value) for name, value in sorted(variables.items()))
    return replace(spec, env=env)


@pytest.mark.rule("2.35")
def test_a_job_with_gpus_has_the_torch_profile_unless_it_names_another() -> None:
    assert PLAIN.profile().name == "none" and ON_GPU.profile().name == "torch"
    for name in PROFILES:
        named = replace(ON_GPU, determinism=name)
        job_spec.validate(named)
        assert named.profile() is PROFILES[name]
    with pytest.raises(Refused, match="determinism: 'tensorflow' is not a profile; write one of"):
        job_spec.validate(replace(PLAIN, determinism="tensorflow"))


@pytest.mark.rule("2.35")
def test_a_spec_of_before_profiles_keeps_its_bytes() -> None:
    assert b"determinism" not in PLAIN.encode() and b"determinism" not in ON_GPU.encode()
    named = replace(PLAIN, determinism="jax")
    assert b'"determinism":"jax"' in named.encode()
    assert job_spec.decode(named.encode()) == named


@pytest.mark.rule("2.36")
def test_a_job_that_sets_a_variable_of_its_profile_otherwise_is_refused_by_name() -> None:
    other = with_env(ON_GPU, CUBLAS_WORKSPACE_CONFIG=":16:8")
    with pytest.raises(Refused) as refusal:
        job_spec.validate(other)
    assert refusal.value.code is Code.MALFORMED
    assert re.match("env: CUBLAS_WORKSPACE_CONFIG is ':4096:8'.*torch", refusal.value.detail)
    assert "leave it out, or write determinism: none" in refusal.value.detail
    job_spec.validate(replace(other, determinism="none"))
    job_spec.validate(with_env(ON_GPU, CUBLAS_WORKSPACE_CONFIG=":4096:8", LR="0.1"))
    job_spec.validate(with_env(PLAIN, OMP_NUM_THREADS="8"))


@pytest.mark.rule("2.36")
def test_the_profile_wins_over_the_job_and_the_pool_over_both() -> None:
    found = replace(with_env(ON_GPU, LR="1"), determinism="vllm").environment(GPU_ENVIRONMENT)
    assert found["LR"] == "1" and found["VLLM_BATCH_INVARIANT"] == "1"
    assert found["MKL_CBWR"] == "COMPATIBLE", "of the pool"
    bare = with_env(ON_GPU, OMP_NUM_THREADS="8", LR="1")
    bare = replace(bare, determinism="none")
    assert bare.environment(()) == {"LR": "1", "OMP_NUM_THREADS": "8"}


@pytest.mark.rule("2.21", "2.36", "2.37")
@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("variable", THREADS)
def test_counts_of_threads_are_the_jobs_and_part_of_its_class(name: str, variable: str) -> None:
    plain = replace(PLAIN, determinism=name)
    eight, one = (with_env(plain, **{variable: count, "LR": "1"}) for count in ("8", "1"))
    job_spec.validate(eight)
    assert eight.environment(GPU_ENVIRONMENT)[variable] == "8"
    assert eight.profile().digest() != plain.profile().digest() == one.profile().digest()
    assert eight.profile().digest() != with_env(plain, **{variable: "4"}).profile().digest()
    for wrong in ("", "0", "-1", "8,2", "eight", "99999"):
        with pytest.raises(Refused, match=f"env: {variable} is '{wrong}'; write a number"):
            job_spec.validate(with_env(plain, **{variable: wrong}))


@pytest.mark.rule("2.21", "2.35")
@pytest.mark.parametrize("name", PROFILES)
def test_no_profile_contradicts_the_environment_of_a_pool(name: str) -> None:
    pinned, variables = dict(GPU_ENVIRONMENT), dict(PROFILES[name].variables)
    assert {key: variables[key] for key in variables.keys() & pinned.keys()}.items() <= (
        pinned.items()
    )
    assert list(variables) == sorted(variables) and len(variables) == len(PROFILES[name].variables)
    assert all(value.startswith(SCRATCH) for key, value in variables.items() if "CACHE" in key)
    assert "TORCH_DETERMINISTIC" not in pinned, "nothing reads it"


@pytest.mark.rule("2.37")
def test_the_digest_of_a_profile_covers_name_variables_and_hook() -> None:
    torch = PROFILES["torch"]
    others = [
        replace(torch, name="torch2"),
        replace(torch, variables=torch.variables[1:]),
        replace(torch, hook=ZERO_HASH),
    ]
    digests = {item.digest() for item in (torch, *others, *PROFILES.values())}
    assert len(digests) == len(PROFILES) + len(others)
    assert Profile("torch", torch.variables, torch.hook).digest() == torch.digest()
    assert profile_of("", needs_gpu=True).digest() == torch.digest()


@pytest.mark.rule("2.37")
def test_the_torch_profile_names_the_hook_that_is_installed() -> None:
    from quorate_protocol.codec.hashing import sha256

    found = sha256(SOURCE.read_bytes())
    assert found == PROFILES["torch"].hook, f"TORCH_HOOK in determinism.py: {found.hex()}"
