"""Tests the transactions of one key.

Each purpose (the key of a transaction) is sent once, in spite of crashes, nonces that others used,
and silent or lying nodes.
"""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from eth_account import Account

from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.chain import Outgoing, Receipt, Sender, SendPolicy, SendRecords
from quorate_runtime.chain.send_records import SendRecord
from quorate_runtime.chain.sender import Unfunded
from quorate_runtime.chain.transactions import Transaction, sign
from support.chain.chain_nodes import Key, Node, calldata, node, pinger_code
from support.chain.meddler import SINK, Instead, forwarded, meddled, mining, new_sender, pay

KINDS = ["devnet", "anvil"]


async def deploy(chain: Node, sender: Sender) -> Address:
    receipt = await sender.send("deploy", None, pinger_code(), deadline_seconds=10)
    assert receipt.contract is not None
    return receipt.contract


def test_serialisation_equals_eth_account() -> None:
    for to, data, value in (
        (SINK, b"", 5),
        (None, b"\x60" * 300, 0),
        (SINK, b"\x00", 0),
        (SINK, b"\x7f", 10**20),
    ):
        ours = sign(Transaction(31337, 200, to, data, value, 90_000, 3 * 10**9, 7), Key(3))
        fields = {
            "chainId": 31337,
            "nonce": 200,
            "data": data,
            "value": value,
            "gas": 90_000,
            "maxFeePerGas": 3 * 10**9,
            "type": 2,
        }
        fields |= {"maxPriorityFeePerGas": 7} | ({"to": to} if to else {})
        theirs = Account.from_key(dev_account(3)).sign_transaction(fields)
        assert (ours.raw, ours.hash) == (bytes(theirs.raw_transaction), bytes(theirs.hash))


@pytest.mark.parametrize("kind", KINDS)
async def test_thirty_at_once_all_arrive_once(kind: str, tmp_path: Path) -> None:
    async with node(kind) as chain:
        sender = new_sender(chain.client, tmp_path / "outbox")
        async with mining(chain):
            contract = await deploy(chain, sender)
            sends = [
                sender.send(
                    f"ping {i}", contract, calldata("ping(uint256)", 1 << i), deadline_seconds=20
                )
                for i in range(30)
            ]
            receipts = await asyncio.gather(*sends)
        assert all(receipt.success for receipt in receipts)
        assert await chain.client.nonce(sender.address) == 31
        assert (
            int.from_bytes(await chain.client.call(contract, calldata("total()")), "big")
            == 2**30 - 1
        )
        sender.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_purpose_is_sent_once(kind: str, tmp_path: Path) -> None:
    async with node(kind) as chain:
        sender = new_sender(chain.client, tmp_path / "outbox")
        async with mining(chain):
            contract = await deploy(chain, sender)
            data = calldata("ping(uint256)", 5)
            both = await asyncio.gather(
                *(sender.send("payroll 7", contract, data, deadline_seconds=10) for _ in range(5))
            )
            again = new_sender(chain.client, tmp_path / "outbox")
            late = await again.send(
                "payroll 7", contract, calldata("ping(uint256)", 6), deadline_seconds=10
            )
        assert {receipt.transaction for receipt in [*both, late]} == {late.transaction}
        assert await chain.client.nonce(sender.address) == 2
        assert await again.known("payroll 7") and not await again.known("payroll 8")


@pytest.mark.parametrize("sent_before_the_crash", [False, True])
async def test_a_kill_between_persisting_and_sending_sends_the_transaction_once(
    sent_before_the_crash: bool, tmp_path: Path
) -> None:
    async with node("devnet") as chain:
        path, key = tmp_path / "outbox", Key(0)
        dying = new_sender(chain.client, path)
        # What send() does up to the crash: sign and persist, perhaps hand over, never wait.
        entry = await dying._nonces.prepare(SendRecord("pay", -1, SINK, b"", 9, 21_000, ()))
        if sent_before_the_crash:
            await chain.client.send_raw(entry.attempts[0].raw)
            await chain.mine()
        dying.close()
        reborn = new_sender(chain.client, path)
        async with mining(chain):
            receipt = await reborn.send("pay", SINK, b"", value=9, gas=21_000, deadline_seconds=10)
        assert receipt.transaction == entry.attempts[0].hash and receipt.success
        assert await chain.client.balance(SINK) == 9
        assert await chain.client.nonce(key.address) == 1


