"""Tests a chain node that lies.

It gives wrong types, huge and negative numbers, logs of other blocks, endless reorganisations, or
no answer. The reader raises Unavailable or Refused, and the coordinator stays up. Nothing is
missing when the node tells the truth again.
"""

import asyncio
import gzip
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quorate_protocol.limits import USD
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.chain.rpc import ANSWER_BYTES_MAX, RpcFailure
from quorate_runtime.http.client_sessions import plain_session
from support.http_server import on_loopback
from support.markets.coordinator_stage import deployed_stage, running, until

HEX = "0x" + "11" * 32
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
NONSENSE: list[Any] = [
    None,
    True,
    -1,
    1.5,
    "",
    "0x",
    "0xzz",
    "0x-1",
    "-0x1",
    "0x_1",
    "0x" + "f" * 65,
    "0x" + "f" * 100_000,
    "1",
    [],
    [[]],
    {},
    {"number": "0x1"},
    {"number": "-0x1", "hash": HEX, "parentHash": HEX, "timestamp": "0x1"},
    {"number": "0x" + "f" * 64, "hash": HEX},
    {"number": "0x1", "hash": HEX, "parentHash": HEX, "timestamp": "0x" + "f" * 60},
    {"logs": 7, "blockNumber": "0x1", "blockHash": HEX},
    [{"address": "0x" + "22" * 20, "topics": 5}],
    [{"address": "0x" + "22" * 20, "topics": [HEX], "data": "0x", "blockNumber": "0xffffff"}],
]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{rest:.*}", answer)
    async with on_loopback(app) as url:
        yield url


def questions(client: ChainClient) -> list[Callable[[], Awaitable[object]]]:
    who, digest = Address(b"\x22" * 20), Hash32(b"\x11" * 32)
    return [
        client.chain_id,
        client.head,
        client.block,
        client.fees,
        lambda: client.logs(BlockNumber(1), BlockNumber(5), [who]),
        lambda: client.receipt(digest),
        lambda: client.call(who, b""),
        lambda: client.estimate_gas(who, b"", who),
        lambda: client.balance(who),
        lambda: client.nonce(who),
        lambda: client.code(who),
        lambda: client.send_raw(b"\x01"),
    ]


async def is_typed(ask: Callable[[], Awaitable[object]]) -> bool:
    """Whether the answer was refused by a typed error. An answer may also fit by chance."""
    try:
        async with asyncio.timeout(20):
            await ask()
    except (Unavailable, Refused, RpcFailure):
        return True
    return False


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate_runtime.chain.rpc.RETRY_SECONDS", 0.0)


async def test_every_query_refuses_or_accepts_each_nonsense_answer() -> None:
    told: list[Any] = [None]

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": told[0]})

    refused = 0
    async with serving(answer) as url, plain_session() as session:
        for nonsense in NONSENSE:
            told[0] = nonsense
            for ask in questions(ChainClient(Rpc(url, session))):
                refused += await is_typed(ask)
    assert refused > 0.8 * len(NONSENSE) * 12, "nearly all of it fits nothing"


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * (1 << 20))


async def bomb(_: web.Request) -> web.Response:
    return web.Response(
        body=gzip.compress(b"[" * (64 << 20)),
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )


async def elsewhere(request: web.Request) -> web.Response:
    assert request.path == "/", "nobody is sent to the neighbours"
    return web.Response(status=307, headers={"Location": "/latest/meta-data"})


async def no_json(_: web.Request) -> web.Response:
    return web.Response(text="<html>" + "[" * 100_000)


async def deep(_: web.Request) -> web.Response:
    return web.Response(body=b"[" * 1_000_000, content_type="application/json")


@pytest.mark.parametrize(
    "answer", [endless, bomb, elsewhere, no_json, deep], ids=lambda found: found.__name__
)
async def test_oversized_or_shapeless_answers_end_in_bounded_time_and_memory(
    answer: Answer,
) -> None:
    async with serving(answer) as url, plain_session() as session:
        begun = time.process_time()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30):
                await Rpc(url, session).request("eth_blockNumber")
        assert time.process_time() - begun < 10
    assert ANSWER_BYTES_MAX <= 64 << 20


async def test_silence_ends_by_the_deadline() -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(silent) as url, plain_session() as session:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(
                Rpc(url, session, timeout_seconds=0.2).request("eth_blockNumber"), 5
            )


class LyingProxy:
    """Before a real node: while `is_lying`, about half of the answers are spoiled, in a seeded
    order.
    """

    def __init__(self, url: str) -> None:
        self._url, self._random = url, random.Random(7)
        self.is_lying, self.lies = False, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with (
            plain_session() as session,
            session.post(
                self._url, data=body, headers={"Content-Type": "application/json"}
            ) as found,
        ):
            tree = json.loads(await found.read())
        if self.is_lying and self._random.random() < 0.5:
            self.lies += 1
            return self._spoiled(tree, json.loads(body)["method"])
        return web.json_response(tree)

    def _spoiled(self, tree: Any, method: str) -> web.Response:
        kind = self._random.randrange(6)
        result = tree.get("result")
        if kind == 0:
            return web.Response(body=b"{" * 100, content_type="application/json")
        if kind == 1:
            tree["result"] = self._random.choice(NONSENSE)
        elif isinstance(result, dict) and result:
            name = self._random.choice(sorted(result))
            # A hash that changes is a reorganisation without end; numbers and times jump.
            other = [
                "0x" + self._random.randbytes(32).hex(),
                hex(self._random.getrandbits(70)),
                None,
                "0x0",
                [],
            ]
            result[name] = self._random.choice(other)
        elif method == "eth_getLogs":
            log = {
                "address": HEX[:42],
                "topics": [HEX],
                "data": "0x",
                "blockNumber": "0x1",
                "blockHash": HEX,
                "logIndex": "0x0",
            }
            tree["result"] = [{**log, "transactionHash": HEX}] * 50
        elif isinstance(result, str):
            tree["result"] = "0x" + self._random.randbytes(self._random.randrange(200)).hex()
        else:
            tree = {
                "jsonrpc": "2.0",
                "id": 1,
                "error": {"code": self._random.choice([-32603, 3, 10**30]), "message": "x" * 5000},
            }
        return web.json_response(tree)


async def test_a_coordinator_outlives_a_lying_node_and_misses_nothing(tmp_path: Path) -> None:
    async with deployed_stage(tmp_path) as stage:
        proxy = LyingProxy(stage.chain_url)
        async with serving(proxy.answer) as url:
            honest, stage.chain_url = replace(stage), url
            async with running(stage.service()) as service:

                async def is_up() -> int:
                    async with stage.session.get(f"{service.url}/v1/info") as response:
                        return response.status

                proxy.is_lying = True
                await honest.fund(stage.client, Amount(80 * USD))
                deadline = time.monotonic() + 40
                while proxy.lies < 30:
                    assert time.monotonic() < deadline, f"only {proxy.lies} lies were asked for"
                    assert await is_up() == 200, "others do not notice"
                    await asyncio.sleep(0.05)
                proxy.is_lying = False
                token = stage.token(stage.client.address, stage.client, 600)

                async def locked() -> int:
                    place = f"{service.url}/v1/accounts/0x{stage.client.address.hex()}"
                    async with stage.session.get(place, headers=token) as response:
                        return int((await response.json())["locked"])

                await until(locked, lambda found: found == 80 * USD, 40)
            # The journal of that time can be read back.
            async with running(stage.service()):
                assert proxy.lies >= 30
