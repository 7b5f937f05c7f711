"""Reaches inside the containers of rentals: programs, connections and files."""

import asyncio
import json
import os
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from signal import SIGCONT, SIGHUP, SIGKILL, Signals
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import docker
import docker.errors

from quorate_node.executors.base.hardened_profile import (
    COMMAND_VARIABLE,
    ENTER_TARGET,
    SHELL_TARGET,
)
from quorate_node.executors.base.inside import TerminalSize, needs_runc
from quorate_node.executors.docker.container_usage import Inspection
from quorate_node.executors.docker.engine_connection import socket_path, translated
from quorate_node.executors.docker.lease_keeper import LeaseKeeper
from quorate_node.executors.docker.namespaces import (
    OpenedContainer,
    in_network,
    open_container,
    problem,
    session_processes,
    tcp_socket,
)
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Code, Refused, Unavailable

CONNECT_SECONDS = 10.0
HANG_UP_SECONDS = 5.0
COMMAND_BYTES_MAX = 64 << 10
_START_SECONDS = 30.0
_POLL_SECONDS = 0.01
_LATE_SECONDS = 5.0  # in which a busy engine learns that a program has ended
_HEADER_BYTES_MAX = 16 << 10
_NO_STATUS = 255
_NOT_FOUND = 127
NO_SHELL = "the image has no shell: build it with `quorate image build --shell`"
_HANG_UP_POLL_SECONDS = 0.1
_CALLS_MAX = 16
_STARTS_MAX = 2  # of one lease at a time
_CHILD = "quorate_node.executors.docker.sftp_child"
Result = TypeVar("Result")


