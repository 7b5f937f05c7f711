"""Tests a beacon that lies about a round.

Nothing false reaches the core, and the other rounds arrive.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from quorate_coordinator.chain.beacon_poller import BeaconPoller
from quorate_coordinator.core.model.events import RoundAppeared
from quorate_devnet.beacon import BeaconConfig, LocalBeacon
from quorate_protocol.messages.beacon_rounds import round_at
from quorate_protocol.units import Round, Seconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.http import beacon_client as client
from quorate_runtime.http.beacon_client import HttpBeacon
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.keys import bls
from quorate_runtime.process.health import Board
from support.http_server import on_loopback

CONFIG = BeaconConfig(b"0123456789abcdef", 1_000_000, Seconds(2))
HONEST = LocalBeacon(CONFIG)
Talk = Callable[[web.Request, int], Awaitable[web.StreamResponse]]


async def of_another_round(_: web.Request, number: int) -> web.StreamResponse:
    return web.json_response(
        {
            **(HONEST.form(Round(number)) or {}),
            "signature": (HONEST.form(Round(number + 1)) or {})["signature"],
        }
    )


async def of_another_number(_: web.Request, number: int) -> web.StreamResponse:
    return web.json_response(HONEST.form(Round(number + 1)))


async def of_another_key(_: web.Request, number: int) -> web.StreamResponse:
    made = bls.beacon_round(bls.keygen(b"fedcba9876543210"), Round(number))
    return web.json_response(
        {"round": number, "signature": made.signature.hex(), "randomness": made.randomness.hex()}
    )


async def without_end(request: web.Request, number: int) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        await response.write(json.dumps({"round": number})[:-1].encode() + b', "more": "')
        while True:
            await response.write(b"x" * 65536)
    except ConnectionError:
        return response


async def drop_by_drop(request: web.Request, number: int) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)
    except ConnectionError:
        return response


async def never(request: web.Request, number: int) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def deep(_: web.Request, number: int) -> web.StreamResponse:
    return web.Response(body=b'{"round":' + b"[" * 8_000)


async def a_bomb(_: web.Request, number: int) -> web.StreamResponse:
    return web.Response(
        body=zlib.compress(bytes(64 << 20), 9), headers={"Content-Encoding": "deflate"}
    )


async def a_huge_number(_: web.Request, number: int) -> web.StreamResponse:
    return web.Response(body=b'{"round":' + b"9" * 10_000 + b"}")


LIES = (
    of_another_round,
    of_another_number,
    of_another_key,
    without_end,
    drop_by_drop,
    never,
    deep,
    a_bomb,
    a_huge_number,
)


@asynccontextmanager
async def relay(lie: Talk, about: set[int]) -> AsyncIterator[str]:
    """Honest but about some rounds."""

    async def handle(request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["round"])
        if number in about:
            return await lie(request, number)
        return web.json_response(HONEST.form(Round(number)))

    app = web.Application()
    app.router.add_get("/public/{round}", handle)
    async with on_loopback(app) as url:
        yield url


@pytest.mark.rule("5.21", "9.4")
@pytest.mark.parametrize("lie", LIES, ids=[item.__name__ for item in LIES])
async def test_lie_about_one_round_delays_only_that_round(
    lie: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.01)
    got: list[RoundAppeared] = []
    waited = {Round(7), Round(8), Round(9)}
    board, about = Board(), {7}

    async def submit(event: RoundAppeared) -> None:
        got.append(event)
        waited.discard(event.round)

    async with relay(lie, about) as url, plain_session() as session, asyncio.timeout(20):
        beacon = HttpBeacon(url, HONEST.info, session, SystemClock())
        rounds = BeaconPoller(lambda: sorted(waited), submit, beacon, url, board, SystemClock())
        for _ in range(3):
            await rounds.look()
        assert waited == {7} and [event.round for event in got] == [8, 9]
        assert all(
            bls.verify_round(HONEST.info.public_key, event.round, event.signature) for event in got
        )
        (problem,) = board.problems()
        assert problem.name == "beacon" and url in problem.text
        about.clear()
        await rounds.look()
    assert not waited and not board.problems()


async def test_a_beacon_that_is_away_is_noticed_while_no_round_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.01)
    board, clock, status = Board(), SystemClock(), [503]

    async def submit(event: RoundAppeared) -> None:
        raise AssertionError(f"no round was wanted: {event}")

    async def away(_: web.Request, __: int) -> web.StreamResponse:
        return web.Response(status=status[0])

    newest = round_at(HONEST.info, int(clock.now()))
    about = set(range(newest - 10, newest + 100))
    async with relay(away, about) as url, plain_session() as session:
        beacon = HttpBeacon(url, HONEST.info, session, clock)
        rounds = BeaconPoller(list, submit, beacon, url, board, clock)
        for status[0], sentence in ((503, "HTTP 503"), (404, "is missing")):
            await rounds.look_at_newest()
            await rounds.look()
            (problem,) = board.problems()
            assert sentence in problem.text and f"look at the beacon at {url}" in problem.text
        about.clear()
        await rounds.look_at_newest()
    assert not board.problems()