async def test_transactions_in_order_have_rising_nonces_in_one_block(tmp_path: Path) -> None:
    async with node("devnet") as chain:
        sender = new_sender(chain.client, tmp_path / "outbox")
        outgoing = [
            Outgoing(f"transfer {i}", SINK, b"", value=10 + i, gas=21_000) for i in range(6)
        ]
        waiting = asyncio.create_task(sender.send_in_order(outgoing, deadline_seconds=10))
        deadline = time.time() + 10
        while await chain.client.nonce(sender.address, "pending") < 6:
            assert time.time() < deadline
            await asyncio.sleep(0.02)
        await chain.mine()
        receipts = await waiting
        assert {receipt.block for receipt in receipts} == {1}
        block = await chain.client.rpc.request("eth_getBlockByNumber", "0x1", True)
        assert [
            int(item["value"], 16)
            for item in sorted(block["transactions"], key=lambda item: int(item["nonce"], 16))
        ] == list(range(10, 16))


async def test_a_forgotten_crash_does_not_hold_up_later_purposes(tmp_path: Path) -> None:
    async with node("devnet") as chain:
        path = tmp_path / "outbox"
        dying = new_sender(chain.client, path)
        await dying._nonces.prepare(
            SendRecord("never asked for again", -1, SINK, b"", 1, 21_000, ())
        )
        dying.close()
        async with mining(chain):
            await new_sender(chain.client, path).send(
                "next", SINK, b"", value=2, deadline_seconds=10
            )
        assert await chain.client.balance(SINK) == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_revert_is_refused_with_its_reason_and_stays_so(kind: str, tmp_path: Path) -> None:
    async with node(kind) as chain:
        sender = new_sender(chain.client, tmp_path / "outbox")
        async with mining(chain):
            contract = await deploy(chain, sender)
            data = calldata("late(uint256)", 1)
            for purpose, gas in (("estimated", None), ("mined", 100_000), ("mined", 100_000)):
                with pytest.raises(Refused) as refusal:
                    await sender.send(purpose, contract, data, gas=gas, deadline_seconds=10)
                assert (refusal.value.code, refusal.value.detail) == (Code.CHAIN, "late")
        assert (
            await chain.client.nonce(sender.address) == 2
        )  # the estimate used no nonce, and the mined transaction used one


async def test_a_nonce_used_by_another_program_is_replaced(tmp_path: Path) -> None:
    async with node("devnet") as chain:
        sender, key = new_sender(chain.client, tmp_path / "outbox"), Key(0)
        entry = await sender._nonces.prepare(SendRecord("pay", -1, SINK, b"", 9, 21_000, ()))
        assert entry.nonce == 0
        await chain.client.send_raw(
            sign(Transaction(31337, 0, Address(bytes(20)), b"", 0, 21_000, 10**11, 10**9), key).raw
        )
        await chain.mine()
        async with mining(chain):
            receipt = await sender.send("pay", SINK, b"", value=9, gas=21_000, deadline_seconds=10)
        assert receipt.success and await chain.client.nonce(key.address) == 2
        assert await chain.client.balance(SINK) == 9


async def test_a_purpose_that_no_node_accepts_is_refused_and_its_nonce_is_used_up(
    tmp_path: Path,
) -> None:
    async with node("devnet") as chain:
        sender = new_sender(chain.client, tmp_path / "outbox")
        async with mining(chain):
            with pytest.raises(Unfunded, match="insufficient funds"):
                await sender.send(
                    "too much", SINK, b"", value=10**30, gas=21_000, deadline_seconds=10
                )
            assert await sender.known("too much"), "no answer of a node proves that none has it"
            await sender.send("enough", SINK, b"", value=1, deadline_seconds=10)
        assert await chain.client.nonce(sender.address) == 2
        assert await chain.client.balance(SINK) == 1