@dataclass
class DockerInside:
    """`Inside` on a Docker engine of this machine. `inspect` blocks; `note` does not."""

    api: docker.APIClient
    sandbox: Callable[[], Sandbox]
    inspect: Callable[[str], Inspection | None]
    add_to_log: Callable[[str, str], None]
    keeper: LeaseKeeper
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_CALLS_MAX, thread_name_prefix="inside")
    )
    # by lease: one that has no process left must not take all threads
    _starting: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary
    )

    def problem(self) -> str:
        if self.sandbox() is not Sandbox.DOCKER_RUNC:
            return needs_runc(self.sandbox())
        why = problem() or ("" if socket_path(self.api) else "the engine is on another machine")
        return f"rentals need root on the engine's machine: {why}" if why else ""

    async def exec(
        self, lease_id: str, command: str, env: Mapping[str, str], size: TerminalSize | None
    ) -> "EngineProgram":
        if len(command.encode()) > COMMAND_BYTES_MAX:
            raise Refused(Code.OVERSIZE, f"command: more than {COMMAND_BYTES_MAX} bytes")
        variables = {**env, **({COMMAND_VARIABLE: command} if command else {})}
        async with self._turn(lease_id):
            return await self._call(lambda: self._start(lease_id, variables, size))

    async def connect(self, lease_id: str, port: int) -> socket.socket:
        made = await self._socket(lease_id, port, is_listening=False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except BaseException:
            made.close()
            raise
        return made

    async def listen(self, lease_id: str, port: int) -> socket.socket:
        return await self._socket(lease_id, port, is_listening=True)

    async def sftp(self, lease_id: str, client: str) -> "ChildProgram":
        async with self._turn(lease_id):
            return await self._start_child(lease_id, client)

    async def _start_child(self, lease_id: str, client: str) -> "ChildProgram":
        container = await self._open(lease_id)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        given = (theirs.fileno(), container.folder)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-m", _CHILD),
                *map(str, (*given, container.user, client, *container.groups())),
                pass_fds=given,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                cwd="/",
                env={"LANG": "C.UTF-8"},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            container.close()
        return ChildProgram(ours, process)

    def keep_for(self, lease_id: str, seconds: float) -> None:
        self.keeper.extend(lease_id, seconds)

    async def ended(self, lease_id: str) -> None:
        try:
            container = await self._open(lease_id)
        except Unavailable:
            return  # not re-raised: it has ended
        try:
            await _readable(container.process)
        finally:
            container.close()

    async def note(self, lease_id: str, text: str) -> None:
        await self._call(lambda: self.add_to_log(lease_id, text))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _call(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, translated, work)

    def _turn(self, lease_id: str) -> asyncio.Semaphore:
        return self._starting.setdefault(lease_id, asyncio.Semaphore(_STARTS_MAX))

    async def _open(self, lease_id: str) -> OpenedContainer:
        return await self._call(lambda: open_container(self.inspect(lease_id)))

    async def _socket(self, lease_id: str, port: int, is_listening: bool) -> socket.socket:
        container = await self._open(lease_id)
        try:
            return await self._call(
                lambda: in_network(container, lambda: tcp_socket(port, is_listening))
            )
        finally:
            container.close()

    def _start(
        self, lease_id: str, env: Mapping[str, str], size: TerminalSize | None
    ) -> "EngineProgram":
        found = self.inspect(lease_id)
        container = open_container(found)
        try:
            made = self.api.exec_create(
                container.identity,
                _words(found),
                stdin=True,
                tty=size is not None,
                environment=dict(env),
                user=str(found["Config"]["User"]) if found else "",
            )
            identity = str(made["Id"])
            link = _attach(socket_path(self.api), identity, size is not None)
        except BaseException:
            container.close()
            raise
        program = EngineProgram(self, identity, container, link, is_framed=size is None)
        try:
            program.wait_for_start()
        except BaseException:
            program.close()
            raise
        if size is not None:
            program.set_size(size)
        return program


@dataclass
class EngineProgram:
    """A program that the engine started in a container that ran already."""

    inside: DockerInside
    identity: str
    container: OpenedContainer
    socket: socket.socket
    is_framed: bool
    pid: int = 0
    process: int = -1  # a descriptor for polling, while the program runs

    def wait_for_start(self) -> None:
        """The engine may not have started it yet when it answers."""
        deadline = time.monotonic() + _START_SECONDS
        found = self._found()
        while not found["Pid"] and not found["ExitCode"] and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            found = self._found()
        if found["Running"]:
            self.pid = int(found["Pid"])
            with suppress(OSError):  # it has ended
                self.process = os.pidfd_open(self.pid)

    async def resize(self, size: TerminalSize) -> None:
        await self.inside._call(lambda: self.set_size(size))

    def set_size(self, size: TerminalSize) -> None:
        with suppress(docker.errors.APIError):  # it has ended
            self.inside.api.exec_resize(self.identity, size.rows, size.columns)

    async def signal(self, name: str) -> None:
        number = Signals.__members__.get(f"SIG{name}")
        if number is not None:
            await self.inside._call(lambda: self._send(number))

    async def ended(self) -> int:
        if self.process >= 0:
            await _readable(self.process)
        return await self.inside._call(self._exit_status)

    async def hang_up(self) -> None:
        if self.process < 0:
            return
        with suppress(Unavailable):  # the container has ended, and its processes with it
            await self.inside._call(lambda: self._send_all(SIGHUP))
            for _ in range(int(HANG_UP_SECONDS / _HANG_UP_POLL_SECONDS)):
                await asyncio.sleep(_HANG_UP_POLL_SECONDS)
                if not await self.inside._call(self._send_all):
                    return
            await self.inside._call(lambda: self._send_all(SIGKILL))

    def close(self) -> None:
        self.socket.close()
        self.container.close()
        if self.process >= 0:
            os.close(self.process)
            self.process = -1

    def _found(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.inside.api.exec_inspect(self.identity)
        return found

    def _exit_status(self) -> int:
        deadline = time.monotonic() + _LATE_SECONDS
        found = self._found()
        while found["Running"] and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            found = self._found()
        code = found["ExitCode"]
        if code == _NOT_FOUND and self._has(SHELL_TARGET) and not self._has("/bin/sh"):
            raise Refused(Code.UNSUPPORTED, NO_SHELL)
        return _NO_STATUS if code is None else int(code)

    def _has(self, path: str) -> bool:
        """False also once the container has ended."""
        try:
            os.lstat(f"root{path}", dir_fd=self.container.folder)
        except OSError:
            return False  # not re-raised: this is the answer
        return True

    def _send(self, number: Signals) -> None:
        """To the terminal's foreground, or to the group of the program itself."""
        members = session_processes(self.container, self.pid)
        groups = {item.foreground for item in members if item.foreground > 0} or {self.pid}
        for item in members:
            if item.group in groups:
                _kill(item.pid, number)

    def _send_all(self, number: Signals | None = None) -> bool:
        """Returns whether processes of the session are left that do not ignore SIGHUP."""
        left = [
            item
            for item in session_processes(self.container, self.pid)
            if item.pid == self.pid or not item.ignores_hang_up
        ]
        for item in left:
            if number is not None:
                _kill(item.pid, number)
                _kill(item.pid, SIGCONT)
        return bool(left)


@dataclass
class ChildProgram:
    """A program of ours that has entered a container."""

    socket: socket.socket
    process: Process
    is_framed: bool = False

    async def resize(self, size: TerminalSize) -> None:
        """It has no terminal."""

    async def signal(self, name: str) -> None:
        """It takes none."""

    async def ended(self) -> int:
        return await self.process.wait()

    async def hang_up(self) -> None:
        with suppress(ProcessLookupError):  # it has ended
            self.process.kill()
        await self.process.wait()

    def close(self) -> None:
        self.socket.close()


def _words(found: Inspection | None) -> list[str]:
    mounts = found["Mounts"] if found else []
    assert isinstance(mounts, list), "the engine lists mounts"
    has_enter = any(item["Destination"] == ENTER_TARGET for item in mounts)
    return [ENTER_TARGET, SHELL_TARGET] if has_enter else [SHELL_TARGET]


def _kill(pid: int, number: Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(pid, number)


async def _readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    own = os.dup(descriptor)
    loop.add_reader(own, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(own)
        os.close(own)


def _attach(path: str, identity: str, is_terminal: bool) -> socket.socket:
    """Starts a program that was created. The SDK's own call can lose what comes with its answer."""
    body = json.dumps({"Detach": False, "Tty": is_terminal}).encode()
    head = (
        f"POST /exec/{identity}/start HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\n"
        f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(_START_SECONDS)
        link.connect(path)
        link.sendall(head.encode() + body)
        answer = _answer_head(link)
        status = answer.split(b" ", 2)[1:2]
        if status not in ([b"101"], [b"200"]):
            raise Unavailable(f"the container engine: {answer[:200].decode(errors='replace')}")
        link.setblocking(False)
    except OSError as error:
        link.close()
        raise Unavailable(f"the container engine does not answer: {error}") from error
    except BaseException:
        link.close()
        raise
    return link


def _answer_head(link: socket.socket) -> bytes:
    """Reads exactly the head of the answer: the program's output follows."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        seen = link.recv(_HEADER_BYTES_MAX, socket.MSG_PEEK)
        joined = head + seen
        end = joined.find(b"\r\n\r\n")
        take = len(seen) if end < 0 else end + 4 - len(head)
        if not seen or len(joined) > 2 * _HEADER_BYTES_MAX:
            raise Unavailable("the container engine ended the connection")
        head += link.recv(take)
    return head
