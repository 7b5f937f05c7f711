"""Machines of sandboxes without a market: an SSH server runs processes of this machine, each
machine in a folder of its own. As a program it is the MCP server over them.
"""

import asyncio
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from quorate.base.errors import QuorateError, RefusedError
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate.client.base.signed_requests import draft_order
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate.sandboxes.machines import Machine
from quorate.sandboxes.mcp_server import serve
from quorate.sandboxes.tools import Limits, Tools
from quorate_protocol.units import Address, Amount, Bps, Hash32, Nonce, Price, usd

IMAGE = "python@sha256:" + "0" * 64
PRICE, FEE = Price(3_600_000), Bps(200)  # a thousandth of a USD a second
KEY = asyncssh.generate_private_key("ssh-ed25519")


class _Server(asyncssh.SSHServer):
    def __init__(self, connections: "list[asyncssh.SSHServerConnection]") -> None:
        self.connections = connections

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(self, dest_host: str, *_: object) -> bool:  # type: ignore[override]
        return dest_host == "127.0.0.1"


@dataclass(eq=False)
class LocalMachine:
    """One machine. It meters real time."""

    id: str
    home: Path
    budget: Amount
    load_seconds: float
    problem: QuorateError | None = None  # of the coordinator
    began: float = 0.0
    why: str = ""
    cost: Amount = Amount(0)
    stops: int = 0
    _server: asyncssh.SSHAcceptor | None = None
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    _running: set[int] = field(default_factory=set)

    async def started(self) -> None:
        await asyncio.sleep(self.load_seconds)
        self.home.mkdir(parents=True)
        root = str(self.home).encode()
        self._server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=lambda: _Server(self.connections),
            server_host_keys=[KEY],
            process_factory=self._run,
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=root),
            encoding=None,
        )
        self.began = time.monotonic()
        most = self.budget / (PRICE / 3600)
        asyncio.get_running_loop().call_later(most, self.spend_all)

    @property
    def commands(self) -> int:
        """How many run now."""
        return len(self._running)

    def spend_all(self) -> None:
        if not self.why:
            self.cost = self.budget
            self.end("its budget is used up")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[asyncssh.SSHClientConnection]:
        if self.problem is not None:
            raise self.problem
        assert self._server is not None
        port = self._server.get_port()
        options: dict[str, Any] = {"known_hosts": None, "config": None, "client_keys": None}
        async with asyncssh.connect("127.0.0.1", port, **options) as connection:
            yield connection

    async def spent(self) -> Amount:
        if self.began and not self.why:
            ran = time.monotonic() - self.began
            self.cost = Amount(min(self.budget, int(ran * PRICE / 3600)))
        return self.cost

    async def why_over(self) -> str:
        if self.problem is not None:
            raise self.problem
        return self.why

    async def stop(self) -> None:
        self.stops += 1
        if self.problem is not None:
            raise self.problem
        await self.spent()
        self.end("stopped by its client")
        while self._running:
            await asyncio.sleep(0.01)

    def end(self, why: str) -> None:
        """Nothing of it stays."""
        if self.why:
            return
        self.why = why
        for group in self._running:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.abort()
        shutil.rmtree(self.home, ignore_errors=True)

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        """A command's processes end with its channel."""
        assert process.command is not None
        child = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", process.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            start_new_session=True,
        )
        self._running.add(child.pid)
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        feeding = asyncio.ensure_future(_copy(process.stdin, child.stdin))
        copying: asyncio.Future[Any] = asyncio.gather(
            _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
        )
        gone = asyncio.ensure_future(process.channel.wait_closed())
        await asyncio.wait({copying, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        ended = asyncio.ensure_future(child.wait())
        await asyncio.gather(copying, ended)
        for task in (feeding, gone):
            task.cancel()
        status = await ended
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            process.exit(status)
        self._running.discard(child.pid)


async def _copy(source: Any, target: Any) -> None:
    try:
        while data := await source.read(64 << 10):
            target.write(data)
            await target.drain()
        if isinstance(target, asyncio.StreamWriter):
            target.close()
    except OSError:
        while await source.read(64 << 10):
            pass  # not re-raised: the channel, or the process, is gone


@dataclass
class LocalMachines:
    """Rents local machines, and keeps orders and costs in a real ledger."""

    folder: Path
    load_seconds: float = 0.0
    failing: int = 0
    made: list[LocalMachine] = field(default_factory=list)
    problem: QuorateError | None = None
    price_now: Price = PRICE

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self._orders: dict[str, Hash32] = {}
        self._numbers = itertools.count(1)

    async def rent(self, job: Job) -> Machine:
        await asyncio.sleep(0)
        if self.problem is not None:
            raise self.problem
        if self.failing:
            self.failing -= 1
            raise QuorateError("no owner has one now")
        spec, job_id = pack(job, {}).spec, Hash32(os.urandom(32))
        draft = draft_order(job, spec, Address(bytes(20)), Address(bytes(20)), FEE)
        order = draft.stamped(Nonce(next(self._numbers)), 1)
        self.ledger.record(
            OrderRecord(job_id, job.name, order, spec.encode(), b"", 1, None, None), None
        )
        name = f"0x{job_id.hex()}"
        machine = LocalMachine(name, self.folder / name, order.budget, self.load_seconds)
        self._orders[name] = job_id
        self.made.append(machine)
        return machine

    async def offers(self) -> list[dict[str, Any]]:
        return [{"gpu": "", "usd_per_hour": usd(self.price_now)}]

    async def price(self, job: Job) -> tuple[Price, Bps]:
        if self.problem is not None:
            raise self.problem
        if job.price() < self.price_now:
            raise RefusedError("no-offer", "No live offer fits", "the nearest asks more")
        return self.price_now, FEE

    async def costs(self, beginning: str) -> tuple[Amount, Amount]:
        for machine in self.made:
            if machine.why:
                self.ledger.settle(self._orders[machine.id], await machine.spent())
        return self.ledger.named_with(beginning)

    def live(self) -> list[LocalMachine]:
        return [machine for machine in self.made if not machine.why]


async def main(folder: Path, budget: int, is_quick: bool) -> None:
    limits = Limits(Amount(budget), "3.6", 2, ("hub.example",))
    machines = LocalMachines(folder)
    tools = Tools(
        machines, limits, folder / "lock", lambda: time.monotonic() * (1e6 if is_quick else 1)
    )
    assert not await serve(tools)
    await machines.costs("")
    (folder / "left").write_text(str(len(machines.live())))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), "quick" in sys.argv[3:]))
