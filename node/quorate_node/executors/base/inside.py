"""What the node reaches inside the container of a rental."""

import socket
from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from quorate_protocol.messages.ports import Executor, Sandbox


class TerminalSize(NamedTuple):
    """In characters."""

    columns: int
    rows: int


class Program(Protocol):
    """A program that runs in a container, and a socket to its standard input and output.

    `is_framed`: before each piece of output come eight bytes, of which the first is 2 for standard
    error, and the last four are the length.
    """

    socket: socket.socket
    is_framed: bool

    async def resize(self, size: TerminalSize) -> None: ...

    async def signal(self, name: str) -> None:
        """Sends a signal, named without SIG, to what runs in the foreground."""

    async def ended(self) -> int:
        """Waits for the end; returns the exit status as a shell shows it."""

    async def hang_up(self) -> None:
        """Nobody listens any more: sends SIGHUP, and kills after some seconds what is left. What
        ignores SIGHUP, as under nohup, runs on until its container ends.
        """

    def close(self) -> None: ...


class Inside(Protocol):
    """Reaches into containers by lease id. Raises Unavailable for one that does not run."""

    def problem(self) -> str:
        """Says why this machine cannot rent, with the remedy; "" if it can."""

    async def exec(
        self, lease_id: str, command: str, env: Mapping[str, str], size: TerminalSize | None
    ) -> Program:
        """Starts a command line, or a shell if it is "", with a terminal of `size` or none."""

    async def connect(self, lease_id: str, port: int) -> socket.socket:
        """Connects to a port of the container's loopback. Raises OSError if nothing listens."""

    async def listen(self, lease_id: str, port: int) -> socket.socket:
        """Listens on a port of the container's loopback. Raises OSError if it is taken."""

    async def sftp(self, lease_id: str, client: str) -> Program:
        """Starts an SFTP server that has only the rights of the container's program. `client` is
        the name of the software that will use it: some have bugs.
        """

    async def ended(self, lease_id: str) -> None:
        """Returns once the container has ended."""

    def keep_for(self, lease_id: str, seconds: float) -> None:
        """The container ends after so long, also if this program is gone, unless called again.
        Blocks for a moment.
        """

    async def note(self, lease_id: str, text: str) -> None:
        """Adds a line to the log of the container's program."""


@runtime_checkable
class HasInside(Protocol):
    """An executor whose containers can be entered."""

    inside: Inside


def rental_problem(executor: Executor) -> str:
    """Says why a provider with this executor cannot rent; "" if it can."""
    if isinstance(executor, HasInside):
        return executor.inside.problem()
    return needs_runc(executor.sandbox)


def needs_runc(sandbox: Sandbox) -> str:
    return (
        f"rentals need Docker with runc, and jobs run in {sandbox.value} here; start the node "
        "with --executor docker-runc"
    )
