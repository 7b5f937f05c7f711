"""The chain of a market whose programs are killed: checks of its sums, and a failing
node.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from quorate_contracts.deploy import Contracts
from quorate_coordinator.base import settings as coordinator_settings
from quorate_devnet.chain.free_port import free_port
from quorate_devnet.demo.accounting import MoneyHolders, check_balances, read_chain_history
from quorate_node.base import settings as provider_settings
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc
from support.crash.crash_market import CrashMarket


async def sums_that_do_not_hold(crash: CrashMarket) -> list[str]:
    """Returns each sum on chain that does not add up (I1), as a sentence."""
    devnet = crash.devnet
    client, contracts = (
        ChainClient(Rpc(devnet.chain_url, crash.session)),
        Contracts.of(devnet.deployment),
    )
    parties = MoneyHolders(
        devnet.coordinator,
        devnet.providers,
        tuple(profile.account.address for profile in devnet.profiles),
    )
    sums = await check_balances(
        client, contracts, await read_chain_history(client, contracts), parties
    )
    return [f"{item.what}: {item.tokens} and {item.accounted}" for item in sums if not item.holds]


# ------------------------------------------------------------------------------ a node that is away


@dataclass(slots=True)
class Node:
    """The chain node as daemons reach it.

    While the node is away its process is stopped. Open connections end, and new ones are refused.
    The kernel gives its port to nobody else meanwhile.
    """

    crash: CrashMarket
    port: int = field(default_factory=partial(free_port, "127.0.0.1"))
    _server: asyncio.Server | None = None
    _pipes: set["asyncio.Task[None]"] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The URL that daemons are given."""
        return f"http://127.0.0.1:{self.port}"

    async def return_online(self) -> None:
        """Starts to answer again, on the same port and with the same state."""
        self.crash.devnet.processes.children["chain"].process.send_signal(signal.SIGCONT)
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, reuse_address=True
        )

    async def go_offline(self) -> None:
        """Stops as if the node were killed. A second call does nothing."""
        self.crash.devnet.processes.children["chain"].process.send_signal(signal.SIGSTOP)
        if self._server is not None:
            self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = asyncio.current_task()
        assert here is not None
        self._pipes.add(here)
        place = urlsplit(self.crash.devnet.chain_url)
        try:
            inner, outer = await asyncio.open_connection(place.hostname, place.port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pass_on(reader, outer))
                    both.create_task(_pass_on(inner, writer))
            finally:
                outer.close()
        except* (OSError, asyncio.CancelledError):
            pass  # one side is gone, which is intended here
        finally:
            self._pipes.discard(here)
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def node_that_can_go(crash: CrashMarket) -> AsyncIterator[Node]:
    """Makes coordinator and providers reach the chain through the yielded node, until the block
    ends.
    """
    node, config = Node(crash), crash.devnet.config
    await node.return_online()
    coordinator = coordinator_settings.read(config.coordinator_home)
    homes = [config.provider_home(index) for index in range(config.providers)]
    told = {home: provider_settings.read(home) for home in homes}
    names = ("coordinator", *crash.providers)
    try:
        coordinator_settings.write(
            config.coordinator_home, replace(coordinator, chain_url=node.url)
        )
        for home, settings in told.items():
            provider_settings.write(home, replace(settings, chain_url=node.url))
        await asyncio.gather(*(crash.renew(name) for name in names))
        yield node
    finally:
        coordinator_settings.write(config.coordinator_home, coordinator)
        for home, settings in told.items():
            provider_settings.write(home, settings)
        crash.devnet.processes.children["chain"].process.send_signal(signal.SIGCONT)
        await asyncio.gather(*(crash.renew(name) for name in names))
        await node.go_offline()
        crash.devnet.processes.children["chain"].process.send_signal(signal.SIGCONT)
