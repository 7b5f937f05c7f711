"""Commands in a sandbox: their words, their output as it comes, and its bounds."""

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate.base.errors import UsageError

if TYPE_CHECKING:
    from asyncssh import SSHClientProcess, SSHReader

LINE_BYTES_MAX = 96 << 10  # Linux takes at most 128 KiB in one word
PIECE_BYTES = 64 << 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended.

    `status` is its exit status, 128 and the number of the signal that ended it, or None if it
    was stopped: at its timeout, or because it wrote without end. `was_cut`: output was left out.
    """

    status: int | None
    stdout: bytes
    stderr: bytes
    was_cut: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Output of a command. The last piece has no data, and `is_last` with the status."""

    data: bytes = b""
    is_error: bool = False
    status: int | None = None
    is_last: bool = False


@dataclass(slots=True)
class Kept:
    """The first and last bytes of a stream, half of `most` each."""

    most: int
    total: int = 0
    _first: bytearray = field(default_factory=bytearray)
    _last: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = max(0, self.most - self.most // 2 - len(self._first))
        self._first += data[:room]
        self._last += data[room:]
        if len(self._last) > self.most // 2:
            del self._last[: len(self._last) - self.most // 2]

    @property
    def was_cut(self) -> bool:
        return self.total > len(self._first) + len(self._last)

    def data(self) -> bytes:
        left_out = self.total - len(self._first) - len(self._last)
        gap = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return bytes(self._first) + gap + bytes(self._last)


def command_line(command: Sequence[str] | str, env: Mapping[str, str], folder: str) -> str:
    """Returns a line for the sandbox's shell. Relative folders start at its HOME.

    Raises UsageError that names the wrong part.
    """
    text = command if isinstance(command, str) else shlex.join(command)
    if not text.strip():
        raise UsageError("command: it is empty; give words, or a line for the shell")
    for name in env:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"env: {name[:64]!r} is no name of a variable")
    steps = ["cd"]
    if folder:
        steps.append(f"cd -- {shlex.quote(folder)}")
    steps += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    line = f"{' && '.join(steps)} || exit 126\n{text}"
    if "\0" in line:
        raise UsageError("command: it has a NUL; write the data to a file or to stdin")
    if len(line.encode(errors="surrogateescape")) > LINE_BYTES_MAX:
        raise UsageError(
            f"command: it is longer than {LINE_BYTES_MAX} bytes; upload a script, or use stdin"
        )
    return line


async def pieces_of(
    process: "SSHClientProcess[bytes]", seconds: float | None
) -> AsyncGenerator[Piece, None]:
    """Yields until the command's end. The last piece has no status if that took too long.

    Raises ConnectionError if the connection broke before.
    """
    now = asyncio.get_running_loop().time
    end = float("inf") if seconds is None else now() + seconds
    reads = {_read(reader): reader for reader in (process.stdout, process.stderr)}
    try:
        # Output that is there already would never let a timeout come.
        while reads and now() < end:
            async with asyncio.timeout_at(end):
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                reader = reads.pop(task)
                if data := task.result():
                    reads[_read(reader)] = reader
                    yield Piece(data, reader is process.stderr)
        if not reads:
            async with asyncio.timeout_at(end):
                await process.wait_closed()
    except TimeoutError:
        pass  # not re-raised: the last piece says that it was stopped
    finally:
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    if now() >= end:
        yield Piece(is_last=True)
    elif process.returncode is None:
        raise ConnectionError("the connection broke")
    else:
        status = process.returncode  # a signal's number is below zero; a shell adds it to 128
        yield Piece(status=status if status >= 0 else 128 - status, is_last=True)


def _read(reader: "SSHReader[bytes]") -> "asyncio.Task[bytes]":
    return asyncio.create_task(reader.read(PIECE_BYTES))
