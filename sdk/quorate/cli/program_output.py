"""Shows what a run's program printed: as it comes, and its end whatever came before."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import typer

from quorate.base.errors import QuorateError
from quorate.cli.terminal_text import decoded, one_line, plain
from quorate.client.run import Run

LOG_TAIL = 64 * 1024
LOG_BYTES_MAX = 8 << 20  # more than a coordinator keeps of one run
SEEN_BYTES = 512
LINES_SHOWN = 20
REFUSED = "outputs refused: "  # as providers write it into the log


@dataclass(slots=True)
class ProgramOutput:
    """The log of one run on the screen. `end` is its end as the last call of `finish` found it."""

    run: Run
    count: int = 0  # bytes shown
    seen: bytes = b""  # the last of them
    end: str = ""

    async def follow(self) -> None:
        """Prints the log until the run ends. What a broken stream leaves, `finish` prints."""
        try:
            async for text in decoded(self._noted(self.run.logs(follow=True))):
                _show(text)
        except QuorateError:
            return  # not re-raised: `finish` reads the log again

    async def finish(self, is_shown: bool) -> None:
        """Reads the whole log, and prints what was not shown yet. Of a log that is gone or that
        the coordinator does not show, nothing is printed.
        """
        whole = b""
        try:
            async for chunk in self.run.logs():
                whole += chunk
                if len(whole) > LOG_BYTES_MAX:
                    break
        except QuorateError:
            return  # not re-raised: the result counts without its log
        self.end = whole[-LOG_TAIL:].decode(errors="replace")
        if is_shown:
            _show(self._rest(whole).decode(errors="replace"))
            _end_line(whole)

    def last_lines(self) -> list[str]:
        return [one_line(line) for line in self.end.splitlines()[-LINES_SHOWN:]]

    def refusal(self) -> str:
        """Returns the line in which a provider says that it refused the output, or ""."""
        lines = [one_line(line) for line in self.end.splitlines() if REFUSED in line]
        return lines[-1][lines[-1].index(REFUSED) :] if lines else ""

    async def _noted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.count += len(chunk)
            self.seen = (self.seen + chunk)[-SEEN_BYTES:]
            yield chunk

    def _rest(self, whole: bytes) -> bytes:
        """Returns what comes after the text that was shown. Its beginning never changes."""
        if whole[: self.count].endswith(self.seen):
            return whole[self.count :]
        if not whole:
            return b""
        at = whole.rfind(self.seen)
        return whole[at + len(self.seen) :] if at >= 0 else b"\n[...]\n" + whole[-LOG_TAIL:]


def readable(text: str) -> str:
    """Returns text for a terminal; each state of a progress bar is a line of its own."""
    return plain(text.replace("\r\n", "\n").replace("\r", "\n"))


def _show(text: str) -> None:
    if text:
        typer.echo(readable(text), nl=False)


def _end_line(whole: bytes) -> None:
    if whole and not whole.endswith(b"\n"):
        typer.echo("")
