"""Tests strangers that send floods, slow requests, compressed bombs and nonsense.

Every answer is typed and bounded, and other clients are served as usual.
"""

import asyncio
import contextlib
import dataclasses
import gzip
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quorate_coordinator.api.handlers import OPERATIONS
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.service import Service
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.coordinator_stage import Stage, deployed_stage, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = dataclasses.replace(
    DEVNET_BOUNDS,
    address_per_second=0.1,
    address_burst=20_000.0,
    account_per_second=1.0,
    account_burst=60.0,
    address_connections_max=150,
    account_streams_max=2,
    head_and_idle_seconds=2.0,
    body_seconds=1.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(folder: Path) -> AsyncIterator[tuple[Stage, Service]]:
    async with deployed_stage(folder) as stage:
        service = stage.service()
        service.config = replace(service.config, bounds=SMALL)
        async with running(service):
            yield stage, service


Market = tuple[Stage, Service]


def token_of(stage: Stage, key: KeySigner) -> dict[str, str]:
    return stage.token(key.address, key)


REQUEST = b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def connect(
    service: Service, from_address: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", int(service.url.rpartition(":")[2]), local_addr=(from_address, 0)
    )


async def talk(
    service: Service, data: bytes, seconds: float = 10.0, from_address: str = "127.0.0.1"
) -> bytes:
    """Sends raw bytes; returns all that comes back until the other side closes."""
    reader, writer = await connect(service, from_address)
    try:
        writer.write(data)
        async with asyncio.timeout(seconds):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def typed(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def is_served(market: Market) -> float:
    """Returns the seconds until another client is answered."""
    stage, service = market
    begun = time.monotonic()
    async with stage.session.get(f"{service.url}/v1/health") as response:
        assert response.status == 200
    return time.monotonic() - begun


async def test_the_document_names_every_mounted_route(market: Market) -> None:
    stage, service = market
    async with stage.session.get(f"{service.url}/v1/openapi.json") as response:
        paths = (await response.json())["paths"]
    named = {(method.upper(), path) for path, item in paths.items() for method in item}
    assert service.app is not None
    mounted = {
        (route.method, route.resource.canonical)
        for route in service.app.router.routes()
        if route.resource and route.method != "HEAD"
    }
    assert named == mounted == {(item.method, item.path) for item in OPERATIONS}


async def test_bytes_that_are_no_http_get_a_typed_answer(market: Market) -> None:
    _, service = market
    cases = (
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 9_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n"
        + b"".join(b"h%d: 1\r\n" % i for i in range(200))
        + b"\r\n",
        b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        (
            b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: "
            b"3\r\n\r\nabc"
        ),
    )
    for data in cases:
        status, tree = typed(await talk(service, data))
        assert (
            status == 400 and tree["code"] == "malformed" and "Traceback" not in json.dumps(tree)
        ), data[:60]


async def test_unknown_paths_and_methods_get_a_typed_answer(market: Market) -> None:
    stage, service = market
    for method, path, status, code in (
        ("GET", "/nowhere", 404, "unknown"),
        ("DELETE", "/v1/info", 405, "unsupported"),
    ):
        async with stage.session.request(method, service.url + path) as response:
            assert (response.status, (await response.json())["code"]) == (status, code)


async def test_encoded_bodies_are_refused_unopened(market: Market) -> None:
    stage, service = market
    # In a thread: if this loop stood still, the service would close idle connections that the
    # client would then take for open ones.
    bomb = await asyncio.to_thread(gzip.compress, b" " * (64 << 20))
    assert len(bomb) < 100_000
    for method, path in (("POST", "/v1/orders"), ("PUT", "/v1/content")):
        begun = time.process_time()
        async with stage.session.request(
            method, service.url + path, data=bomb, headers={"Content-Encoding": "gzip"}
        ) as response:
            assert (response.status, (await response.json())["code"]) == (415, "unsupported")
        assert time.process_time() - begun < 5


async def test_requests_with_a_slow_head_or_body_are_ended(market: Market) -> None:
    _, service = market
    head = b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    status, tree = typed(await talk(service, head))
    assert (status, tree["code"]) == (408, "too-late")
    assert await talk(service, b"GET /v1/info HTTP/1.1\r\nHost:") == b"", (
        "well before talk gives up"
    )


async def test_idle_connections_of_one_address_are_bounded(market: Market) -> None:
    _, service = market
    wanted = 3 * SMALL.address_connections_max
    opened = await asyncio.gather(*(connect(service, "127.0.0.7") for _ in range(wanted)))

    def held() -> int:
        return sum(not reader.at_eof() and not writer.is_closing() for reader, writer in opened)

    try:
        async with asyncio.timeout(10):
            while held() > SMALL.address_connections_max:
                await asyncio.sleep(0.02)
        assert await is_served(market) < 2, "another address does not notice"
        answer = await talk(service, REQUEST, from_address="127.0.0.7")
        # On a busy machine the idle ones may have reached their own bound in the meantime.
        assert answer == b"" or held() < SMALL.address_connections_max, (
            "this one gets nothing while it holds all it may"
        )
    finally:
        for _, writer in opened:
            writer.close()
    async with asyncio.timeout(10):
        while not (await talk(service, REQUEST, from_address="127.0.0.7")).startswith(
            b"HTTP/1.1 200"
        ):
            await asyncio.sleep(0.05)


async def test_an_account_that_asks_too_often_is_told_when_to_come_again(market: Market) -> None:
    stage, service = market
    headers = token_of(stage, KeySigner(b"\x55" * 32))
    statuses = []
    for _ in range(int(SMALL.account_burst) + 10):
        async with stage.session.get(f"{service.url}/v1/runs", headers=headers) as response:
            statuses.append(response.status)
            if response.status == 429:
                assert (
                    int(response.headers["Retry-After"]) >= 1
                    and (await response.json())["code"] == "busy"
                )
    assert statuses[:50] == [200] * 50 and statuses[-1] == 429
    async with stage.session.get(
        f"{service.url}/v1/runs", headers=token_of(stage, KeySigner(b"\x56" * 32))
    ) as response:
        assert response.status == 200, "another account does not notice"


async def test_streams_of_one_account_are_bounded(market: Market) -> None:
    stage, service = market
    headers = token_of(stage, KeySigner(b"\x57" * 32))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(SMALL.account_streams_max):
            response = await stack.enter_async_context(
                stage.session.get(f"{service.url}/v1/events", headers=headers)
            )
            assert response.status == 200
        async with stage.session.get(f"{service.url}/v1/events", headers=headers) as response:
            tree = await response.json()
            assert (response.status, tree["code"]) == (429, "busy") and "streams" in tree["detail"]


async def test_a_bug_is_described_in_the_log_and_not_in_the_answer(
    market: Market, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, service = market

    def broken(*_: object) -> None:
        raise KeyError("a secret of the house")

    monkeypatch.setattr("quorate_coordinator.core.views.account_view", broken)
    with caplog.at_level(logging.ERROR):
        key = KeySigner(b"\x58" * 32)
        async with stage.session.get(
            f"{service.url}/v1/accounts/0x{key.address.hex()}", headers=token_of(stage, key)
        ) as response:
            text = await response.text()
    assert response.status == 500 and json.loads(text)["code"] == "internal"
    assert "secret" not in text and "Traceback" not in text
    assert any(record.exc_info for record in caplog.records), "the log has the trace"
    assert await is_served(market) < 2


async def test_no_path_leads_out_of_the_store(market: Market) -> None:
    _, service = market
    for path in (
        "/v1/content/..%2f..%2fjournal",
        "/v1/content/%2e%2e",
        "/v1/content/../market.sqlite",
        "/v1/content/%00",
        "/v1/content/" + "b" * 5000,
    ):
        status, tree = typed(
            await talk(
                service,
                b"GET " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
        )
        assert status in (400, 404) and tree["code"] in ("malformed", "unknown"), path
