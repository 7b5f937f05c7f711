"""Tests how the devnet chain makes blocks, and that anvil does the same."""

import asyncio
import io
import json
import time
from pathlib import Path

import aiohttp
import pytest

from quorate_devnet.chain import saved_chain
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain import ChainClient, Rpc, RpcFailure
from quorate_runtime.chain.transactions import Transaction, sign
from support.chain.chain_nodes import Key, Node, calldata, node, pinger_code
from support.chain.empty_chain import program, ready_facts

KINDS = ["devnet", "anvil"]


def transfer(
    nonce: int,
    key: Key,
    to: Address | None = Address(b"\x11" * 20),
    data: bytes = b"",
    gas: int = 21_000,
    **over: int,
) -> bytes:
    fields = {"value": 5 if to else 0, "fee_max": 10**11, "tip_max": 10**9} | over
    return sign(Transaction(31337, nonce, to, data, gas=gas, **fields), key).raw


async def mined(chain: Node, raw: bytes) -> Hash32:
    sent = await chain.client.send_raw(raw)
    await chain.mine()
    return sent


@pytest.mark.rule("9.6")
@pytest.mark.parametrize("kind", KINDS)
async def test_forty_pending_transactions_of_one_sender_are_one_block(kind: str) -> None:
    key = Key(0)
    async with node(kind) as chain:
        sent = [await chain.client.send_raw(transfer(nonce, key)) for nonce in reversed(range(40))]
        assert await chain.client.nonce(key.address, "pending") == 40
        assert await chain.client.nonce(key.address) == 0
        await chain.mine()
        receipts = [await chain.client.receipt(found) for found in sent]
        assert {receipt.block for receipt in receipts if receipt} == {1} and all(
            receipt and receipt.success for receipt in receipts
        )
        assert await chain.client.nonce(key.address) == 40


@pytest.mark.parametrize("kind", KINDS)
async def test_a_nonce_gap_waits_and_is_kept(kind: str) -> None:
    key = Key(1)
    async with node(kind) as chain:
        later = await chain.client.send_raw(transfer(1, key))
        await chain.mine(2)
        assert await chain.client.receipt(later) is None
        await mined(chain, transfer(0, key))
        receipt = await chain.client.receipt(later)
        assert receipt is not None and receipt.block == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transaction_that_cannot_be_paid_any_more_does_not_stop_the_others(
    kind: str,
) -> None:
    poor, rich = Key(2), Key(3)
    async with node(kind) as chain:
        all_but_gas = await chain.client.balance(poor.address) - 21_000 * 10**11
        await chain.client.send_raw(transfer(0, poor, value=all_but_gas))
        second = await chain.client.send_raw(transfer(1, poor))
        other = await chain.client.send_raw(transfer(0, rich))
        await chain.mine(2)
        assert await chain.client.receipt(other) is not None
        assert await chain.client.receipt(second) is None


