"""Tests two chain nodes, one of which lies or is silent: only what both say counts."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32
from quorate_protocol.values import replace
from quorate_runtime.chain import ComparedClient, LogBatch, LogFollower, chain_client
from quorate_runtime.chain.transactions import Transaction, sign
from quorate_runtime.clock import SystemClock
from support.chain.chain_nodes import CHAIN_ID, Key, Node, calldata, node, pinger_code
from support.chain.chain_proxy import through
from support.chain.meddler import SINK, Change, Meddler, lying, mining, new_sender, pay
from support.markets.coordinator_stage import deployed_stage, running

PING = Hash32(keccak256(b"Ping(address,uint256)"))


@asynccontextmanager
async def two_nodes(chain: Node) -> AsyncIterator[tuple[list[Meddler], ComparedClient]]:
    nodes = [Meddler(chain.url), Meddler(chain.url)]
    async with through(nodes[0].handle) as first, through(nodes[1].handle) as second:
        yield nodes, ComparedClient(first, second)


def honest(method: str, tree: Any) -> Any:
    return tree


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize(
    ("told", "lie"),
    [
        (
            "the receipt",
            lying("eth_getTransactionReceipt", lambda found: found | {"status": "0x0"}),
        ),
        ("the transactions", lying("eth_getTransactionCount", lambda count: "0x12c")),
        ("block", lying("eth_getBlockByNumber", lambda found: found | {"hash": "0x" + "11" * 32})),
    ],
)
async def test_a_lie_of_one_of_two_nodes_costs_time_only(
    told: str, lie: Change, liar: int, tmp_path: Path
) -> None:
    async with node("devnet") as chain, two_nodes(chain) as (nodes, client), mining(chain):
        sender = new_sender(client, tmp_path / "outbox")
        nodes[liar].change = lie
        for seconds in (1, 20):  # a busy machine does not come as far as the lie in one second
            with pytest.raises(Unavailable) as refused:
                await pay(sender, "pay", 9, seconds=seconds)
            if "disagree" in str(refused.value):
                break
        assert re.search(rf"http://\S+ and http://\S+ disagree on {told}", str(refused.value))
        nodes[liar].change = honest
        await pay(sender, "pay", 9)
        assert await client.balance(SINK) == 9 and await client.nonce(sender.address) == 1
        sender.close()


@pytest.mark.parametrize("liar", [0, 1])
async def test_logs_count_only_if_both_nodes_have_them(liar: int) -> None:
    async with node("devnet") as chain, two_nodes(chain) as (nodes, client):
        contract = None
        for data in (pinger_code(), calldata("ping(uint256)", 7)):
            nonce = await client.nonce(Key(0).address)
            fields = (CHAIN_ID, nonce, contract, data, 0, 1_500_000, 10**11, 10**9)
            sent = await client.send_raw(sign(Transaction(*fields), Key(0)).raw)
            await chain.mine()
            receipt = await client.receipt(sent)
            assert receipt is not None
            contract = contract or receipt.contract
        assert contract is not None
        follower = LogFollower(client, SystemClock(), [contract], [PING])
        for change in (lambda logs: [], lambda logs: [*logs, *logs]):
            nodes[liar].change = lying("eth_getLogs", change)
            with pytest.raises(Unavailable, match="disagree on the logs of blocks"):
                await follower.step()
        nodes[liar].change = honest
        batch = await follower.step()
        assert isinstance(batch, LogBatch) and len(batch.logs) == 1


@pytest.mark.parametrize("liar", [0, 1])
async def test_the_lower_of_two_tips_is_paid(liar: int) -> None:
    async with node("devnet") as chain, two_nodes(chain) as (nodes, client):
        nodes[liar].change = lying("eth_maxPriorityFeePerGas", lambda tip: hex(400 * 10**9))
        fees = await client.fees()
        assert fees.tip_wei == 10**9 and fees.base_fee_wei == (await client.head()).base_fee_wei


async def test_a_coordinator_registers_and_follows_through_both_nodes(tmp_path: Path) -> None:
    async with deployed_stage(tmp_path) as stage:
        second = Meddler(stage.chain_url)
        async with through(second.handle) as client:
            service = stage.service()
            service.config = replace(service.config, second_chain_url=client.rpc.url)
            async with running(service):
                deadline = time.monotonic() + 20
                while "eth_getLogs" not in second.methods:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
        assert "eth_sendRawTransaction" in second.methods


async def test_a_silent_node_stops_the_other_one_too(unused_tcp_port: int) -> None:
    silent = f"http://127.0.0.1:{unused_tcp_port}"
    async with node("devnet") as chain, aiohttp.ClientSession() as session:
        client = chain_client([chain.url, silent], session)
        with pytest.raises(Unavailable, match=f"{silent} must agree on .* does not answer"):
            await client.head()
        assert (await chain_client([chain.url, ""], session).head()).number == 0
