"""Tests the local beacon and the client that verifies it: no round is early, none is false."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate_devnet.beacon import BeaconConfig, LocalBeacon, running_beacon
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Round, Seconds
from quorate_runtime.http.beacon_client import HttpBeacon, fetch_info
from quorate_runtime.keys import bls
from support.chain.empty_chain import program, ready_facts
from support.http_server import on_loopback

GENESIS = 1_000_000
CONFIG = BeaconConfig(b"0123456789abcdef", GENESIS, Seconds(2))


class Hands:
    """A clock moved by hand; sleeping moves it."""

    def __init__(self, unix: float) -> None:
        self.unix = unix

    def now(self) -> float:
        return self.unix

    async def sleep(self, seconds: float) -> None:
        self.unix += seconds


@asynccontextmanager
async def answering(bodies: dict[str, tuple[int, bytes]]) -> AsyncIterator[tuple[str, list[str]]]:
    """A relay that answers with `bodies`; yields its URL and the paths that it was asked for."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        status, body = bodies[request.path]
        return web.Response(status=status, body=body)

    application = web.Application()
    application.router.add_get("/{tail:.*}", handle)
    async with on_loopback(application) as url:
        yield url, asked


@pytest.mark.rule("9.3")
async def test_rounds_appear_at_their_time_and_verify() -> None:
    clock = Hands(GENESIS - 1)
    async with running_beacon(CONFIG, clock.now) as url, aiohttp.ClientSession() as session:
        info = await fetch_info(url, session)
        assert (
            info == LocalBeacon(CONFIG).info and info.genesis_time == GENESIS and info.period == 2
        )
        beacon = HttpBeacon(url, info, session, clock)
        assert await beacon.round(Round(1)) is None
        for number in (Round(1), Round(2), Round(50)):
            clock.unix = round_time(info, number) - 0.01
            assert await beacon.round(number) is None
            clock.unix = round_time(info, number)
            found = await beacon.round(number)
            assert found is not None and found.round == number
            assert bls.verify_round(info.public_key, number, found.signature)
        assert await beacon.round(Round(0)) is None


async def test_the_beacon_serves_its_latest_round_and_refuses_unknown_paths() -> None:
    clock = Hands(GENESIS + 9)
    async with running_beacon(CONFIG, clock.now) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/public/latest") as response:
            assert (await response.json())["round"] == 5
        for path in ("/public/6", "/public/-1", "/public/" + "9" * 19, "/public/x"):
            async with session.get(url + path) as response:
                assert response.status == 404


@pytest.mark.rule("9.4")
@pytest.mark.parametrize(
    "forge",
    [
        lambda form: (
            form
            | {"signature": LocalBeacon(CONFIG, lambda: GENESIS + 99).form(Round(8))["signature"]}
        ),  # type: ignore[index]
        lambda form: form | {"signature": "00" * 48},
        lambda form: form | {"signature": "xyz"},
        lambda form: form | {"round": 8},
        lambda form: {"round": 7},
    ],
    ids=["of-another-round", "no-point", "no-hex", "other-round", "nothing"],
)
async def test_a_false_round_is_never_handed_out(forge: object) -> None:
    honest = LocalBeacon(CONFIG, lambda: GENESIS + 99).form(Round(7))
    body = json.dumps(forge(honest)).encode()  # type: ignore[operator]
    async with (
        answering({"/public/7": (200, body)}) as (url, asked),
        aiohttp.ClientSession() as session,
    ):
        beacon = HttpBeacon(url, LocalBeacon(CONFIG).info, session, Hands(GENESIS + 99))
        with pytest.raises(Unavailable, match="round 7"):
            await beacon.round(Round(7))
        assert len(asked) == 3


async def test_another_key_is_refused_and_a_lying_randomness_ignored() -> None:
    honest = LocalBeacon(CONFIG, lambda: GENESIS + 99).form(Round(7))
    assert honest is not None
    body = json.dumps(honest | {"randomness": "00" * 32}).encode()
    async with (
        answering({"/public/7": (200, body)}) as (url, asked),
        aiohttp.ClientSession() as session,
    ):
        mine = LocalBeacon(CONFIG).info
        stranger = BeaconInfo(
            bls.public_key(bls.keygen(b"fedcba9876543210")), mine.period, mine.genesis_time
        )
        with pytest.raises(Unavailable, match="does not verify"):
            await HttpBeacon(url, stranger, session, Hands(GENESIS + 99)).round(Round(7))
        asked.clear()
        beacon = HttpBeacon(url, mine, session, Hands(GENESIS + 99))
        for _ in range(3):
            found = await beacon.round(Round(7))
            assert found is not None and found.randomness.hex() == honest["randomness"]
        assert len(asked) == 1  # the client kept it


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, b""), (200, b"[]"), (200, b"no"), (200, b"{" + b" " * 20000), (302, b"")],
)
async def test_a_confused_relay_is_unavailable(status: int, body: bytes) -> None:
    async with (
        answering({"/public/7": (status, body)}) as (url, _),
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(Unavailable):
            await HttpBeacon(url, LocalBeacon(CONFIG).info, session, Hands(GENESIS + 99)).round(
                Round(7)
            )


async def test_a_round_far_ahead_is_not_requested() -> None:
    async with answering({}) as (url, asked), aiohttp.ClientSession() as session:
        beacon = HttpBeacon(url, LocalBeacon(CONFIG).info, session, Hands(GENESIS))
        assert await beacon.round(Round(100)) is None and not asked


async def test_the_beacon_runs_as_a_process(tmp_path: Path) -> None:
    genesis = str(int(time.time()) - 10)
    words = ("--port", "0", "--seed", CONFIG.seed.hex(), "--genesis", genesis, "--period", "2")
    with program(tmp_path, "beacon", "quorate_devnet.beacon", *words) as process:
        facts = ready_facts(tmp_path / "beacon.ready", process)
        async with aiohttp.ClientSession() as session:
            info = await fetch_info(facts["url"], session)
            assert info.public_key.hex() == facts["public_key"]
            clock = Hands(time.time())
            assert await HttpBeacon(facts["url"], info, session, clock).round(Round(3)) is not None
    assert process.returncode == 0
