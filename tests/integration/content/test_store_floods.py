"""Accounts fill the staging store over HTTP, on a real coordinator and chain with real providers,
at 1/100,000 of the real sizes.

Five accounts fill it, first with a micro-USD each, then with as much as the store can hold. An
honest client uploads an input and runs a job; its provider stores the output, and the receipt
appears.
"""

import asyncio
import io
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from quorate_coordinator.base.storage_sizes import StagingQuota
from quorate_coordinator.service import Service
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec import canonical
from quorate_protocol.limits import USD
from quorate_protocol.messages.job_spec import Input, Resources
from quorate_protocol.units import Amount
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.coordinator_stage import Stage, deployed_stage, running, until
from support.markets.wired_providers import Floor, Place, WiredProvider
from support.messages import a_spec

KIB, MIB = 1 << 10, 1 << 20
SHARES = StagingQuota(store_bytes=50 * MIB, bytes_per_usd=4 * MIB, floor_bytes=256 * KIB)
HONEST, STRANGER = KeySigner(dev_account(4)), KeySigner(b"\x77" * 32)
FILLERS = [KeySigner(dev_account(i)) for i in range(10, 15)]
PROVIDER = KeySigner(dev_account(7))
DUST, MUCH, ENOUGH = Amount(1), Amount(2 * USD), Amount(20 * USD)


@dataclass
class Hall:
    """The whole market."""

    stage: Stage
    service: Service
    floor: Floor
    session: aiohttp.ClientSession

    def headers(self, key: KeySigner) -> dict[str, str]:
        """Returns the account's token as a header."""
        return self.stage.token(key.address, key)

    async def upload(self, key: KeySigner, data: bytes) -> tuple[int, dict[str, str]]:
        """Uploads and returns (status, answer)."""
        async with self.session.put(
            f"{self.service.url}/v1/content", data=io.BytesIO(data), headers=self.headers(key)
        ) as response:
            return response.status, await response.json()

    async def is_there(self, cid: str) -> bool:
        """Returns whether the honest client may read it here."""
        async with self.session.get(
            f"{self.service.url}/v1/content/{cid}?format=raw", headers=self.headers(HONEST)
        ) as response:
            return response.status == 200

    async def deposit(self, key: KeySigner, money: Amount) -> None:
        """Deposits more money and waits until the coordinator has seen it."""
        before = await self.locked(key)
        await self.stage.fund(key, money)
        await until(lambda: self.locked(key), lambda seen: seen == before + money)

    async def locked(self, key: KeySigner) -> int:
        """Returns what the coordinator knows to be in its tab."""
        url = f"{self.service.url}/v1/accounts/0x{key.address.hex()}"
        async with self.session.get(url, headers=self.headers(key)) as response:
            return int((await response.json()).get("locked", 0))

    async def order(self, cid: str, size: int) -> str:
        """Orders the honest client's job with this input and returns its id."""
        small = Resources(output_bytes=MIB)  # three of them fit into the store
        spec = replace(
            a_spec("honest"), inputs=(Input(cid, "/inputs/data", size),), resources=small
        )
        submission = self.stage.submission(HONEST, spec, 1)
        await self.stage.prepay(self.service.url, submission, HONEST)
        async with self.session.post(
            f"{self.service.url}/v1/orders", data=canonical.encode(submission)
        ) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return str(answer["jobId"])

    async def receipt(self, job: str) -> int:
        """Returns the HTTP status of its receipt for its client."""
        async with self.session.get(
            f"{self.service.url}/v1/receipts/{job}", headers=self.headers(HONEST)
        ) as response:
            return response.status

    def owners(self, part: str) -> dict[str, int]:
        """Returns the pins in one part of the store by owner."""
        base = sqlite3.connect(self.stage.home / "store" / part / "index.sqlite")
        try:
            return dict(base.execute("select owner, count(*) from pin group by owner").fetchall())
        finally:
            base.close()


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[Hall]:
    """Runs the market until the block ends."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(deployed_stage(tmp_path))
        service = stage.service()
        service.config = replace(service.config, staging=SHARES)
        await stack.enter_async_context(running(service))
        floor = Floor(Place.of(stage, service.url), tmp_path / "outputs")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        hall = Hall(stage, service, floor, session)
        poor = (hall.deposit(key, DUST) for key in FILLERS)
        await asyncio.gather(hall.deposit(HONEST, ENOUGH), *poor, stage.register(PROVIDER, 0))
        await stack.enter_async_context(WiredProvider(PROVIDER, floor, session).serving())
        yield hall


async def fill(hall: Hall, key: KeySigner, size: int) -> tuple[list[str], dict[str, str]]:
    """Uploads until refused. Returns what was stored, and the refusal."""
    put: list[str] = []
    for _ in range(200):
        status, answer = await hall.upload(key, os.urandom(size))
        if status != 200:
            assert status == 507, answer
            return put, answer
        put.append(answer["cid"])
    raise AssertionError("it is never refused")


async def test_an_honest_client_works_while_others_fill_the_store(tmp_path: Path) -> None:
    async with opened(tmp_path) as hall:
        await dust_takes_its_floor_and_no_more(hall)
        await money_takes_what_others_do_not_need(hall)
        await the_honest_client_is_served(hall)


async def dust_takes_its_floor_and_no_more(hall: Hall) -> None:
    for key in FILLERS:
        status, answer = await hall.upload(key, os.urandom(5 * MIB))
        assert (status, answer["code"]) == (507, "quota") and "deposit more" in answer["detail"], (
            answer
        )
        put, refusal = await fill(hall, key, 60 * KIB)
        assert len(put) == SHARES.floor_bytes // (64 * KIB), refusal
        assert (
            "deposit more" in refusal["detail"] and str(SHARES.bytes_per_usd) in refusal["detail"]
        )
    assert hall.owners("uploads") == {}, (
        "what is next to nothing has no place where money has bought one"
    )
    for key, code in ((STRANGER, "not-registered"), (PROVIDER, "wrong-phase")):
        status, answer = await hall.upload(key, b"junk")
        assert (status, answer["code"]) in ((403, code), (409, code)), answer


async def money_takes_what_others_do_not_need(hall: Hall) -> None:
    await asyncio.gather(*(hall.deposit(key, MUCH) for key in FILLERS))
    for key in FILLERS:
        _, refusal = await fill(hall, key, MIB - KIB)
        assert refusal["code"] == "quota" and "deposit more" in refusal["detail"]
    held = hall.owners("uploads")
    assert sum(held.values()) * MIB > SHARES.uploads - 2 * MIB, "it is full"
    assert max(held.values()) - min(held.values()) <= 2, "who has as much holds as much"


async def the_honest_client_is_served(hall: Hall) -> None:
    data = os.urandom(3 * MIB)
    status, answer = await hall.upload(HONEST, data)
    assert status == 200, answer
    job = await hall.order(answer["cid"], len(data))
    for key in FILLERS:
        await fill(hall, key, 2 * MIB)
    assert await hall.is_there(answer["cid"]), "who holds less for its money yields nothing"
    await hall.floor.until_matched(1)
    hall.floor.runs[0].set()
    await until(lambda: hall.receipt(job), lambda status: status == 200, 60.0)
    name = "0x" + HONEST.address.hex()

    async def outputs() -> dict[str, int]:
        return hall.owners("outputs")

    await until(outputs, lambda owners: owners == {name: 1})
    assert hall.owners("uploads")[name] == 1
