"""`Sandbox`: one machine for a program's commands and files, destroyed at the end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

from quorate.base.errors import QuorateError, RefusedError, UnavailableError, UsageError
from quorate.job.job import Job
from quorate.sandboxes import files
from quorate.sandboxes.commands import Kept, Piece, Result, command_line, pieces_of
from quorate.sandboxes.files import Entry
from quorate.sandboxes.machines import Machine, Machines, Source, Template, over
from quorate_protocol.units import Amount

if TYPE_CHECKING:
    from asyncssh import SFTPClient, SSHClientConnection

OUTPUT_MAX = 1 << 20
READ_BYTES_MAX = 64 << 20
DRAINED_MAX = 64 << 20
EXEC_SECONDS = 600.0
CLOSE_SECONDS = 5.0
STOP_PAUSES = (0.0, 1.0, 3.0, 5.0)
LOOPBACK = "127.0.0.1"
ORDER_SECONDS = 30.0
T = TypeVar("T")

log = logging.getLogger(__name__)


class Sandbox:
    """One machine of its own: never used before, shared by nobody, and destroyed by `close`.

    It also ends when its budget is used up, when its max_duration or idle_stop is reached, and
    when the program that made it is killed, because nothing more is paid: within two minutes, or
    one that has just started once it has cost what two minutes cost at max_price.
    Then every method raises RefusedError with the reason. `Market.sandbox` makes it.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._connection: SSHClientConnection | None = None
        self._sftp: SFTPClient | None = None
        self._ports: dict[int, int] = {}
        self._ending: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._machine.id

    def __repr__(self) -> str:
        """Names the sandbox by its rental."""
        return f"<Sandbox {self.id}{' (closed)' if self._ending else ''}>"

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        stdin: bytes | str = b"",
        timeout: float | None = EXEC_SECONDS,  # noqa: ASYNC109
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        output_max: int = OUTPUT_MAX,
    ) -> Result:
        """Runs words, or a line for the shell, and waits for its end.

        Of each of stdout and stderr it keeps the first and last bytes, `output_max` in all. A
        command that goes on after `timeout` seconds, or writes more than 64 MiB, is stopped.
        Raises RefusedError if the sandbox is over, UnavailableError if its connection broke.
        """
        out, errors, status = Kept(output_max), Kept(output_max), None
        pieces = self.stream(command, stdin=stdin, timeout=timeout, env=env, cwd=cwd)
        async with aclosing(pieces):
            async for piece in pieces:
                status = piece.status
                (errors if piece.is_error else out).add(piece.data)
                if out.total + errors.total > DRAINED_MAX:
                    break
        was_cut = out.was_cut or errors.was_cut
        return Result(status, out.data(), errors.data(), was_cut)

    async def stream(
        self,
        command: Sequence[str] | str,
        *,
        stdin: bytes | str = b"",
        timeout: float | None = None,  # noqa: ASYNC109
        env: Mapping[str, str] | None = None,
        cwd: str = "",
    ) -> AsyncGenerator[Piece, None]:
        """Yields a command's output as it comes, without a bound; the last piece has its status.
        A caller that leaves stops the command.
        """
        line = command_line(command, env or {}, cwd)
        given = stdin.encode() if isinstance(stdin, str) else stdin
        async with self._told("the command may have run"):
            connection = await self._connected()
            process = await connection.create_process(line, encoding=None)
            try:
                process.stdin.write(given)
                process.stdin.write_eof()
                async with aclosing(pieces_of(process, timeout)) as pieces:
                    async for piece in pieces:
                        yield piece
            finally:
                process.channel.abort()

    async def upload(self, local: Source, remote: str) -> None:
        """Writes bytes, or copies a local file or folder; relative paths start at HOME. A text is
        a local path.
        """
        async with self._told(f"{remote} may be written in part"):
            await files.upload(await self._files(), local, remote)

    async def download(
        self, remote: str, local: str | Path | None = None, *, bytes_max: int = READ_BYTES_MAX
    ) -> bytes:
        """Returns a file's bytes; or writes them to `local`, and returns none. UsageError if there
        are more than `bytes_max`.
        """
        async with self._told(f"{remote} was not read"):
            sftp = await self._files()
            if local is None:
                return await files.read(sftp, remote, bytes_max)
            await files.download(sftp, remote, Path(local), bytes_max)
            return b""

    async def list(self, remote: str = ".") -> tuple[Entry, ...]:
        """Returns a folder's entries by name, at most 10,000."""
        async with self._told(f"{remote} was not read"):
            return await files.entries(await self._files(), remote)

    async def port(self, number: int) -> str:
        """Returns a URL here that leads to a port of the sandbox, whose program listens on
        127.0.0.1. It works until the connection breaks; then ask again.
        """
        if isinstance(number, bool) or not (isinstance(number, int) and 0 < number < 65_536):
            raise UsageError(f"port: {number!r}; write a number from 1 to 65535")
        async with self._told("the port is not forwarded"):
            connection = await self._connected()
            if number not in self._ports:
                listener = await connection.forward_local_port(LOOPBACK, 0, LOOPBACK, number)
                self._ports[number] = listener.get_port()
            return f"http://{LOOPBACK}:{self._ports[number]}"

    async def spent(self) -> Amount:
        """Returns what it was charged by its newest meter, in micro-USD."""
        return await self._machine.spent()

    @property
    def is_connected(self) -> bool:
        """Returns False once it ended, or its connection broke."""
        return self._connection is not None and not self._connection.is_closed()

    async def prepare(self, given: Mapping[str, Source]) -> None:
        """Waits until it runs, connects, and writes files to it. If that fails, or is cancelled, it
        is destroyed.
        """
        try:
            async with self._told("it cannot be reached"):
                await self._machine.started()
                await self._connected()
            for remote, source in given.items():
                await self.upload(source, remote)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Destroys the machine, also while its caller is cancelled.

        Raises UnavailableError if the coordinator does not take the stop; it then ends by itself.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"end {self.id}")
        await through(self._ending)

    async def why_over(self) -> str:
        """Returns why it ended, or "" while it goes on."""
        return "it was closed" if self._ending else await self._machine.why_over()

    async def _end(self) -> None:
        disconnecting = asyncio.create_task(self._disconnect())
        try:
            await self._stop()
        finally:
            _, late = await asyncio.wait({disconnecting}, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(disconnecting, return_exceptions=True)

    async def _stop(self) -> None:
        problem: QuorateError | None = None
        for pause in STOP_PAUSES:
            await asyncio.sleep(pause)
            try:
                return await self._machine.stop()
            except RefusedError as error:
                log.info("sandbox %s: %s", self.id, error)  # it was over before
                return
            except QuorateError as error:
                problem = error
        raise UnavailableError(
            f"sandbox {self.id[:14]} was not stopped: {problem}. Nothing more is paid "
            "for it, so it ends within two minutes"
        ) from problem

    async def _connected(self) -> "SSHClientConnection":
        async with self._lock:
            if self._ending is not None:
                raise over(self.id[:14], "it was closed")
            if self._connection is None or self._connection.is_closed():
                await self._disconnect()
                connecting = self._machine.connect()
                self._connection = await self._stack.enter_async_context(connecting)
            return self._connection

    async def _files(self) -> "SFTPClient":
        connection = await self._connected()
        async with self._lock:
            if self._sftp is None:
                self._sftp = await connection.start_sftp_client(path_errors="surrogateescape")
            return self._sftp

    async def _disconnect(self) -> None:
        self._connection, self._sftp = None, None
        self._ports.clear()
        await self._stack.aclose()

    @asynccontextmanager
    async def _told(self, left: str) -> AsyncIterator[None]:
        """Turns errors of SSH into the client's own. `left` says what may be left undone."""
        try:
            yield
        except (QuorateError, TimeoutError):
            raise
        except OSError as error:
            if error.filename is not None:
                raise UsageError(f"{error.filename}: {error.strerror}") from error
            raise await self._broken(error, left) from error
        # Sorted by the library's classes, which only an installed extra has.
        except Exception as error:
            import asyncssh

            lost = (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost)
            if isinstance(error, asyncssh.SFTPError) and not isinstance(error, lost):
                raise UsageError(f"sandbox: {error.reason}: {left}") from error
            if not isinstance(error, asyncssh.Error):
                raise
            raise await self._broken(error, left) from error

    async def _broken(self, error: Exception, left: str) -> QuorateError:
        if self._ending is not None:
            return over(self.id[:14], "it was closed")
        try:
            why = await self._machine.why_over()
        except QuorateError as away:
            return UnavailableError(f"sandbox {self.id[:14]}: {error}, {left}; and {away}")
        if why:
            return over(self.id[:14], why)
        return UnavailableError(
            f"sandbox {self.id[:14]}: {str(error) or type(error).__name__}: {left}; it goes on, so "
            "try again"
        )


async def order(machines: Machines, job: Job) -> Sandbox:
    """Orders a machine, which does not run yet. If that is cancelled, it is stopped."""
    renting = asyncio.ensure_future(machines.rent(replace(job, name=f"{job.name}-{token_hex(4)}")))
    try:
        # An order on its way must be known, to be stopped.
        return Sandbox(await through(renting, ORDER_SECONDS))
    except asyncio.CancelledError:
        if not renting.cancelled() and renting.exception() is None:
            await Sandbox(renting.result()).close()
        raise


async def start(machines: Machines, template: Template) -> Sandbox:
    sandbox = await order(machines, template.job)
    await sandbox.prepare(template.files)
    return sandbox


@asynccontextmanager
async def one_sandbox(machines: Machines, template: Template) -> AsyncIterator[Sandbox]:
    sandbox = await start(machines, template)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def through(task: "asyncio.Future[T]", patience: float | None = None) -> T:
    """Waits for a task's end, also when the caller is cancelled meanwhile, and then raises that.
    `patience`: so many seconds after that it cancels the task as well.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=patience if cancelled else None)
        except asyncio.CancelledError as error:
            cancelled = error  # raised below
        else:
            if not task.done():
                task.cancel()
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()
    raise cancelled
