"""Tests a coordinator that replays its journal.

It answers that it is starting, because its state is still old.
"""

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from quorate_contracts.deploy import plan
from quorate_coordinator.api.middleware import refuse_early
from quorate_coordinator.base.config import FILES_KEPT, Config
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.service import Service
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, BlockNumber, Seconds, UnixSeconds
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.beacon import bls
from quorate_runtime.http.error_responses import failures
from quorate_runtime.journal.journal import Journal
from quorate_runtime.journal.journal_port import Record
from quorate_runtime.keys.crypto import KeySigner, PeerKey


async def test_only_health_is_answered_before_the_coordinator_is_ready() -> None:
    ready: list[bool] = []
    app = web.Application(middlewares=[failures, refuse_early(lambda: bool(ready))])

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    for path in ("/v1/health", "/v1/runs/0x12", "/v1/peers"):
        app.router.add_get(path, answer)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/v1/health")).status == 200
        for path in ("/v1/runs/0x12", "/v1/peers"):
            early = await client.get(path)
            assert (
                early.status == 503
                and (await early.json())["code"] == "unavailable"
                and early.headers["Retry-After"] == "1"
            )
        ready.append(True)
        for path in ("/v1/runs/0x12", "/v1/peers"):
            assert (await client.get(path)).status == 200


async def test_a_start_with_many_pending_effects_waits_until_they_are_performed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash left more pending effects than the limit for new events. If the coordinator ended
    again, it would perform none of them.
    """
    beacon = BeaconInfo(
        bls.public_key(bls.keygen(b"32 bytes or more of nobody's seed")),
        Seconds(2),
        int(time.time()),
    )
    deployment = plan(
        ZERO_ADDRESS, 0, 31337, BlockNumber(0), DEVNET, beacon, faucet=True
    ).deployment
    codec: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
    journal = Journal.open(
        tmp_path / "journal"
    )  # a coordinator that has worked before starts without a chain
    await journal.append(
        Record(codec.version, UnixSeconds(1), ZERO_HASH, codec.encode_event(ev.Restarted()))
    )
    await journal.close()
    nowhere, keys = (
        "http://127.0.0.1:1",
        CoordinatorKeys(
            *(KeySigner(bytes([number]) * 32) for number in (1, 2, 3)), PeerKey(b"\x04" * 32)
        ),
    )
    monkeypatch.setattr("quorate_runtime.actor.actor.PENDING_MAX", -1)
    in_its_place = tmp_path / "market.sqlite"
    (in_its_place / "somebody's").mkdir(parents=True)
    service = Service(
        Config(
            deployment, nowhere, nowhere, home=tmp_path, port=0, begin_anew=frozenset(FILES_KEPT)
        ),
        keys,
    )
    running, deadline = asyncio.create_task(service.run()), time.monotonic() + 20

    async def problems() -> set[str]:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{service.url}/v1/health") as response:
                return {item["name"] for item in (await response.json())["problems"]}
        return set()

    async with aiohttp.ClientSession() as session:
        while not (service.url and "outbox" in await problems()):
            assert not running.done() and time.monotonic() < deadline, running
            await asyncio.sleep(0.02)
        assert not service.ready.is_set()
        monkeypatch.undo()
        monkeypatch.setattr("quorate_coordinator.status.market_tables.REFRESH_SECONDS", 0.02)
        async with asyncio.timeout(10):
            await service.ready.wait()
        while "outbox" in (found := await problems()) or "tables" not in found:
            assert not running.done() and time.monotonic() < deadline, found
        shutil.rmtree(in_its_place)
        while "tables" in await problems():
            assert not running.done() and time.monotonic() < deadline
        assert in_its_place.is_file()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
