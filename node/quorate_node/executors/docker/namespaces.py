"""Enters namespaces of a container that runs, from threads and child processes of the daemon.

A container is opened by the folder of its first process below /proc. That folder never becomes
another process: once the first one has ended, every look into the folder fails.
"""

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from quorate_node.executors.docker.container_usage import Inspection, process_id
from quorate_protocol.refusals import Unavailable

NEW_FS, NEW_MOUNTS, NEW_NETWORK = 0x200, 0x20000, 0x40000000
TERMINALS_MAX = 64  # of one rental; the machine has some thousands
_TERMINALS_FLAGS = 0x2A  # MS_REMOUNT, MS_NOSUID, MS_NOEXEC
_TERMINALS_OPTIONS = f"gid=5,mode=620,ptmxmode=666,max={TERMINALS_MAX}"
_GROUPS = Path("/sys/fs/cgroup")
_LIBC = ctypes.CDLL(None, use_errno=True)
Result = TypeVar("Result")


@dataclass(frozen=True)
class OpenedContainer:
    """A container that ran when it was opened. `folder` and `process` are descriptors of its first
    process: of its folder in /proc, and for polling.
    """

    identity: str
    user: int  # the host's number of its user
    folder: int
    process: int

    def close(self) -> None:
        os.close(self.folder)
        os.close(self.process)

    def namespace(self, name: str) -> int:
        try:
            return os.open(f"ns/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folder)
        except OSError as error:
            raise Unavailable("the container has ended") from error

    def groups(self) -> tuple[Path, ...]:
        """The control groups of its first process."""
        return tuple(_groups_in(_read(self.folder, "cgroup")))


def open_container(found: Inspection | None) -> OpenedContainer:
    """Raises Unavailable if it does not run, or on another machine."""
    pid = process_id(found) if found is not None else 0
    if found is None or not pid:
        raise Unavailable("the rental's container does not run")
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        raise Unavailable("the rental's container has ended") from error
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        os.close(process)
        raise Unavailable("the rental's container has ended") from error
    config = found["Config"]
    user = str(config["User"]).partition(":")[0]
    opened = OpenedContainer(str(found["Id"]), int(user), folder, process)
    try:
        # A number may name another process by now, or one of another machine.
        if opened.identity not in _read(folder, "cgroup"):
            raise Unavailable(
                "the container's processes cannot be seen; run the node on the machine of its "
                "engine, and not in a container"
            )
    except Unavailable:
        opened.close()
        raise
    return opened


@contextmanager
def opened_container(found: Inspection | None) -> Iterator[OpenedContainer]:
    opened = open_container(found)
    try:
        yield opened
    finally:
        opened.close()


def problem() -> str:
    """Says why this program cannot enter containers; "" if it can."""
    if os.geteuid() != 0:
        return "the node does not run as root"
    try:
        _in_thread(_enter_own, lambda: None)
    except OSError as error:
        return f"the node may not enter containers ({error.strerror}): it lacks CAP_SYS_ADMIN"
    return ""


def in_network(container: OpenedContainer, work: Callable[[], Result]) -> Result:
    """Calls `work` in the container's network. Raises what it raises, and Unavailable."""
    network = container.namespace("net")
    try:
        return _in_thread(lambda: enter(network, NEW_NETWORK), work)
    finally:
        os.close(network)


def limit_terminals(container: OpenedContainer) -> None:
    """Bounds the terminals of one container: the kernel gives all containers together some 3,000.

    Raises Unavailable if it fails.
    """
    mounts = container.namespace("mnt")

    def enter_mounts() -> None:
        call(_LIBC.unshare(NEW_FS))  # threads share their folder until here
        enter(mounts, NEW_MOUNTS)

    def remount() -> None:
        flags = ctypes.c_ulong(_TERMINALS_FLAGS)
        call(_LIBC.mount(None, b"/dev/pts", None, flags, _TERMINALS_OPTIONS.encode()))

    try:
        _in_thread(enter_mounts, remount)
    except OSError as error:
        raise Unavailable(f"the container's terminals are not limited: {error.strerror}") from error
    finally:
        os.close(mounts)


class SessionProcess(NamedTuple):
    """`foreground`: the process group that its terminal shows; 0 or less without one."""

    pid: int
    group: int
    foreground: int
    ignores_hang_up: bool


def session_processes(container: OpenedContainer, session: int) -> list[SessionProcess]:
    """The processes of one session, none of which is outside the container."""
    found = []
    for pid in _members(container):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            state, _, group, of_session, _, foreground = stat.rpartition(")")[2].split()[:6]
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it has ended
        ignored = int(status.partition("SigIgn:")[2].split(None, 1)[0], 16)
        if int(of_session) == session and state not in "ZX":
            is_ignored = bool(ignored >> (signal.SIGHUP - 1) & 1)
            found.append(SessionProcess(pid, int(group), int(foreground), is_ignored))
    return found


def enter(namespace: int, kind: int) -> None:
    """Raises OSError."""
    call(_LIBC.setns(namespace, kind))


def call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter_own() -> None:
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(own, NEW_NETWORK)
    finally:
        os.close(own)


def _in_thread(prepare: Callable[[], None], work: Callable[[], Result]) -> Result:
    """In a thread that ends afterwards: no other work may run where it has been."""
    results: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            prepare()
            results.append(work())
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="enter container", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _members(container: OpenedContainer) -> list[int]:
    for group in container.groups():
        try:
            return [int(line) for line in (group / "cgroup.procs").read_text().split()]
        except OSError:
            continue  # of a hierarchy that is mounted elsewhere
    return []


def _groups_in(text: str) -> Iterator[Path]:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for root in (_GROUPS, _GROUPS / "unified"):
                if (root / path.lstrip("/") / "cgroup.procs").exists():
                    yield root / path.lstrip("/")
        for name in controllers.split(","):
            if name and (_GROUPS / name / path.lstrip("/") / "cgroup.procs").exists():
                yield _GROUPS / name / path.lstrip("/")


def _read(folder: int, name: str) -> str:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise Unavailable("the container has ended") from error
    with os.fdopen(descriptor) as file:
        try:
            return file.read()
        except OSError as error:
            raise Unavailable("the container has ended") from error


def tcp_socket(port: int, is_listening: bool) -> socket.socket:
    """A socket at the loopback of the thread's network. Raises OSError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if is_listening:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(("127.0.0.1", port))
            made.listen()
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
