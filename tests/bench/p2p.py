"""libp2p benchmark: one JSON line. Without libp2p the line says why there are no figures.

rpc_per_s: requests of 200 bytes over one peers' stream between two processes, 32 at a time, through
both bridges between asyncio and trio. stream_mb_s: one raw stream between two processes, the best
of a few rounds. gossip_delivered: the share of deliveries that arrived while 30 hosts in one
process publish 5 messages a second together for 20 s; gossip_p99_ms: how late. price_change_ms:
until the coordinator's book shows a provider's new price, in a devnet over libp2p.
offer_to_match_ms: until an order is placed and matched, from the same moment on.
Usage: p2p.py [--json] [seconds of gossip]. It always prints JSON.
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from quorate_protocol.messages.ports import Verdict
from quorate_protocol.units import Seconds
from quorate_runtime import p2p

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quorate_runtime.p2p.host.host_config import PeerAddress
    from quorate_runtime.p2p.host.host_session import HostSession

MIB = 1 << 20
SERVE = "serve"
SINK = "/quorate/bench/sink/1"
HOSTS, DIALS, RATE, GOSSIP_SECONDS = 30, 4, 5, 20
PAYLOAD_BYTES = 512
STREAM_MIB, STREAM_ROUNDS = 256, 3
RPC_WORKERS, RPC_EACH = 32, 60
CALL_SECONDS = Seconds(120)
PROVIDERS, PRICES, POLL_SECONDS = 3, 5, 0.01
MAX_PRICE = "10"  # USD an hour
IMAGE = "docker.io/library/python@sha256:" + "ab" * 32
LATE_SECONDS = 5.0  # after the last message is published


async def serve() -> None:
    """The other process: a peers' server and a sink. Prints its address; ends with its input."""
    from support.p2p.p2p_nodes import P2pSite, nodes_up
    from support.peer_sites import EchoHandler

    site = P2pSite(EchoHandler(b"server"))
    async with nodes_up(site.node):
        await site.node.call(install_sink, CALL_SECONDS)
        print(site.node.address.addresses[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def install_sink(session: "HostSession") -> None:
    """Reads all bytes of a stream and answers with one."""
    from libp2p.abc import INetStream
    from libp2p.custom_types import TProtocol
    from libp2p.network.stream.exceptions import StreamEOF

    async def sink(stream: INetStream) -> None:
        try:
            while True:
                await stream.read(MIB)
        except StreamEOF:
            await stream.write(b"!")
            await stream.close()

    session.host.set_stream_handler(TProtocol(SINK), sink)


async def measure_rpc(server: "PeerAddress") -> float:
    """Requests a second."""
    from quorate_runtime.clock import SystemClock
    from quorate_runtime.p2p.libp2p_dialer import Libp2pDialer
    from support.p2p.p2p_nodes import greeter_of, node_of, nodes_up, seed_of
    from support.peer_sites import ADA, SERVER, SIGNERS, EchoHandler, eventually, running

    node = node_of(b"client", listen=())
    greeter = greeter_of(ADA, seed_of(b"client"), SIGNERS[ADA])
    handler = EchoHandler(b"client")
    dialer = Libp2pDialer(node, server, SERVER, greeter, handler.handle, SystemClock())
    async with nodes_up(node), running(dialer):
        await eventually(lambda: bool(dialer.connected()))

        async def work(count: int) -> None:
            for _ in range(count):
                await dialer.request(SERVER, bytes(200), CALL_SECONDS)

        await work(50)
        begun = time.perf_counter()
        await asyncio.gather(*(work(RPC_EACH) for _ in range(RPC_WORKERS)))
        return RPC_WORKERS * RPC_EACH / (time.perf_counter() - begun)


async def measure_stream(server: "PeerAddress") -> float:
    """Megabytes a second over one stream."""
    from libp2p.custom_types import TProtocol

    from support.p2p.p2p_nodes import node_of, nodes_up

    async def send(session: "HostSession") -> float:
        peer = await session.connect(server)
        stream = await session.host.new_stream(peer, [TProtocol(SINK)])
        block, begun = bytes(MIB), time.perf_counter()
        for _ in range(STREAM_MIB):
            await stream.write(block)
        await stream.close_write()  # type: ignore[attr-defined]
        assert await stream.read(1) == b"!"
        return STREAM_MIB * MIB / 1e6 / (time.perf_counter() - begun)

    node = node_of(b"sender", listen=())
    async with nodes_up(node):
        return max([await node.call(send, CALL_SECONDS) for _ in range(STREAM_ROUNDS)])


class Arrivals:
    """Counts the messages that one host heard, and how late each came."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def judge(self, data: bytes, forwarder: str) -> Verdict:
        return Verdict.ACCEPT

    def deliver(self, data: bytes) -> None:
        sent = int.from_bytes(data[:8], "big")
        self.seconds.append((time.monotonic_ns() - sent) / 1e9)


async def measure_gossip(seconds: float) -> dict[str, float]:
    """30 hosts in one trio thread, each with 4 dialed neighbours."""
    import trio

    from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress
    from quorate_runtime.p2p.host.host_session import HostSession, host_session
    from quorate_runtime.p2p.host.trio_thread import TrioThread
    from quorate_runtime.p2p.p2p_node import P2pNode
    from support.p2p.p2p_nodes import LOOPBACK, TOPIC, node_of, seed_of

    heard, chance = [Arrivals() for _ in range(HOSTS)], random.Random(1)
    loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def hosts() -> "AsyncIterator[list[HostSession]]":
        """All stop at once when the block is left."""
        sessions: list[HostSession] = []
        leave = trio.Event()

        async def host(
            number: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        ) -> None:
            config = HostConfig(seed_of(b"%d" % number), LOOPBACK, topic=TOPIC)
            async with host_session(config, loop, {}, heard[number]) as session:
                sessions.append(session)
                task_status.started()
                await leave.wait()

        async with trio.open_nursery() as nursery:
            for number in range(HOSTS):
                await nursery.start(host, number)
            yield sessions
            leave.set()

    def address(number: int, session: HostSession) -> PeerAddress:
        node: P2pNode = node_of(b"%d" % number)
        return PeerAddress(node.peer_key, session.listen_addresses())

    thread = TrioThread(hosts)
    sessions = await thread.start()
    addresses = [address(number, session) for number, session in enumerate(sessions)]
    published = 0

    async def publish() -> None:
        nonlocal published
        for session in sessions:
            for other in chance.sample(addresses, DIALS):
                if other.peer_key != addresses[sessions.index(session)].peer_key:
                    await session.connect(other)
        await trio.sleep(5)
        begun = trio.current_time()
        while trio.current_time() - begun < seconds:
            data = time.monotonic_ns().to_bytes(8, "big") + bytes(PAYLOAD_BYTES - 8)
            await chance.choice(sessions).publish(data)
            published += 1
            await trio.sleep_until(begun + published / RATE)
        await trio.sleep(LATE_SECONDS)

    await thread.call(publish, seconds + 120)
    await thread.stop()
    late = sorted(second for arrivals in heard for second in arrivals.seconds)
    return {
        "gossip_delivered": round(len(late) / (published * (HOSTS - 1)), 4),
        "gossip_p50_ms": round(1000 * statistics.median(late), 1),
        "gossip_p99_ms": round(1000 * late[int(0.99 * (len(late) - 1))], 1),
    }


async def measure_market() -> dict[str, float]:
    """How long a changed offer takes to the book, and to a match."""
    from quorate import Job, Market
    from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
    from quorate_devnet.market.devnet import running
    from quorate_node.base.config import TransportChoice
    from quorate_node.cli.control import ask_daemon

    changes, matches = [], []
    with tempfile.TemporaryDirectory() as folder:
        config = DevnetConfig(
            Path(folder) / "devnet",
            PROVIDERS,
            clients=1,
            executor=ExecutorChoice.NOOP,
            transport=TransportChoice.LIBP2P,
        )
        async with (
            running(config) as devnet,
            Market(devnet.profiles[0]) as market,
            aiohttp.ClientSession() as session,
        ):
            mine = "0x" + devnet.providers[0].hex()

            async def shown() -> tuple[int, int]:
                """Price and free slots of the first provider in the book."""
                async with session.get(f"{devnet.coordinator_url}/v1/offers") as response:
                    offers = (await response.json())["offers"]
                view = next(item for item in offers if item["offer"]["provider"] == mine)
                return view["offer"]["slots"][0]["onDemand"], view["freeSlots"]

            for number in range(PRICES):
                price = 1_000_000 - number
                while (await shown())[1] < 1:
                    await asyncio.sleep(POLL_SECONDS)
                begun = time.perf_counter()
                await ask_daemon(config.provider_home(0), "POST", f"/v1/price?microUsd={price}")
                while (await shown())[0] != price:
                    await asyncio.sleep(POLL_SECONDS)
                changes.append(time.perf_counter() - begun)
                # An order has to reach an auditor's price; the first provider is the cheapest.
                job = Job(image=IMAGE, command=["true"], max_price=MAX_PRICE)
                run = await market.submit(job)
                while not (await run.status()).executions and (await shown())[1] > 0:
                    await asyncio.sleep(POLL_SECONDS)
                matches.append(time.perf_counter() - begun)
    return {
        "offer_to_match_ms": round(1000 * statistics.median(matches), 1),
        "price_change_ms": round(1000 * statistics.median(changes), 1),
    }


async def measure(seconds: float) -> dict[str, float]:
    """All figures."""
    from quorate_runtime.p2p.host.host_config import PeerAddress
    from support.p2p.p2p_nodes import node_of

    command = [sys.executable, __file__, SERVE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        server = PeerAddress(node_of(b"server").peer_key, (line.strip(),))
        found = {"rpc_per_s": round(await measure_rpc(server), 1)}
        found["stream_mb_s"] = round(await measure_stream(server), 1)
    finally:
        process.stdin.close()
        process.wait(timeout=30)
    return {**found, **await measure_gossip(seconds), **await measure_market()}


def main(arguments: list[str]) -> None:
    """Runs once and prints the line."""
    rest = [argument for argument in arguments if argument != "--json"]
    if p2p.available():
        print(json.dumps({"skipped": p2p.available()}))
    elif rest[:1] == [SERVE]:
        asyncio.run(serve())
    else:
        print(json.dumps(asyncio.run(measure(float(rest[0]) if rest else GOSSIP_SECONDS))))


if __name__ == "__main__":
    main(sys.argv[1:])
