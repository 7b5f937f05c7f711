"""Connects to a container engine, and finds out what it can do and which runtime jobs get."""

import logging
import os
import platform
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import docker
import docker.errors
import requests
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool
from docker.utils import kwargs_from_env
from requests.adapters import BaseAdapter

from quorate_node.executors.base import cgroups
from quorate_node.executors.base.hardened_profile import RUNTIME_GVISOR, EngineFacts
from quorate_node.executors.base.start_program import MACHINE
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Code, Refused, Unavailable

CALL_SECONDS = 60
NVIDIA_HOOK = "nvidia-container-runtime-hook"
Result = TypeVar("Result")


def connect(
    engine_url: str | None = None, timeout: int = CALL_SECONDS, version: str | None = None
) -> docker.APIClient:
    """The environment names an engine by DOCKER_HOST and the like. `timeout` in seconds."""
    options = kwargs_from_env()
    if engine_url:
        options = {"base_url": engine_url}
    return _Client(timeout=timeout, version=version, **options)


def socket_path(api: docker.APIClient) -> str:
    """Returns where the engine listens on this machine, "" for one that does not."""
    adapter = api.get_adapter(api.base_url)
    return str(adapter.socket_path) if isinstance(adapter, UnixHTTPAdapter) else ""


def digest_name(name: str) -> str:
    """Returns `name@sha256:...` of a registry's image; the engine pulls a tag that it lacks.

    Raises Unavailable without an engine or the image, Refused for one of this machine only.
    """
    if "@" in name:
        return name
    try:
        api = connect()
        try:
            digests = _digests(api, name)
        finally:
            api.close()
    except docker.errors.DockerException as error:
        raise Unavailable(f"the container engine has no image {name} ({error})", 0) from error
    if not digests:
        raise Refused(
            Code.UNSUPPORTED,
            f"image: {name} is of this machine only; name one of a registry, or an archive",
        )
    return str(digests[0])


def _digests(api: docker.APIClient, name: str) -> list[str]:
    try:
        found = api.inspect_image(name)  # type: ignore[no-untyped-call]
    except docker.errors.ImageNotFound:
        api.pull(name, tag=None if ":" in name else "latest")
        found = api.inspect_image(name)  # type: ignore[no-untyped-call]
    return list(found["RepoDigests"])


def why_no_gpus() -> str:
    """Says why the engine can give GPUs to no container; "" if it may be able to."""
    try:
        api = connect()
        try:
            info = api.info()
        finally:
            api.close()
    except docker.errors.DockerException as error:
        return f"no container engine answers ({error})"
    return gpu_problem(info, shutil.which(NVIDIA_HOOK) is not None)


def gpu_problem(info: Mapping[str, object], has_hook: bool) -> str:
    """`has_hook`: NVIDIA's hook is installed, which the engine then runs for `--gpus`."""
    runtimes, listed = info.get("Runtimes") or {}, _list(info.get("DiscoveredDevices"))
    is_listed = any("nvidia.com/gpu" in str(device) for device in listed)
    # Engines before 28.2 do not say which devices they know.
    may_know = bool(info.get("CDISpecDirs")) and "DiscoveredDevices" not in info
    if has_hook or "nvidia" in str(runtimes) or is_listed or may_know:
        return ""
    return "the engine has neither NVIDIA's container toolkit nor CDI devices nvidia.com/gpu"


class _Client(docker.APIClient):
    """The SDK's client, with connections that close their sockets.

    The SDK calls the engine in its constructor, so this class replaces its adapter before that.
    """

    def mount(self, prefix: str | bytes, adapter: BaseAdapter) -> None:
        if isinstance(adapter, UnixHTTPAdapter):
            self._custom_adapter = adapter = _Adapter(
                adapter.socket_path, adapter.timeout, max_pool_size=adapter.max_pool_size
            )
        super().mount(prefix, adapter)


