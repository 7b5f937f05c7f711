"""Finds out what the container engine can do, and which runtime jobs get."""

import logging
from collections.abc import Mapping
from pathlib import Path

import docker

from quorate_node.executors.docker.hardened_profile import RUNTIME_GVISOR, EngineFacts
from quorate_node.executors.linux import cgroups
from quorate_protocol.ports import Sandbox
from quorate_protocol.refusals import Unavailable

log = logging.getLogger(__name__)

_SECCOMP = Path(__file__).parents[1] / "linux" / "seccomp.json"
_RETRY_SECONDS = 3600.0


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
    return EngineFacts(_SECCOMP.read_text(), parent, runtime, bool(info.get("CDISpecDirs")))


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
