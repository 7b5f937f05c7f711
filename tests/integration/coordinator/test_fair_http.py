"""Tests that one greedy account, or one address with many keys, takes little from other clients.

The tests count the clients' matches over HTTP. A real coordinator runs on a real chain, with three
scripted providers on real sockets. Each provider has one slot.
"""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from quorate_coordinator.base.request_limits import DEVNET_BOUNDS, RequestBounds
from quorate_coordinator.service import Service
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec import canonical
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.coordinator_stage import Stage, deployed_stage, running
from support.markets.wired_providers import Floor, Place, WiredProvider
from support.messages import a_spec

FLOOD = 60
EACH = 4  # number of jobs of each other client
BOUNDS = dataclasses.replace(
    DEVNET_BOUNDS,
    address_per_second=0.5,
    address_burst=120.0,
    account_per_second=0.5,
    account_burst=80.0,
)
FLOODER = KeySigner(dev_account(4))
OTHERS = [KeySigner(dev_account(i)) for i in (5, 6)]
PROVIDER, SLOTS = KeySigner(dev_account(7)), 3  # one owner, so that a job has one execution


@dataclass
class Client:
    """A client with its own IP address."""

    key: KeySigner
    name: str
    stage: Stage
    service: Service
    session: aiohttp.ClientSession
    nonce: int = 0

    async def order(self) -> tuple[int, dict[str, object], str]:
        """Orders one more job; returns status, answer and name."""
        self.nonce += 1
        name = f"{self.name}-{self.nonce}"
        spec = a_spec(name)
        submission = self.stage.submission(self.key, spec, self.nonce)
        if self.nonce == 1:
            await self.stage.prepay(self.service.url, submission, self.key, 2 * FLOOD)
        async with self.session.post(
            f"{self.service.url}/v1/orders", data=canonical.encode(submission)
        ) as response:
            return response.status, await response.json(), name

    async def must(self) -> str:
        """Orders one more job, which must be accepted; returns its name."""
        status, answer, name = await self.order()
        assert status == 200, answer
        return name


@dataclass
class FairMarket:
    """The whole market of these tests."""

    stage: Stage
    service: Service
    floor: Floor
    flooder: Client
    others: list[Client]

    async def fill(self) -> None:
        """Fills all slots with runs of one client. The first commits widen the provider's window to
        all its slots: each makes room for two more runs.
        """
        for _ in range(2 * SLOTS - 1):
            await self.others[0].must()
        await self.floor.until_matched(1)
        for ended in range(1, SLOTS):
            await self.floor.end_one()
            await self.floor.until_matched(1 + 2 * ended)

    async def waits(self, names: list[str], asked_at: int) -> list[int]:
        """Ends runs until all these jobs were matched. Returns for each how many matches came
        between its Ack and its own match.
        """
        while not set(names) <= set(self.floor.matched):
            assert len(self.floor.matched) < asked_at + 10 * len(names) + SLOTS, (
                "they are not matched"
            )
            await self.floor.end_one()
        return [self.floor.matched.index(name) - asked_at for name in names]


@asynccontextmanager
async def address(number: int) -> AsyncIterator[aiohttp.ClientSession]:
    """Yields connections from one IP address."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(local_addr=(f"127.0.7.{number}", 0))
    ) as session:
        yield session


@asynccontextmanager
async def opened(tmp_path: Path, bounds: RequestBounds = BOUNDS) -> AsyncIterator[FairMarket]:
    """Yields the market until the block ends."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(deployed_stage(tmp_path))
        service = stage.service()
        service.config = replace(service.config, bounds=bounds)
        await stack.enter_async_context(running(service))
        funded = (stage.fund(key, Amount(100 * USD)) for key in (FLOODER, *OTHERS))
        await asyncio.gather(*funded, stage.register(PROVIDER, 0, slots=SLOTS))
        floor = Floor(Place.of(stage, service.url), tmp_path / "outputs")
        session = await stack.enter_async_context(address(100))
        provider = WiredProvider(PROVIDER, floor, session, slots=SLOTS)
        await stack.enter_async_context(provider.serving())
        clients = []
        for number, key in enumerate([FLOODER, *OTHERS]):
            session = await stack.enter_async_context(address(10 + number))
            clients.append(Client(key, f"client-{number}", stage, service, session))
        yield FairMarket(stage, service, floor, clients[0], clients[1:])


async def test_others_wait_a_bounded_number_of_matches_behind_one_account_that_floods(
    tmp_path: Path,
) -> None:
    # An order costs its address a token for each KiB too; here the account's rate is to decide.
    async with opened(tmp_path, dataclasses.replace(BOUNDS, address_burst=600.0)) as hall:
        await hall.fill()
        asked_at = len(hall.floor.matched)
        names = [await client.must() for _ in range(EACH) for client in hall.others]
        alone = await hall.waits(names, asked_at)
        assert max(alone) == len(hall.others) * EACH - 1
        busy = len(hall.floor.matched)
        begun = time.monotonic()
        flood = [await hall.flooder.must() for _ in range(FLOOD)]
        for _ in range(SLOTS):
            assert await hall.floor.end_one() in flood, "it has all slots now"
        while sum(name in flood for name in hall.floor.matched[busy:]) < FLOOD // 10:
            await hall.floor.end_one()
        statuses: Counter[int] = Counter()
        while statuses[429] < 5:
            statuses[(await hall.flooder.order())[0]] += 1
            assert set(statuses) <= {200, 429}, statuses
        allowed = BOUNDS.account_burst + (time.monotonic() - begun) * BOUNDS.account_per_second + 1
        assert FLOOD + statuses[200] <= allowed, "beyond its rate it has to try again later"
        asked_at = len(hall.floor.matched)
        names = [await client.must() for _ in range(EACH) for client in hall.others]
        beside = await hall.waits(names, asked_at)
        assert min(beside) <= 1, "the next slot, or the one after it, goes to somebody who has none"
        # Three accounts share what two shared, and each has a running execution when its last jobs
        # come: no more than that.
        assert max(beside) <= max(alone) * 3 // 2 + SLOTS
        still = [name for name in flood if name not in hall.floor.matched]
        assert len(still) >= FLOOD // 2, "they did not wait for the flood to be over"


async def test_one_address_with_many_keys_is_limited_as_one_address(tmp_path: Path) -> None:
    async with opened(tmp_path) as hall:
        statuses: Counter[int] = Counter()
        kept: set[str] = set()
        begun = time.monotonic()
        async with address(66) as session:
            for number in range(240):
                key = KeySigner((1 << 200 | number % 80).to_bytes(32, "big"))
                async with session.get(
                    f"{hall.service.url}/v1/runs", headers=hall.stage.token(key.address, key)
                ) as response:
                    statuses[response.status] += 1
                    if response.status == 429:
                        kept.add((await response.json())["code"])
                        assert int(response.headers["Retry-After"]) >= 1
        allowed = BOUNDS.address_burst + (time.monotonic() - begun) * BOUNDS.address_per_second + 1
        assert 100 <= statuses[200] <= allowed, statuses
        assert statuses[429] == 240 - statuses[200] > 0 and kept == {"busy"}
        await hall.fill()
        mine = await hall.others[1].must()
        assert await hall.waits([mine], len(hall.floor.matched)) == [0], (
            "nobody at another address notices"
        )