async def test_a_gap_left_by_a_refused_purpose_is_filled(tmp_path: Path) -> None:
    async with node("devnet") as chain:
        sender = new_sender(chain.client, tmp_path / "outbox")
        first = await sender._nonces.prepare(
            SendRecord("too much", -1, SINK, b"", 10**30, 21_000, ())
        )
        second = await sender._nonces.prepare(SendRecord("behind it", -1, SINK, b"", 4, 21_000, ()))
        assert (first.nonce, second.nonce) == (0, 1)
        async with mining(chain):
            with pytest.raises(Refused, match="insufficient funds"):
                await sender.send("too much", SINK, b"", deadline_seconds=10)
            await sender.send("behind it", SINK, b"", deadline_seconds=10)
        assert (
            await chain.client.balance(SINK) == 4 and await chain.client.nonce(sender.address) == 2
        )


async def test_the_fee_of_a_stuck_transaction_is_raised_by_an_eighth(tmp_path: Path) -> None:
    async with node("devnet") as chain:
        policy = SendPolicy(poll_seconds=0.02, resend_seconds=0.05, bump_seconds=0.1)
        sender = new_sender(chain.client, tmp_path / "outbox", policy=policy)
        with pytest.raises(Unavailable, match="not at depth 1"):
            await sender.send("slow", SINK, b"", value=1, deadline_seconds=2)
        entry = await sender._nonces.prepare(SendRecord("slow", -1, SINK, b"", 1, 21_000, ()))
        fees = [attempt.fee_max for attempt in entry.attempts]
        assert len(fees) >= 2 and all(later * 8 >= fee * 9 for fee, later in pairwise(fees))
        assert len({attempt.tip_max for attempt in entry.attempts}) == len(fees)
        async with mining(chain):
            receipt = await sender.send("slow", SINK, b"", value=1, deadline_seconds=10)
        assert receipt.transaction in {attempt.hash for attempt in entry.attempts}
        assert await chain.client.balance(SINK) == 1


async def test_a_send_waits_for_the_depth(tmp_path: Path) -> None:
    async with node("devnet") as chain:
        policy = SendPolicy(depth=4, poll_seconds=0.02, resend_seconds=0.2)
        sender = new_sender(chain.client, tmp_path / "outbox", policy=policy)
        async with mining(chain):
            receipt = await sender.send("deep", SINK, b"", value=1, deadline_seconds=10)
        assert (await chain.client.head()).number >= receipt.block + 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transaction_dropped_by_a_reorganisation_is_sent_again(
    kind: str, tmp_path: Path
) -> None:
    async with node(kind) as chain:
        policy = SendPolicy(depth=3, poll_seconds=0.02, resend_seconds=0.1)
        sender = new_sender(chain.client, tmp_path / "outbox", policy=policy)
        await chain.mine(3)
        task = asyncio.create_task(sender.send("again", SINK, b"", value=1, deadline_seconds=20))
        deadline = time.time() + 10
        while await chain.client.nonce(sender.address, "pending") == 0:
            assert time.time() < deadline
            await asyncio.sleep(0.02)
        await chain.mine()
        assert await chain.client.balance(SINK) == 1
        await chain.drop(1)
        assert await chain.client.balance(SINK) == 0
        async with mining(chain):
            assert (await task).success
        assert await chain.client.balance(SINK) == 1


async def test_a_lost_answer_causes_no_second_transaction(tmp_path: Path) -> None:
    async with node("devnet") as chain, mining(chain):
        async with meddled(chain, tmp_path / "outbox", "lost") as (meddler, sender):
            await pay(sender, "pay", 3, seconds=10)
            assert not meddler.sends, "an answer was lost"
        assert await chain.client.balance(SINK) == 3
        assert await chain.client.nonce(sender.address) == 1


async def test_a_send_waits_for_an_unavailable_node_until_the_deadline(tmp_path: Path) -> None:
    async def away(method: str, params: object) -> None:
        raise web.HTTPBadGateway

    async with node("devnet") as chain, mining(chain):
        async with meddled(chain, tmp_path / "outbox") as (meddler, sender):
            meddler.instead = away
            with pytest.raises(Unavailable, match="pay"):
                await pay(sender, "pay", 3, seconds=0.5)
            waiting = asyncio.create_task(pay(sender, "pay", 3, seconds=20))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            meddler.instead = forwarded
            await waiting
        assert await chain.client.balance(SINK) == 3


