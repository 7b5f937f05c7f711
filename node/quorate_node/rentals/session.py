"""One SSH session of a rental: a shell, a command, or SFTP, in its container."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import asyncssh

from quorate_node.executors.base.inside import Inside, Program, TerminalSize
from quorate_node.rentals.channels import FlowControl
from quorate_node.rentals.links import CHANNEL, ERRORS, Link
from quorate_protocol.refusals import Refused, Unavailable

LATE_SECONDS = 10.0  # for output that a busy engine sends after its program's end
COULD_NOT_START = 254
TERMINAL_MAX, CLIENT_MAX = 64, 256  # of the names of a terminal and of the client's software
_VARIABLE = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED_VARIABLES = (b"LD_", b"NVIDIA_", b"QUORATE_")
log = logging.getLogger(__name__)


class Host(Protocol):
    """The connection that a session belongs to."""

    inside: Inside
    lease_id: str
    flow: FlowControl
    notes: list[str]
    env_of: Callable[[str], dict[str, str]]  # variables of what starts in a lease

    def used(self) -> None:
        """The client uses the rental: input came, or files moved."""

    def start(self, work: Awaitable[None]) -> None: ...

    def forget(self, session: "Session") -> None: ...


class Session(asyncssh.SSHServerSession[bytes]):
    """Starts its program when the client says which, and ends with it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._size: TerminalSize | None = None
        self._term = ""
        self._early = b""
        self._is_at_end = False
        self._link: Link | None = None
        self._program: Program | None = None
        self._begin: Callable[[], Awaitable[Program]] | None = None
        self._is_lost = asyncio.Event()

    @property
    def has_terminal(self) -> bool:
        return self._size is not None and self._link is not None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        self._term, self._size = term_type[:TERMINAL_MAX], _size(*term_size[:2])
        return True

    def shell_requested(self) -> bool:
        return self.exec_requested("")

    def exec_requested(self, command: str) -> bool:
        host = self._host
        self._begin = lambda: host.inside.exec(host.lease_id, command, self._env(), self._size)
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        if subsystem != "sftp":
            return False
        client = str(self._channel.get_extra_info("client_version", ""))[:CLIENT_MAX]
        self._begin = lambda: self._host.inside.sftp(self._host.lease_id, client)
        return True

    def session_started(self) -> None:
        assert self._begin is not None, "a request started it"
        self._host.start(self._run(self._begin))

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._link is not None:
            self._link.write(data)
        else:
            self._early += data
            self._channel.pause_reading()

    def eof_received(self) -> bool:
        """A terminal's input has no end, as with OpenSSH: the engine would end its output too."""
        self._is_at_end = self._size is None
        if self._is_at_end and self._link is not None:
            self._link.write_eof()
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._size is not None:
            self._size = size = _size(width, height)
            if self._program is not None:
                self._host.start(self._program.resize(size))

    def signal_received(self, signal: str) -> None:
        if self._program is not None:
            self._host.start(self._program.signal(signal))

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.hold(CHANNEL, True)

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.hold(CHANNEL, False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost.set()
        if self._begin is None:
            self._host.forget(self)

    def say(self, text: str) -> None:
        """Shows a line in the client's terminal."""
        if not self._channel.is_closing():
            end = "\r\n" if self._size is not None else "\n"
            kind = None if self._size is not None else ERRORS
            self._channel.write(f"{end}{text}{end}".encode(), kind)

    def _env(self) -> dict[str, str]:
        env = self._host.env_of(self._host.lease_id)
        env |= {"TERM": self._term} if self._term else {}
        for name, value in self._channel.get_environment_bytes().items():
            if _VARIABLE.fullmatch(name) and not name.startswith(_REFUSED_VARIABLES):
                env[name.decode()] = value.replace(b"\0", b"").decode(errors="replace")
        return env

    async def _run(self, begin: Callable[[], Awaitable[Program]]) -> None:
        try:
            await self._run_noted(begin)
        finally:
            self._host.forget(self)

    async def _run_noted(self, begin: Callable[[], Awaitable[Program]]) -> None:
        while self._host.notes and self._size is not None:
            self.say(self._host.notes.pop())
        try:
            program = await begin()
        except (Refused, Unavailable, OSError) as error:
            self._fail(str(error))
            return
        is_over = False
        try:
            is_over = await self._serve(program)
        except Refused as refused:
            is_over = True
            self._fail(refused.detail)
        finally:
            if self._link is not None:
                self._link.close()
            try:
                if not is_over:
                    await program.hang_up()
            finally:
                program.close()

    async def _serve(self, program: Program) -> bool:
        """Returns whether the program has ended; False once the client has gone."""
        size = self._size
        link = Link(self._channel, self._host.flow, self._host.used, program.is_framed)
        await link.open(program.socket)
        self._link, self._program = link, program
        link.write(self._early)
        self._early = b""
        if self._is_at_end:
            link.write_eof()
        if not self._is_lost.is_set():
            self._channel.resume_reading()
        if self._size is not None and self._size != size:
            await program.resize(self._size)
        status = await self._unless_lost(program.ended())
        if status is None:
            return False
        before = -1
        while (
            not link.ended.is_set()
            and not self._is_lost.is_set()
            and (link.is_held or link.moved != before)
        ):
            before = link.moved
            await self._unless_lost(_within(link.ended.wait(), LATE_SECONDS))
        if not self._is_lost.is_set():
            self._channel.exit(status)
        return True

    async def _unless_lost(self, work: Awaitable[int] | Awaitable[None]) -> int | None:
        """Returns None once the client has gone."""
        lost = asyncio.ensure_future(self._is_lost.wait())
        done = asyncio.ensure_future(work)
        try:
            await asyncio.wait((lost, done), return_when=asyncio.FIRST_COMPLETED)
            return done.result() if done.done() else None
        finally:
            lost.cancel()
            done.cancel()

    def _fail(self, why: str) -> None:
        log.info("rental %s: %s", self._host.lease_id, why)
        self.say(f"quorate: {why}")
        if not self._channel.is_closing():
            self._channel.exit(COULD_NOT_START)


def _size(columns: int, rows: int) -> TerminalSize:
    return TerminalSize(min(max(columns, 1), 10_000), min(max(rows, 1), 10_000))


async def _within(work: Awaitable[object], seconds: float) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        return  # not re-raised: the caller looks at what has happened
