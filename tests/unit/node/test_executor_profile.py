"""Tests the container request, a pure function: no job can get more rights."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import quorate_node.executors
from quorate_node.executors.base.hardened_profile import (
    START_TARGET,
    ContainerMounts,
    EngineFacts,
    ImageFacts,
    check_targets,
    container_request,
    program_env,
)
from quorate_node.executors.base.lease import exit_status
from quorate_node.executors.base.start_program import (
    BIND_ALL,
    IGNORE_SET_USER,
    MAKE_READ_ONLY,
    NEW_NAMESPACES,
)
from quorate_protocol.messages.determinism import PROFILES
from quorate_protocol.messages.ports import Task
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Milliseconds, Seconds
from support.executors.executor_cases import MIB, python_task

ENGINE = EngineFacts(seccomp="{}", cgroup_parent="/quorate")
IMAGE = ImageFacts(
    "sha256:ab",
    ("PATH=/bin", "LD_PRELOAD=/evil.so", "NVIDIA_VISIBLE_DEVICES=all"),
    ("/entry",),
    ("one",),
    True,
)
PLACES = ContainerMounts((("/store/a", "/inputs/a"),), "/leases/x/outputs", is_volume=False)
GPU = "GPU-8a5b2c1d-0000-0000-0000-000000000000"


def request(
    task: Task,
    engine: EngineFacts = ENGINE,
    image: ImageFacts = IMAGE,
    places: ContainerMounts = PLACES,
) -> dict[str, object]:
    return container_request(task, "owner", engine, image, places)


def host(
    task: Task, engine: EngineFacts = ENGINE, places: ContainerMounts = PLACES
) -> Mapping[str, object]:
    config = request(task, engine, places=places)["HostConfig"]
    assert isinstance(config, dict)
    return config


def test_profile_is_hardened() -> None:
    config = host(python_task("x", "", pids=9, cpu_millis=1500, memory_bytes=64 * MIB))
    expected = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "Privileged": False,
        "Init": True,
        "PidsLimit": 9,
        "Memory": 64 * MIB,
        "MemorySwap": 64 * MIB,
        "NanoCpus": 1_500_000_000,
        "SecurityOpt": ["no-new-privileges", "seccomp={}"],
        "LogConfig": {"Type": "none", "Config": {}},
        "IpcMode": "private",
        "ShmSize": 16 * MIB,
        "OomScoreAdj": 1000,
    }
    assert {name: config[name] for name in expected} == expected
    privileges = "Binds CapAdd Devices PidMode UsernsMode DeviceRequests GroupAdd Sysctls"
    assert not {*privileges.split(), "PortBindings"} & set(config)


def test_our_start_program_comes_first_and_alone_may_make_a_user_namespace() -> None:
    places = replace(PLACES, user=70_000, start="/leases/x/start")
    engine = EngineFacts(seccomp='{"syscalls": []}')
    body = request(python_task("x", ""), engine, ImageFacts("x", (), (), (), True), places)
    assert body["User"] == "70000:70000"
    assert body["Entrypoint"][:2] == [START_TARGET, "python3"]  # type: ignore[index]
    config = host(python_task("x", ""), engine, places)
    assert {
        "Type": "bind",
        "Source": "/leases/x/start",
        "Target": START_TARGET,
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rprivate"},
    } in config["Mounts"]
    added = json.loads(config["SecurityOpt"][1].removeprefix("seccomp="))["syscalls"]
    assert [(rule["names"], rule["args"][0]["value"]) for rule in added] == [
        (["unshare"], NEW_NAMESPACES),
        (["mount"], BIND_ALL),
        (["mount"], MAKE_READ_ONLY),
        (["mount"], IGNORE_SET_USER),
    ]


def test_loader_and_gpu_variables_of_an_image() -> None:
    body = request(python_task("x", ""))
    env, entry = body["Env"], body["Entrypoint"]
    assert isinstance(env, list)
    assert isinstance(entry, list)
    assert "LD_PRELOAD" in env, "a bare name removes the image's variable"
    assert "NVIDIA_VISIBLE_DEVICES=void" in env
    assert entry[:3] == ["/usr/bin/env", "LD_PRELOAD=/evil.so", "python3"]
    with pytest.raises(Refused) as refusal:
        request(python_task("x", ""), image=ImageFacts("x", ("LD_PRELOAD=/x",), (), ("y",), False))
    assert refusal.value.code is Code.UNSUPPORTED


def test_the_command_is_that_of_the_job_or_the_image() -> None:
    plain = ImageFacts("x", (), ("/entry",), ("one",), True)
    assert request(python_task("x", "", argv=()), image=plain)["Entrypoint"] == ["/entry", "one"]
    assert request(python_task("x", "", argv=("a", "b")), image=plain)["Entrypoint"] == ["a", "b"]
    with pytest.raises(Refused):
        request(python_task("x", "", argv=()), image=ImageFacts("x", (), (), (), True))


def test_gpus_by_cdi_or_by_the_runtime_s_hook() -> None:
    task = python_task("x", "", gpus=(GPU,))
    with_cdi = host(task, EngineFacts("{}", has_cdi=True, runtime="runsc"))
    assert with_cdi["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={GPU}"]}]
    assert "Runtime" not in with_cdi, "gVisor for GPUs is the owner's choice"
    assert host(task)["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": [GPU], "Capabilities": [["gpu", "compute", "utility"]]}
    ]
    env = request(task)["Env"]
    assert isinstance(env, list)
    assert not [item for item in env if item.startswith("NVIDIA_VISIBLE_DEVICES=")]
    assert host(python_task("x", ""), EngineFacts("{}", runtime="runsc"))["Runtime"] == "runsc"


def test_outputs_in_memory_raise_the_limit() -> None:
    volume = ContainerMounts((), "name", is_volume=True, outputs_in_memory=8 * MIB)
    config = host(python_task("x", "", memory_bytes=64 * MIB), places=volume)
    assert config["Memory"] == config["MemorySwap"] == 72 * MIB


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/proc/x",
        "/dev",
        "/etc/passwd",
        "/outputs/x",
        "/scratch",
        "relative",
        "/a/../b",
        "/inputs/a:/b",
        "/sys",
    ],
)
def test_inputs_cannot_be_mounted_over_needed_folders(target: str) -> None:
    with pytest.raises(Refused) as refusal:
        check_targets([target])
    assert refusal.value.code is Code.UNSUPPORTED


def test_inputs_cannot_be_inside_each_other() -> None:
    check_targets(["/inputs/a", "/inputs/ab", "/data"])
    with pytest.raises(Refused):
        check_targets(["/inputs/a", "/inputs/a/b"])
    with pytest.raises(Refused):
        check_targets(["/inputs/a", "/inputs/a"])


def test_the_system_call_list_refuses_what_it_does_not_name() -> None:
    profile = json.loads(
        (Path(quorate_node.executors.__file__).parent / "base" / "seccomp.json").read_text()
    )
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowing = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    unconditional = {name for rule in allowing if "args" not in rule for name in rule["names"]}
    assert {"read", "write", "futex", "execve", "rseq", "restart_syscall"} <= unconditional
    namespaces = "clone clone3 unshare setns mount personality"
    kernel = "io_uring_setup ptrace bpf keyctl userfaultfd socket socketcall ipc mknod mknodat"
    assert not set(f"{namespaces} {kernel}".split()) & unconditional
    families = sorted(
        rule["args"][0]["value"] for rule in profile["syscalls"] if rule["names"] == ["socket"]
    )
    assert families == [1, 2, 10, 16]


@pytest.mark.rule("3.31")
@pytest.mark.parametrize(
    ("code", "wall_ms", "is_memory_kill", "status"),
    [
        (0, 5, False, 0),
        (255, 5, False, 255),
        (128, 5, False, 128),
        (137, 5, False, 265),
        (139, 5, False, 267),
        (137, 5, True, 513),
        (0, 5, True, 0),
        (1, 5, True, 1),
        (137, 10_000, False, 512),
        (0, 10_000, False, 512),
        (137, 10_000, True, 512),
        (193, 5, False, 193),
    ],
)
def test_an_engines_exit_status_becomes_the_results(
    code: int, wall_ms: int, is_memory_kill: bool, status: int
) -> None:
    assert exit_status(code, Milliseconds(wall_ms), Seconds(10), is_memory_kill) == status


def test_words_of_an_image_that_are_no_variables_are_ignored() -> None:
    """Bubblewrap fails on a variable without a name.

    Engines pass such words on, and no program sees a variable.
    """
    plain = program_env(python_task("x", ""), ())
    assert program_env(python_task("x", ""), ("=x", "", "BARE", "A=1", "B=", "C==")) == {
        **plain,
        "A": "1",
        "B": "",
        "C": "=",
    }


@pytest.mark.rule("2.36", "2.38")
def test_profile_and_hook_win_over_the_image() -> None:
    pinned = dict(PROFILES["torch"].variables)
    task = python_task("x", "", env=pinned, hook=Path("/hooks/torch"))
    named = ("CUBLAS_WORKSPACE_CONFIG=:16:8", "PYTHONPATH=/opt/lib")
    image = replace(IMAGE, env=named)
    places = replace(PLACES, inputs=(*PLACES.inputs, ("/leases/x/inputs/1", "/scratch/.quorate")))
    listed = request(task, image=image, places=places)["Env"]
    assert isinstance(listed, list)
    assert program_env(task, named).items() >= pinned.items()
    assert {"CUBLAS_WORKSPACE_CONFIG=:4096:8", "PYTHONPATH=/scratch/.quorate:/opt/lib"} <= {*listed}
    assert program_env(task, ())["PYTHONPATH"] == "/scratch/.quorate"
    assert "PYTHONPATH" not in program_env(python_task("x", ""), ())
    with pytest.raises(Refused, match="/scratch/.quorate"):
        request(python_task("x", ""), places=places)  # no input of a job can stand there