@pytest.mark.rule("9.6")
async def test_blocks_are_stamped_with_the_clock_once_a_second() -> None:
    async with node("devnet", block_seconds=1) as chain:
        for nonce in range(40):
            await chain.client.send_raw(transfer(nonce, Key(0)))
        deadline = time.time() + 20
        stamps: list[int] = []
        while len(stamps) < 4 and time.time() < deadline:
            head = await chain.client.head()
            assert head.time <= time.time() + 1
            if not stamps or head.time > stamps[-1]:
                assert abs(time.time() - head.time) < 5, (
                    "not by as many seconds as there were blocks, on a busy machine either"
                )
                stamps.append(head.time)
            await asyncio.sleep(0.1)
        assert len(stamps) >= 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_returns_the_reason_of_a_revert(kind: str) -> None:
    key = Key(0)
    async with node(kind) as chain:
        created = await chain.client.receipt(
            await mined(chain, transfer(0, key, None, pinger_code(), gas=2_000_000))
        )
        assert created is not None and created.contract is not None
        data = calldata("late(uint256)", 1)
        failed = await chain.client.receipt(
            await mined(chain, transfer(1, key, created.contract, data, gas=200_000, value=0))
        )
        assert failed is not None and not failed.success
        with pytest.raises(Refused) as refusal:
            await chain.client.call(created.contract, data, key.address, failed.block)
        assert (refusal.value.code, refusal.value.detail) == (Code.CHAIN, "late")
        with pytest.raises(Refused, match="late"):
            await chain.client.estimate_gas(created.contract, data, key.address)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_estimated_gas_is_enough(kind: str) -> None:
    key = Key(0)
    async with node(kind) as chain:
        creation = await chain.client.estimate_gas(None, pinger_code(), key.address)
        created = await chain.client.receipt(
            await mined(chain, transfer(0, key, None, pinger_code(), gas=creation))
        )
        assert created is not None and created.success and created.contract is not None
        data = calldata("ping(uint256)", 7)
        gas = await chain.client.estimate_gas(created.contract, data, key.address)
        pinged = await chain.client.receipt(
            await mined(chain, transfer(1, key, created.contract, data, gas=gas, value=0))
        )
        assert pinged is not None and pinged.success and gas < 2 * pinged.gas_used
        assert (
            int.from_bytes(await chain.client.call(created.contract, calldata("total()")), "big")
            == 7
        )
        assert [log.data for log in pinged.logs] == [(7).to_bytes(32, "big")]
        head = await chain.client.head()
        assert (
            pinged.logs[0].block_time == head.time and pinged.logs[0].topics[1][12:] == key.address
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_the_pool_refuses_known_underpriced_and_used_transactions(kind: str) -> None:
    key = Key(4)
    async with node(kind) as chain:
        raw = transfer(0, key)
        await chain.client.send_raw(raw)
        refused = [(raw, "already")]
        if (
            kind == "devnet"
        ):  # anvil accepts any higher fee, and has EIP-7825's cap only under Osaka's rules
            refused += [
                (transfer(0, key, fee_max=10**11 + 1), "underpriced"),
                (transfer(1, key, gas=2**24 + 1), "gas limit"),
            ]
        for bad, words in refused:
            with pytest.raises(RpcFailure, match=f"(?i){words}"):
                await chain.client.send_raw(bad)
        replaced = transfer(0, key, fee_max=112 * 10**9, tip_max=1125 * 10**6)
        sent = await mined(chain, replaced)
        assert await chain.client.receipt(sent) is not None
        with pytest.raises(RpcFailure, match=r"(?i)nonce too low"):
            await chain.client.send_raw(raw)


async def test_foreign_and_malformed_transactions_are_refused() -> None:
    key = Key(0)
    async with node("devnet") as chain:
        good = Transaction(1, 0, Address(bytes(20)), b"", 0, 21_000, 10**11, 10**9)
        for raw, words in (
            (sign(good, key).raw, "chain id"),
            (b"\x02" + bytes(40), "invalid transaction"),
            (b"", "invalid transaction"),
            (b"\x7fabc", "invalid transaction"),
            (transfer(0, key, gas=20_000), "intrinsic gas"),
            (transfer(0, key, value=10**30), "insufficient funds"),
        ):
            with pytest.raises(RpcFailure, match=words):
                await chain.client.send_raw(raw)
        assert await chain.client.nonce(key.address, "pending") == 0


async def test_requests_are_bounded_and_errors_are_json_rpc() -> None:
    async with node("devnet") as chain, aiohttp.ClientSession() as session:

        async def post(body: bytes) -> tuple[int, bytes]:
            async with session.post(chain.url, data=io.BytesIO(body)) as response:
                return response.status, await response.read()

        def code(body: bytes) -> int:
            return int(json.loads(body)["error"]["code"])

        assert code((await post(b"{"))[1]) == -32700
        assert code((await post(b"[]"))[1]) == -32600
        assert code((await post(b'{"id":1,"method":"debug_traceCall","params":[]}'))[1]) == -32601
        assert code((await post(b'{"id":1,"method":"eth_getBalance","params":[]}'))[1]) == -32602
        assert (
            code((await post(b'{"id":1,"method":"eth_getBalance","params":["0x12"]}'))[1]) == -32602
        )
        wide = {
            "id": 1,
            "method": "eth_getLogs",
            "params": [{"fromBlock": "0x0", "toBlock": "0x0", "topics": [None] * 5}],
        }
        assert code((await post(json.dumps(wide).encode()))[1]) == -32602
        assert (await post(b"[" + b" " * (2 << 20) + b"]"))[0] == 413
        both = await post(
            b'[{"id":1,"method":"eth_chainId"},{"id":2,"method":"net_version","params":[]}]'
        )
        assert [item["result"] for item in json.loads(both[1])] == ["0x7a69", "31337"]


async def test_mining_by_request_is_off_unless_asked_for(tmp_path: Path) -> None:
    with program(tmp_path, "chain", "quorate_devnet.chain", "--port", "0") as process:
        url = ready_facts(tmp_path / "chain.ready", process)["url"]
        async with aiohttp.ClientSession() as session:
            client = ChainClient(Rpc(url, session))
            with pytest.raises(RpcFailure, match="does not exist"):
                await client.rpc.request("evm_mine")
            assert await client.block(BlockNumber(0)) is not None
    assert process.returncode == 0


async def test_an_exported_chain_is_made_again_block_by_block(tmp_path: Path) -> None:
    first, second, path = Key(5), Key(6), tmp_path / "chain.json"
    async with node("devnet") as chain:
        for nonce in reversed(range(3)):
            await chain.client.send_raw(transfer(nonce, first))
            await chain.client.send_raw(transfer(nonce, second))
        await chain.mine(2)
        await mined(chain, transfer(3, first, None, pinger_code(), gas=1_000_000))
        tree = await chain.client.rpc.request("devnet_export")
        head = await chain.client.block("latest")
    path.write_text(json.dumps(tree))
    ledger = saved_chain.read(path)
    assert ledger.head.header.hash == head.hash and ledger.head.number == 3
    path.write_text(json.dumps(tree | {"genesis_time": tree["genesis_time"] + 1}))
    with pytest.raises(ValueError, match="do not give the blocks that it names; name the chain"):
        saved_chain.read(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="genesis_time"):
        saved_chain.read(path)
    with pytest.raises(ValueError, match="No such file"):
        saved_chain.read(tmp_path / "none.json")
