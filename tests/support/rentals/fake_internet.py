"""An internet for egress proxies: names and their answers in turn, and servers on loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from quorate_node.rentals.egress_proxy import Bounds, EgressProxy
from quorate_node.rentals.public_addresses import OwnNetworks, may_reach

PUBLIC = "93.184.216.34"


class FakeInternet:
    """`names`: answers of each name, of which the last one stays. `servers`: ports on loopback by
    public address.
    """

    def __init__(self, names: dict[str, list[Sequence[str]]], servers: dict[str, int]) -> None:
        self.names, self.servers = names, servers
        self.asked: list[str] = []
        self.reached: list[tuple[str, int]] = []

    async def resolve(self, host: str) -> tuple[str, ...]:
        self.asked.append(host)
        answers = self.names.get(host)
        if not answers:
            raise OSError(f"{host} is unknown")
        return tuple(answers.pop(0) if len(answers) > 1 else answers[0])

    async def connect(self, address: str, port: int) -> socket.socket:
        self.reached.append((address, port))
        if address not in self.servers:
            raise OSError(f"{address} does not answer")
        made = socket.socket()
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.servers[address]))
        return made


@asynccontextmanager
async def proxying(
    listener: socket.socket,
    internet: FakeInternet,
    allowed: tuple[str, ...] = ("*",),
    bounds: Bounds = Bounds(),
    reach: Callable[[str], bool] | None = None,
) -> AsyncIterator[EgressProxy]:
    own = OwnNetworks()
    proxy = EgressProxy(
        listener, allowed, internet, reach or (lambda address: may_reach(address, own)), bounds
    )
    task = asyncio.create_task(proxy.run())
    try:
        yield proxy
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def web_server(answer: Callable[[bytes], bytes]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answers the first bytes of each connection. Yields its port and all that it received."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(1 << 16)
        at = len(received)
        received.append(data)
        writer.write(answer(data))
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        received[at] += await reader.read(1 << 16)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], received