class _Adapter(UnixHTTPAdapter):
    def get_connection(self, url: bytes | str, proxies: object = None) -> UnixHTTPConnectionPool:
        with self.pools.lock:
            if url not in self.pools:
                self.pools[url] = _Pool(
                    str(url), self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
            pool: UnixHTTPConnectionPool = self.pools[url]
            return pool


class _Pool(UnixHTTPConnectionPool):
    # the SDK's own code, which its types do not describe
    def _new_conn(self) -> UnixHTTPConnection:  # type: ignore[override]
        # an int, although the types say otherwise
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[arg-type]


class _Connection(UnixHTTPConnection):
    """Closes its socket when the engine does not answer; the SDK's class leaves it open.

    The garbage collector would warn of it later, in any code that runs then.
    """

    def connect(self) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(self.timeout)
            link.connect(self.unix_socket)
        except BaseException:
            link.close()
            raise
        self.sock = link


log = logging.getLogger(__name__)

_SECCOMP = Path(__file__).parents[1] / "base" / "seccomp.json"
_RETRY_SECONDS = 3600.0
_SYSCTL = Path("/proc/sys")
_REFUSALS: Mapping[str, Callable[[int], bool]] = {
    "user/max_user_namespaces": lambda value: value == 0,
    "kernel/unprivileged_userns_clone": lambda value: value == 0,
    "kernel/apparmor_restrict_unprivileged_userns": lambda value: value != 0,
}


def read_engine_facts(api: docker.APIClient, wanted: Sandbox | None, home: Path) -> EngineFacts:
    """`wanted` None: gVisor if the engine has it, else runc. Raises Unavailable without seccomp or
    the sandbox that is wanted.
    """
    info = api.info()
    if "name=seccomp" not in ",".join(info.get("SecurityOptions") or ()):
        raise Unavailable(
            "the container engine has no seccomp; this node runs no stranger's program without it",
            _RETRY_SECONDS,
        )
    runtime = _runtime(info.get("Runtimes") or {}, wanted)
    parent = cgroups.PARENT if info.get("CgroupDriver") == "cgroupfs" else ""
    problem = user_namespace_problem(info) or _exec_problem(home)
    if problem and not runtime:
        log.warning("all jobs share one user and its limits in the kernel: %s", problem)
    return EngineFacts(
        _SECCOMP.read_text(),
        parent,
        runtime,
        bool(info.get("CDISpecDirs")),
        has_ipv6=(_SYSCTL / "net/ipv6").is_dir() and _is_local(info),
        has_user_namespaces=not problem,
    )


def user_namespace_problem(info: Mapping[str, object], settings: Path = _SYSCTL) -> str:
    """Says why containers cannot make user namespaces, with what to do; "" if they can."""
    if platform.machine() != MACHINE or not _is_local(info):
        return f"the engine does not run on this machine's kernel, or not on {MACHINE}"
    options = ",".join(map(str, _list(info.get("SecurityOptions"))))
    if "name=userns" in options or "name=rootless" in options:
        return "the container engine maps users; use one that is neither rootless nor remapped"
    for name, is_off in _REFUSALS.items():
        path = settings / name
        if path.exists() and is_off(int(path.read_text())):
            return f"the kernel's setting {name.replace('/', '.')} forbids user namespaces"
    return ""


def _is_local(info: Mapping[str, object]) -> bool:
    return info.get("KernelVersion") == platform.release()


def _exec_problem(home: Path) -> str:
    """Returns why containers cannot run a program of ours, or "" if they can."""
    # A check makes no folder, so it looks at the one in which `home` will be.
    existing = next(place for place in (home, *home.absolute().parents) if place.exists())
    is_off = os.statvfs(existing).f_flag & os.ST_NOEXEC
    return f"{home} is mounted noexec; use a folder that is not" if is_off else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def gvisor_problem(known: Mapping[str, Mapping[str, object]]) -> str:
    """Why gVisor cannot run jobs, or "". With its default network there is no loopback."""
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
    problem = gvisor_problem(known)
    if wanted is Sandbox.DOCKER_RUNSC and problem:
        raise Unavailable(problem, _RETRY_SECONDS)
    if wanted is None and problem and RUNTIME_GVISOR in known:
        log.warning("jobs run under runc: %s", problem)
    return "" if problem or wanted is Sandbox.DOCKER_RUNC else RUNTIME_GVISOR


def translated(work: Callable[[], Result]) -> Result:
    """The executor has checked the task, so an error of the engine is a failure of the machine."""
    try:
        return work()
    except docker.errors.APIError as error:
        raise Unavailable(f"the container engine: {error.explanation}", 2.0) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        remedy = "start it, or give this user access to its socket"
        raise Unavailable(
            f"the container engine cannot be reached ({error}); {remedy}", 5.0
        ) from error
