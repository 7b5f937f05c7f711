"""Tests readers of the event stream that take no bytes.

They cost little memory and do not delay others. When they reconnect, they get what they missed.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
from aiohttp import web

from fuzz.core_world import COORDINATOR, DOMAIN
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import add_handlers
from quorate_coordinator.api.streams import Streams
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.model.events import LogRead
from quorate_coordinator.storage import run_logs
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_coordinator.storage.run_reader import LINES_MAX, RunReader
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.units import Sequence, UnixSeconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.error_responses import failures
from quorate_runtime.http.listener import Listener, OpenConnections
from support.markets.coordinator_stage import token
from support.markets.readable_market import ArchivingWorld
from support.memory_archive import MemoryArchive
from support.process_memory import resident_bytes

MIB = 1 << 20
BOUNDS = replace(DEVNET_BOUNDS, write_seconds=0.6, account_streams_max=24)
TEXT = "x" * 4_000


@asynccontextmanager
async def serving() -> AsyncIterator[
    tuple[str, Streams, OpenConnections, ArchivingWorld, list[dict[str, str]]]
]:
    """Serves two clients with 2,048 long lines each, which is eight megabytes per reader."""
    world = ArchivingWorld(DEVNET, 6)
    assert world.order(0, 1, {}, {}) and world.order(1, 2, {}, {})
    for job in world.jobs():
        lines = (
            JobEvent(Sequence(seq), UnixSeconds(world.at), job.id, "log", TEXT)
            for seq in range(1, LINES_MAX + 1)
        )
        world.core.state.events[job.id] = tuple(lines)
    state, archive, clock = world.core.state, MemoryArchive(), SystemClock()
    history = RunReader(state, archive)

    async def submit(event: object) -> object:
        assert isinstance(event, LogRead), "what is sent of a log is marked as read before"
        return None

    streams = Streams(
        history,
        RunAccess(state, history, Outputs(state, archive), ()),
        Auth(world.core.rules, world.core.state, clock, RequestRates(BOUNDS, clock.now)),
        clock,
        RunLogs(),
        lambda: False,
        submit,
    )
    app = web.Application(middlewares=[failures])
    add_handlers(app, streams)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    open_connections = OpenConnections(BOUNDS)
    await Listener(runner, "127.0.0.1", 0, open_connections).start()
    until = int(time.time()) + 600
    tokens = [
        token(client.address, client, COORDINATOR.address, DOMAIN.chain_id, until)
        for client in world.clients
    ]
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", streams, open_connections, world, tokens
    finally:
        await runner.cleanup()


async def events(url: str, headers: dict[str, str], count: int) -> list[int]:
    """Returns the sequence numbers of `count` events."""
    found: list[int] = []
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/v1/events", headers=headers) as response,
    ):
        assert response.status == 200
        while len(found) < count:
            line = await response.content.readline()
            if line.startswith(b"id: "):
                found.append(int(line[4:]))
    return found


def silent_reader(url: str, headers: dict[str, str]) -> socket.socket:
    """Requests the stream with a small window and reads nothing."""
    pipe = socket.socket()
    pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    pipe.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    pipe.sendall(f"GET /v1/events HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
    return pipe


async def test_readers_that_take_no_bytes_are_cut_and_others_are_not_delayed() -> None:
    async with serving() as (url, streams, open_connections, world, tokens), asyncio.timeout(60):
        slow, other = world.clients[0].address, tokens[1]
        await events(url, other, LINES_MAX)
        before = most = resident_bytes()
        pipes = [silent_reader(url, tokens[0]) for _ in range(BOUNDS.account_streams_max)]
        while streams.open_streams[slow] < len(pipes):
            await asyncio.sleep(0.01)
        assert await events(url, other, LINES_MAX) == list(range(1, LINES_MAX + 1))
        while streams.open_streams[slow]:
            most = max(most, resident_bytes())
            await asyncio.sleep(0.02)
        assert most - before < 32 * MIB, (
            f"{len(pipes)} readers of 8 MiB each cost {(most - before) >> 20} MiB"
        )
        while open_connections.by_address:
            await asyncio.sleep(0.02)
        for pipe in pipes:
            pipe.close()
        again = await events(url, {**tokens[0], "Last-Event-ID": "2000"}, LINES_MAX - 2000)
        assert again == list(range(2001, LINES_MAX + 1)), "who comes back catches up"


async def test_a_log_that_was_cut_is_read_with_its_mark_and_its_last_lines() -> None:
    async with (
        serving() as (url, streams, _, world, tokens),
        asyncio.timeout(30),
        aiohttp.ClientSession() as session,
    ):
        client = world.clients[0].address
        job = next(item for item in world.jobs() if item.order.client == client)
        text = b"x" * (40 * 65_536) + b"the last line\n"
        for at in range(0, len(text), 65_536):
            piece = text[at : at + 65_536]
            streams.logs.add(run_logs.Piece(client, job.id, job.leases[0], at, piece))
        async with session.get(
            f"{url}/v1/runs/0x{job.id.hex()}/logs", headers=tokens[0]
        ) as response:
            shown = await response.read()
    left_out = len(text) - MIB - run_logs.TAIL_BYTES
    mark = b"\n[%d bytes were left out here]\n" % left_out
    assert shown == text[:MIB] + mark + text[-run_logs.TAIL_BYTES :]
