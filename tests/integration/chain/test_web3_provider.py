"""Tests web3 over the project's transport: proof-of-authority blocks, off-chain look-ups,
repeats, chain id.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from web3.exceptions import ContractLogicError, OffchainLookup, Web3RPCError

from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.chain import ChainClient, Rpc, RpcFailure
from quorate_runtime.chain.web3_provider import make_web3
from quorate_runtime.http.client_sessions import plain_session
from support.http_server import on_loopback

WHO = Address(b"\x22" * 20)
HASH = "0x" + "11" * 32
Result = Callable[[str, list[Any]], dict[str, Any]]


class ScriptedNode:
    """A node that answers with what a function gives, and notes the methods it was asked for."""

    def __init__(self, result: Result) -> None:
        self.result, self.methods = result, list[str]()

    async def handle(self, request: web.Request) -> web.Response:
        assert request.path == "/", "a request to another place than the node"
        tree = await request.json()
        self.methods.append(tree["method"])
        answer = self.result(tree["method"], tree["params"])
        return web.json_response({"jsonrpc": "2.0", "id": tree["id"], **answer})


@asynccontextmanager
async def scripted(result: Result) -> AsyncIterator[tuple[ScriptedNode, Rpc]]:
    node = ScriptedNode(result)
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", node.handle)
    async with on_loopback(application) as url, plain_session() as session:
        yield node, Rpc(url, session)


def block(extra_data: str) -> dict[str, Any]:
    form = {"number": "0x7", "hash": HASH, "parentHash": HASH, "timestamp": "0x64"}
    return {"result": {**form, "baseFeePerGas": "0x5", "extraData": extra_data}}


async def test_blocks_of_a_proof_of_authority_chain_are_read() -> None:
    async with scripted(lambda method, params: block("0x" + "ab" * 97)) as (node, rpc):
        client = ChainClient(rpc)
        head = await client.head()
        assert (head.number, head.time, head.base_fee_wei) == (7, 100, 5)
        assert len(node.methods) == 2, "the first block is asked for twice"
        assert await client.block(Hash32(b"\x11" * 32)) == head
        assert len(node.methods) == 3, "later blocks once: the middleware stays"
        found = await (await client.web3()).eth.get_block("latest")
        assert len(found["proofOfAuthorityData"]) == 97


async def test_blocks_of_other_chains_keep_their_extra_data() -> None:
    async with scripted(lambda method, params: block("0x" + "ab" * 32)) as (node, rpc):
        client = ChainClient(rpc)
        await client.head()
        found = await (await client.web3()).eth.get_block("latest")
        assert len(found["extraData"]) == 32 and len(node.methods) == 2


def _offchain_lookup(url: str) -> str:
    from eth_abi.abi import encode

    kinds = ["address", "string[]", "bytes", "bytes4", "bytes"]
    values = (WHO, [url], b"", b"\x01\x02\x03\x04", b"")
    return "0x556f1830" + encode(kinds, values).hex()


async def test_urls_in_a_revert_are_never_fetched() -> None:
    data: list[str] = []

    def answer(method: str, params: list[Any]) -> dict[str, Any]:
        return {"error": {"code": 3, "message": "execution reverted", "data": data[0]}}

    async with scripted(answer) as (node, rpc):
        data.append(_offchain_lookup(rpc.url + "/secret"))
        with pytest.raises(Refused):
            await ChainClient(rpc).call(WHO, b"")
        with pytest.raises(OffchainLookup):
            await make_web3(rpc).eth.call({"to": WHO, "from": WHO, "data": b""})  # type: ignore[typeddict-item]
        assert node.methods == ["eth_call", "eth_call"]


async def test_a_web3_program_gets_web3s_own_exceptions() -> None:
    refusals = {
        "eth_call": {"code": 3, "message": "execution reverted: late"},
        "eth_getBalance": {"code": -32000, "message": "missing trie node"},
    }
    async with scripted(lambda method, params: {"error": refusals[method]}) as (_, rpc):
        w3 = make_web3(rpc)
        with pytest.raises(ContractLogicError, match="late"):
            await w3.eth.call({"to": WHO, "from": WHO, "data": b""})  # type: ignore[typeddict-item]
        with pytest.raises(Web3RPCError, match="missing trie node"):
            await w3.eth.get_balance(WHO)  # type: ignore[arg-type]


async def test_a_transaction_is_handed_over_once_and_a_read_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate_runtime.chain.rpc.RETRY_SECONDS", 0.0)
    trouble = {"error": {"code": -32603, "message": "internal error"}}
    async with scripted(lambda method, params: trouble) as (node, rpc):
        client = ChainClient(rpc)
        for ask in (client.send_raw(b"\x02"), client.balance(WHO)):
            with pytest.raises(Unavailable):
                await ask
        assert node.methods == ["eth_sendRawTransaction"] + 3 * ["eth_getBalance"]


async def test_a_refusal_keeps_the_nodes_code_and_words() -> None:
    refusal = {"error": {"code": -32000, "message": "nonce too low"}}
    async with scripted(lambda method, params: refusal) as (_, rpc):
        with pytest.raises(RpcFailure, match="nonce too low") as failure:
            await ChainClient(rpc).send_raw(b"\x02")
        assert failure.value.code == -32000
