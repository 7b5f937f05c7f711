"""Skips tests whose requirements the machine does not meet.

`require("docker")` skips the calling test, with a reason, if docker is missing. If the environment
variable QUORATE_REQUIRE (a comma list, which CI sets) names the requirement, the test fails
instead. `@pytest.mark.docker` calls `require("docker")` before the test's fixtures.
"""

import functools
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest
from docker.errors import DockerException

from quorate_node.executors.base import mounts
from quorate_node.executors.docker.engine_connection import connect, gvisor_problem
from quorate_node.executors.sandbox.bwrap_executor import check_bwrap
from quorate_node.machine.nvml_probe import NvmlProbe
from quorate_protocol.refusals import Unavailable
from quorate_runtime import p2p

GO_PEER = Path(__file__).parents[1] / "interop" / "go_peer" / "build" / "gopeer"
FILES_MIN = 6_000  # enough for a few thousand idle connections


def _docker() -> str | None:
    try:
        client = connect(timeout=60)
        try:
            client.ping()
        finally:
            client.close()
    except DockerException as error:  # absence is the answer here, not an error
        return f"no container engine answers ({str(error).splitlines()[0][:120]})"
    return None


def _runsc() -> str | None:
    problem = _docker()
    if problem is not None:
        return problem
    client = connect(timeout=60)
    try:
        problem = gvisor_problem(client.info()["Runtimes"])
    finally:
        client.close()
    return f"{problem} (.ci/install-runsc does)" if problem else None


def _bwrap() -> str | None:
    try:
        check_bwrap()
    except Unavailable as error:  # absence is the answer here, not an error
        return str(error)
    return None


def _anvil() -> str | None:
    return None if shutil.which("anvil") else "anvil is not on PATH"


def _compose() -> str | None:
    done = (
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if shutil.which("docker")
        else None
    )
    return (
        None
        if done is not None and done.returncode == 0
        else "the engine's client has no compose (.ci/install-compose)"
    )


def _systemd() -> str | None:
    return (
        None
        if shutil.which("systemd-analyze")
        else "systemd-analyze is not installed (apt-get install systemd)"
    )


def _postgres() -> str | None:
    found = shutil.which("postgres") or any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return None if found else "PostgreSQL's server is not installed"


def _registry() -> str | None:
    return (
        None
        if shutil.which("docker-registry")
        else "docker-registry is not installed (apt-get install docker-registry)"
    )


def _index() -> str | None:
    """Asks pip whether it can fetch packages. Only pip knows its own index, proxy and
    find-links.
    """
    probe = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--retries",
        "0",
        "--timeout",
        "10",
    ]
    arguments = ["install", "--dry-run", "--no-deps", "--ignore-installed", "hatchling>=1.27"]
    done = subprocess.run(
        [*probe, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return None if done.returncode == 0 else "pip reaches no package index"


def _mounts() -> str | None:
    return None if mounts.can_mount() else "needs root and loop devices"


def _own_engine() -> str | None:
    lacking = [name for name in ("dockerd", "ip") if not shutil.which(name)]
    return (
        f"needs root and {' and '.join(lacking or ['nothing else'])}"
        if os.geteuid() != 0 or lacking
        else None
    )


def _nat() -> str | None:
    lacking = [name for name in ("ip", "iptables", "nsenter") if not shutil.which(name)]
    if lacking:
        return f"no {' and no '.join(lacking)} (apt-get install iproute2 iptables)"
    return None if os.geteuid() == 0 else "network namespaces need root"


def _cc() -> str | None:
    return None if shutil.which("cc") else "no C compiler"


def _files() -> str | None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (
        None
        if hard >= FILES_MIN
        else f"this machine lets a process open {hard} files of {FILES_MIN}"
    )


def _libp2p() -> str | None:
    return p2p.available() or None


def _nvrtc() -> str | None:
    found = find_spec("cuda") is not None and find_spec("cuda.core") is not None
    return None if found else "NVIDIA's compiler is not installed (pip install '.[cuda12]')"


def _gpu() -> str | None:
    try:
        devices = NvmlProbe().inventory().devices
    except Unavailable as error:  # absence is the answer here, not an error
        return str(error)
    return _nvrtc() if devices else "this machine has no GPU of NVIDIA"


def _promtool() -> str | None:
    lacking = [name for name in ("promtool", "prometheus") if not shutil.which(name)]
    return f"no {' and no '.join(lacking)} (apt-get install prometheus)" if lacking else None


def _gopeer() -> str | None:
    return None if GO_PEER.exists() else "the Go peer is not built (.ci/make-gopeer does)"


PROBES: dict[str, Callable[[], str | None]] = {
    "docker": _docker,
    "runsc": _runsc,
    "bwrap": _bwrap,
    "anvil": _anvil,
    "postgres": _postgres,
    "registry": _registry,
    "index": _index,
    "compose": _compose,
    "systemd": _systemd,
    "mounts": _mounts,
    "own-engine": _own_engine,
    "nat": _nat,
    "cc": _cc,
    "files": _files,
    "nvrtc": _nvrtc,
    "gpu": _gpu,
    "gopeer": _gopeer,
    "libp2p": _libp2p,
    "promtool": _promtool,
}


@functools.cache
def missing(what: str) -> str | None:
    """Returns why `what` is missing, or None if it is there. Each probe runs once."""
    return PROBES[what]()


def required() -> frozenset[str]:
    """Returns the names in QUORATE_REQUIRE. Raises an error if a name has no probe."""
    names = frozenset(
        name.strip() for name in os.environ.get("QUORATE_REQUIRE", "").split(",") if name.strip()
    )
    unknown = names - PROBES.keys()
    if unknown:
        raise pytest.UsageError(
            f"QUORATE_REQUIRE names {', '.join(sorted(unknown))}; known: "
            f"{', '.join(sorted(PROBES))}"
        )
    return names


def require(what: str) -> None:
    """Skips the calling test if `what` is missing. Fails it if QUORATE_REQUIRE names `what`."""
    reason = missing(what)
    if reason is not None:
        absent(what, reason)


def absent(what: str, reason: str) -> NoReturn:
    """Like `require`, for what a test finds missing only when it tries."""
    if what in required():
        pytest.fail(f"{what} is required (QUORATE_REQUIRE) but missing: {reason}", pytrace=False)
    pytest.skip(f"{what}: {reason}")
