"""Finds out what the container engine can do, and which runtime jobs get."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import docker

from quorate_node.executors.docker.hardened_profile import CDI_KIND, RUNTIME_GVISOR, EngineFacts
from quorate_node.executors.linux import cgroups
from quorate_protocol.ports import Sandbox
from quorate_protocol.refusals import Unavailable

log = logging.getLogger(__name__)

_SECCOMP = Path(__file__).parents[1] / "linux" / "seccomp.json"
_RETRY_SECONDS = 3600.0
NVIDIA_HOOK = "nvidia-container-runtime-hook"


def read_engine_facts(api: docker.APIClient, wanted: Sandbox | None) -> EngineFacts:
    """Asks the engine what it can do, and chooses the sandbox.

    If `wanted` is None, it chooses gVisor if the engine has it, else runc. Raises Unavailable if
    the engine has no seccomp, or not the sandbox that is wanted.
    """
    info = api.info()
    if "name=seccomp" not in ",".join(info.get("SecurityOptions") or ()):
        raise Unavailable(
            "the container engine has no seccomp; this node runs no stranger's program without it",
            _RETRY_SECONDS,
        )
    runtime = _runtime(info.get("Runtimes") or {}, wanted)
    parent = cgroups.PARENT if info.get("CgroupDriver") == "cgroupfs" else ""
    return EngineFacts(_SECCOMP.read_text(), parent, runtime, cdi_gpus(info), has_nvidia_hook(info))


def cdi_gpus(info: Mapping[str, object]) -> frozenset[str]:
    """Returns the names of the GPUs that the engine lists by CDI. Engines before version 28.2 list
    none.
    """
    listed = info.get("DiscoveredDevices") or []
    assert isinstance(listed, list), "the engine gives a list of devices"
    names = [str(item.get("ID", "")) for item in listed if item.get("Source") == "cdi"]
    prefix = f"{CDI_KIND}="
    return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def has_nvidia_hook(info: Mapping[str, object]) -> bool:
    """Whether NVIDIA's container toolkit is installed. An engine takes its hook from PATH."""
    runtimes = info.get("Runtimes") or {}
    assert isinstance(runtimes, dict), "the engine gives its runtimes by name"
    return "nvidia" in runtimes or shutil.which(NVIDIA_HOOK) is not None


def gpu_problem(engine: EngineFacts) -> str:
    """Returns why containers can have no GPUs, with the remedy, or ""."""
    if engine.cdi_gpus or engine.has_nvidia_hook:
        return ""
    return (
        f"the container engine lists no devices {CDI_KIND} and has no {NVIDIA_HOOK}: install "
        "nvidia-container-toolkit, run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, "
        "and restart the engine"
    )


def gvisor_problem(known: Mapping[str, Mapping[str, object]]) -> str:
    """Returns why the engine's runtimes cannot run jobs under gVisor, or "" if they can.

    By default gVisor uses the container's network stack. The engine leaves the loopback device
    there down, so programs would have none.
    """
    if RUNTIME_GVISOR not in known:
        return (
            f"the container engine has no runtime {RUNTIME_GVISOR}; install gVisor and register it"
        )
    arguments = known[RUNTIME_GVISOR].get("runtimeArgs") or []
    assert isinstance(arguments, list), "the engine lists a runtime's arguments"
    if "network=none" not in [str(item).lstrip("-") for item in arguments]:
        return (
            f"the engine's runtime {RUNTIME_GVISOR} is registered without --network=none, so "
            "programs would have no loopback device"
        )
    return ""


def _runtime(known: Mapping[str, Mapping[str, object]], wanted: Sandbox | None) -> str:
    """Returns the runtime's name for gVisor, "" for runc."""
    problem = gvisor_problem(known)
    if wanted is Sandbox.DOCKER_RUNSC and problem:
        raise Unavailable(problem, _RETRY_SECONDS)
    if wanted is None and problem and RUNTIME_GVISOR in known:
        log.warning("jobs run under runc: %s", problem)
    return "" if problem or wanted is Sandbox.DOCKER_RUNC else RUNTIME_GVISOR
