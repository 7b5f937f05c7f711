"""Stands before a real chain node and loses, refuses or changes what passes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from quorate_protocol.messages.ports import Signer
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Sender, SendPolicy
from quorate_runtime.clock import SystemClock
from support.chain.chain_nodes import CHAIN_ID, Key, Node
from support.chain.chain_proxy import through

QUICK = SendPolicy(poll_seconds=0.02, resend_seconds=0.05, bump_seconds=60)
SINK = Address(b"\x22" * 20)
Change = Callable[[str, Any], Any]
Instead = Callable[[str, Any], Awaitable[dict[str, Any] | None]]


async def forwarded(method: str, params: Any) -> None:
    return None


class Meddler:
    """Stands before a real node. `sends` says what happens to each hand-over, in order; after the
    last one all are forwarded.

    "lost": forwarded, and the answer is lost. "dropped": neither forwarded nor answered. Other
    words: forwarded, and the caller is told these words. "-" and words: not forwarded.

    `instead` may change the parameters of a request, or answer it in the place of the node.
    `change` changes answers.
    """

    def __init__(self, target: str, *sends: str) -> None:
        self.target, self.sends = target, list(sends)
        self.methods, self.raw = list[str](), list[str]()
        self.change: Change = lambda method, tree: tree
        self.instead: Instead = forwarded

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.methods.append(body["method"])
        is_send = body["method"] == "eth_sendRawTransaction"
        self.raw += body["params"] if is_send else []
        if (told := await self.instead(body["method"], body["params"])) is not None:
            return web.json_response({"jsonrpc": "2.0", "id": body["id"]} | told)
        step = self.sends.pop(0) if is_send and self.sends else ""
        tree = None if step.startswith(("-", "dropped")) else await self._forward(body)
        if step in ("lost", "dropped"):
            assert request.transport is not None
            request.transport.abort()
        if step:
            tree = {
                "jsonrpc": "2.0",
                "id": body["id"],
                "error": {"code": -32000, "message": step.removeprefix("-")},
            }
        return web.json_response(self.change(body["method"], tree))

    async def _forward(self, body: Any) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.target, json=body) as response,
        ):
            return json.loads(await response.read())


def new_sender(
    client: ChainClient, path: Path, signer: Signer = Key(0), policy: SendPolicy = QUICK
) -> Sender:
    return Sender(client, signer, path, SystemClock(), policy, chain_id=CHAIN_ID)


@asynccontextmanager
async def meddled(
    chain: Node, path: Path, *sends: str, policy: SendPolicy = QUICK
) -> AsyncIterator[tuple[Meddler, Sender]]:
    meddler = Meddler(chain.url, *sends)
    async with through(meddler.handle) as client:
        sender = new_sender(client, path, policy=policy)
        yield meddler, sender
        sender.close()


async def pay(sender: Sender, purpose: str, value: int, seconds: float = 30) -> None:
    receipt = await sender.send(
        purpose, SINK, b"", value=value, gas=21_000, deadline_seconds=seconds
    )
    assert receipt.success


@asynccontextmanager
async def mining(chain: Node) -> AsyncIterator[None]:
    async def tick() -> None:
        while True:
            await chain.mine()
            await asyncio.sleep(0.05)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def lying(method: str, result: Callable[[Any], Any]) -> Change:
    """Changes what a node answers to one method."""
    return lambda asked, tree: (
        {**tree, "result": result(tree["result"])}
        if asked == method and tree.get("result")
        else tree
    )