def test_outbox_keeps_chains_and_accounts_apart(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    boxes = [
        SendRecords(path, domain, Address(account * 20))
        for domain in (b"a", b"b")
        for account in (b"\x01", b"\x02")
    ]
    for box in boxes:
        box.add(SendRecord("p", 0, None, b"", 0, 1, ()))
        assert box.nonces(0) == frozenset({0})
    receipt = Receipt(Hash32(bytes(32)), 1, Hash32(bytes(32)), True, 2**60, 3, None, (), None)  # type: ignore[arg-type]
    boxes[0].settle("p", receipt, "")
    found = boxes[0].find("p")
    assert found is not None and found.receipt == receipt
    assert [len(box.unsettled(0)) for box in boxes] == [0, 1, 1, 1]
    boxes[1].forget(boxes[1].unsettled(0)[0])
    assert [box.find("p") is None for box in boxes] == [False, True, False, False]
    for box in boxes:
        box.close()


def overpriced(history: str) -> Instead:
    """A node that advises a tip of 400 gwei while blocks are made for one, and keeps every
    transaction back.
    """
    tip = hex(400 * 10**9)
    histories: dict[str, dict[str, Any]] = {
        "missing": {"error": {"code": -32601, "message": "no such method"}},
        "nonsense": {"result": {"reward": [7, None]}},
        "lied": {"result": {"reward": [[tip]] * 20, "baseFeePerGas": [tip] * 21}},
    }

    async def instead(method: str, params: Any) -> dict[str, Any] | None:
        match method:
            case "eth_maxPriorityFeePerGas":
                return {"result": tip}
            case "eth_sendRawTransaction":
                return {"result": "0x" + keccak256(bytes.fromhex(params[0][2:])).hex()}
            case "eth_feeHistory":
                return histories.get(history)
        return None

    return instead


@pytest.mark.parametrize("history", ["told", "missing", "nonsense", "lied"])
async def test_a_node_cannot_make_us_pay_many_times_what_others_do(
    history: str, tmp_path: Path
) -> None:
    """The node can do so neither by its advice nor by withholding attempts until one is
    expensive enough.
    """
    policy = SendPolicy(poll_seconds=0, resend_seconds=9, bump_seconds=0)
    async with node("devnet") as chain:
        await chain.mine(3)
        async with meddled(chain, tmp_path / "outbox", policy=policy) as (meddler, sender):
            meddler.instead = overpriced(history)
            entry = await sender._nonces.prepare(SendRecord("pay", -1, SINK, b"", 1, 21_000, ()))
            most = 20 * (await chain.client.head()).base_fee_wei
            assert entry.attempts[0].tip_max == (most if history == "lied" else 3 * 10**9)
            for _ in range(40):
                entry = await sender._nonces.raise_fee(entry)
            tips = [attempt.tip_max for attempt in entry.attempts]
            assert len(tips) > (0 if history == "lied" else 5)
            assert tips[-1] <= min(most, 8 * 3 * 10**9)


async def test_a_receipt_that_one_of_several_nodes_lacks_causes_no_second_payment(
    tmp_path: Path,
) -> None:
    """The sender's own transaction used the nonce, as one node says. The node that is asked for
    its receipt is a block behind.
    """
    async with node("devnet") as chain:
        async with meddled(chain, tmp_path / "outbox") as (meddler, sender):

            async def behind(method: str, params: Any) -> dict[str, Any] | None:
                if method == "eth_sendRawTransaction":
                    return {"error": {"code": -32000, "message": "nonce too low"}}
                if method == "eth_getTransactionReceipt":
                    found = await chain.client.receipt(Hash32(bytes.fromhex(params[0][2:])))
                    if found and found.block == (await chain.client.head()).number:
                        return {"result": None}
                return None

            entry = await sender._nonces.prepare(SendRecord("pay", -1, SINK, b"", 9, 21_000, ()))
            await chain.client.send_raw(entry.attempts[0].raw)
            await chain.mine()
            meddler.instead = behind
            with pytest.raises(Unavailable):
                await pay(sender, "pay", 9, seconds=0.4)
            await chain.mine()
            meddler.instead = forwarded
            receipt = await sender.send("pay", SINK, b"", value=9, gas=21_000, deadline_seconds=30)
            assert receipt.transaction == entry.attempts[0].hash
        await chain.mine()
        assert await chain.client.nonce(Key(0).address) == 1
        assert await chain.client.balance(SINK) == 9
