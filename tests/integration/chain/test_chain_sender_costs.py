"""Tests nodes that try to make the sender pay more than others do, or pay twice."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address
from quorate_runtime.chain import Sender, SendPolicy
from quorate_runtime.chain.send_records import SendRecord
from quorate_runtime.clock import SystemClock
from support.chain.chain_nodes import CHAIN_ID, Key, Node, node
from support.chain.chain_proxy import through

QUICK = SendPolicy(poll_seconds=0.02, resend_seconds=0.05, bump_seconds=60)
SINK = Address(b"\x22" * 20)


class Overpriced:
    """A node that advises a tip of 400 gwei while blocks are made for one, and keeps every
    transaction back.
    """

    def __init__(self, chain: Node, history: str) -> None:
        self.chain, self.history = chain, history

    async def answer(self, request: web.Request) -> web.Response:
        tree = await request.json()
        result: object = None
        match tree["method"]:
            case "eth_maxPriorityFeePerGas":
                result = hex(400 * 10**9)
            case "eth_sendRawTransaction":
                result = "0x" + keccak256(bytes.fromhex(tree["params"][0][2:])).hex()
            case "eth_feeHistory" if self.history == "missing":
                return web.json_response(
                    {
                        "jsonrpc": "2.0",
                        "id": tree["id"],
                        "error": {"code": -32601, "message": "no such method"},
                    }
                )
            case "eth_feeHistory" if self.history == "nonsense":
                result = {"reward": [7, None]}
            case "eth_feeHistory" if self.history == "lied":
                result = {"reward": [["0x5d21dba000"]] * 20, "baseFeePerGas": ["0x5d21dba000"] * 21}
        if result is not None:
            return web.json_response({"jsonrpc": "2.0", "id": tree["id"], "result": result})
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.chain.url, json=tree) as response,
        ):
            return web.json_response(await response.json())


@pytest.mark.parametrize("history", ["told", "missing", "nonsense", "lied"])
async def test_a_node_cannot_make_us_pay_many_times_what_others_do(
    history: str, tmp_path: Path
) -> None:
    """The node can do so neither by its advice nor by withholding attempts until one is
    expensive enough.
    """
    async with node("devnet") as chain, through(Overpriced(chain, history).answer) as client:
        await chain.mine(3)
        sender = Sender(
            client,
            Key(0),
            tmp_path / "outbox",
            SystemClock(),
            SendPolicy(poll_seconds=0, resend_seconds=9, bump_seconds=0),
            chain_id=CHAIN_ID,
        )
        entry = await sender._nonces.prepare(SendRecord("pay", -1, SINK, b"", 1, 21_000, ()))
        most = 20 * (await chain.client.head()).base_fee_wei
        assert entry.attempts[0].tip_max == (most if history == "lied" else 3 * 10**9)
        for _ in range(40):
            entry = await sender._nonces.raise_fee(entry)
        tips = [attempt.tip_max for attempt in entry.attempts]
        assert len(tips) > (0 if history == "lied" else 5) and tips[-1] <= min(most, 8 * 3 * 10**9)
        sender.close()


async def test_a_receipt_that_one_of_several_nodes_lacks_causes_no_second_payment(
    tmp_path: Path,
) -> None:
    """The sender's own transaction used the nonce, as one node says. The node that is asked for
    its receipt is a block behind.
    """
    async with node("devnet") as chain:
        lag = 0

        async def answer(request: web.Request) -> web.Response:
            tree = await request.json()
            if lag and tree["method"] == "eth_sendRawTransaction":
                return web.json_response(
                    {
                        "jsonrpc": "2.0",
                        "id": tree["id"],
                        "error": {"code": -32000, "message": "nonce too low"},
                    }
                )
            async with (
                aiohttp.ClientSession() as session,
                session.post(chain.url, json=tree) as response,
            ):
                found = await response.json()
            if tree["method"] == "eth_getTransactionReceipt" and found["result"]:
                newest = (await chain.client.head()).number - lag
                found["result"] = (
                    found["result"] if int(found["result"]["blockNumber"], 16) <= newest else None
                )
            return web.json_response(found)

        async with through(answer) as client:
            sender = Sender(
                client, Key(0), tmp_path / "outbox", SystemClock(), QUICK, chain_id=CHAIN_ID
            )
            entry = await sender._nonces.prepare(SendRecord("pay", -1, SINK, b"", 9, 21_000, ()))
            await chain.client.send_raw(entry.attempts[0].raw)
            await chain.mine()
            lag = 1
            with pytest.raises(Unavailable):
                await sender.send("pay", SINK, b"", value=9, gas=21_000, deadline_seconds=0.4)
            await chain.mine()
            lag = 0
            receipt = await sender.send("pay", SINK, b"", value=9, gas=21_000, deadline_seconds=5)
            assert receipt.transaction == entry.attempts[0].hash
            sender.close()
        await chain.mine()
        assert (
            await chain.client.nonce(Key(0).address) == 1 and await chain.client.balance(SINK) == 9
        )
