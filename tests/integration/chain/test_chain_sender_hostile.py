"""Tests nodes that lose answers, refuse what they accepted, reorganise deeply, or change their
chain id.

Each purpose is paid once, and the key can send further transactions.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.chain import SendPolicy
from quorate_runtime.chain.send_records import SendRecord
from quorate_runtime.chain.sender import Unfunded
from support.chain.chain_nodes import CHAIN_ID, Key, node
from support.chain.meddler import SINK, lying, meddled, mining, pay

NOT_TAKEN = ["insufficient funds for gas * price + value", "invalid sender", "exceeds gas limit"]


@pytest.mark.parametrize("words", NOT_TAKEN)
async def test_a_refusal_after_a_lost_answer_causes_no_second_payment(
    words: str, tmp_path: Path
) -> None:
    sends = ["lost", *20 * [f"-{words}"]]
    async with node("devnet") as chain:
        async with meddled(chain, tmp_path / "outbox", *sends) as (meddler, sender):
            async with asyncio.timeout(60):
                while len(meddler.sends) >= 20:  # until the node has refused it
                    with pytest.raises(Unavailable):
                        await pay(sender, "pay", 9, seconds=1.5)
            async with mining(chain):
                await pay(sender, "pay", 9, seconds=15)
            await chain.mine(3)
        assert await chain.client.balance(SINK) == 9


@pytest.mark.parametrize("words", NOT_TAKEN)
async def test_node_that_accepts_and_says_no_gets_no_second_payment(
    words: str, tmp_path: Path
) -> None:
    async with node("devnet") as chain:
        async with meddled(chain, tmp_path / "outbox", words) as (_, sender):
            with pytest.raises(Refused, match=words[:12]):
                await pay(sender, "pay", 9)
            await chain.mine()
            await pay(sender, "pay", 9)
        assert await chain.client.balance(SINK) == 9
        assert await chain.client.nonce(Key(0).address) == 1


async def test_a_refusal_after_a_crash_causes_no_second_payment(tmp_path: Path) -> None:
    """After a restart the sender does not know whether a node has the transaction, as after a
    lost answer.
    """
    async with node("devnet") as chain:
        async with meddled(chain, tmp_path / "outbox", "lost") as (_, sender):
            with pytest.raises(Unavailable):
                await pay(sender, "pay", 9, seconds=0.01)
        async with meddled(chain, tmp_path / "outbox", *3 * ["-insufficient funds"]) as (_, sender):
            with pytest.raises(Unavailable, match="insufficient funds"):
                await pay(sender, "pay", 9, seconds=0.03)
            async with mining(chain):
                await pay(sender, "pay", 9)
        assert await chain.client.balance(SINK) == 9


async def test_purpose_that_no_node_takes_does_not_hold_up_later_ones(tmp_path: Path) -> None:
    """The answer is lost, so the purpose keeps its nonce. An empty transfer then uses the nonce."""
    never = ["dropped", *2 * ["-exceeds gas limit"]]
    async with node("devnet") as chain, mining(chain):
        async with meddled(chain, tmp_path / "outbox", *never) as (_, sender):
            with pytest.raises(Unavailable):
                await pay(sender, "never taken", 5, seconds=0.05)
            await pay(sender, "later", 3)
            await pay(sender, "never taken", 5)
        assert await chain.client.balance(SINK) == 8, "each once"
        assert await chain.client.nonce(Key(0).address) == 3, "the empty transfer took the first"


async def test_a_purpose_refused_for_lack_of_coins_is_sent_when_coins_arrive(
    tmp_path: Path,
) -> None:
    async with node("devnet") as chain, mining(chain):
        async with meddled(chain, tmp_path / "outbox", "-insufficient funds") as (_, sender):
            with pytest.raises(Unfunded):
                await pay(sender, "pay", 9)
            assert await sender.known("pay"), "it keeps its nonce"
            await pay(sender, "pay", 9)
        assert await chain.client.balance(SINK) == 9
        assert await chain.client.nonce(Key(0).address) == 1


@pytest.mark.parametrize("depth", [1, 3])
async def test_reorganisation_as_deep_as_depth_does_not_block_the_key(
    depth: int, tmp_path: Path
) -> None:
    policy = SendPolicy(depth, poll_seconds=0.02, resend_seconds=0.05)
    async with node("devnet") as chain:
        async with meddled(chain, tmp_path / "outbox", policy=policy) as (_, sender):
            async with mining(chain):
                await pay(sender, "first", 5)
            head = await chain.client.head()
            await chain.drop(int(head.number))
            assert await chain.client.nonce(sender.address) == 0
            async with mining(chain):
                await pay(sender, "second", 3)
                await pay(sender, "first", 5)
        assert await chain.client.balance(SINK) == 8
        assert await chain.client.nonce(Key(0).address) == 2


async def test_transactions_are_signed_for_the_trusted_chain_whatever_the_node_says(
    tmp_path: Path,
) -> None:
    def other_chain(method: str, tree: Any) -> Any:
        return {**tree, "result": "0x1"} if method == "eth_chainId" else tree

    async with (
        node("devnet") as chain,
        mining(chain),
        meddled(chain, tmp_path / "outbox") as (meddler, sender),
    ):
        meddler.change = other_chain
        await pay(sender, "pay", 9)
        signed = TypedTransaction.from_bytes(HexBytes(meddler.raw[0])).as_dict()
        assert signed["chainId"] == CHAIN_ID and "eth_chainId" not in meddler.methods


async def test_a_lie_about_the_first_block_has_no_purpose_paid_twice(tmp_path: Path) -> None:
    other = lying("eth_getBlockByNumber", lambda block: {**block, "hash": "0x" + "11" * 32})
    async with node("devnet") as chain, mining(chain):
        for change in (None, other, None):
            async with meddled(chain, tmp_path / "outbox") as (meddler, sender):
                meddler.change = change or meddler.change
                await pay(sender, "pay", 9)
        assert await chain.client.balance(SINK) == 9


async def test_a_false_count_of_transactions_has_nothing_signed(tmp_path: Path) -> None:
    async with node("devnet") as chain, mining(chain):
        async with meddled(chain, tmp_path / "outbox") as (meddler, sender):
            meddler.change = lying("eth_getTransactionCount", lambda count: "0x12c")
            with pytest.raises(Unavailable, match="tells nonce 300 of .*, 0 were sent from here"):
                await pay(sender, "pay", 9, seconds=0.3)
            assert not meddler.raw and not await sender.known("pay")
            meddler.change = lambda method, tree: tree
            await pay(sender, "pay", 9)
            meddler.change = lying("eth_getTransactionCount", lambda count: "0xf4240")
            with pytest.raises(Unavailable, match=", 1 were sent from here"):
                await pay(sender, "next", 3, seconds=0.3)
            meddler.change = lambda method, tree: tree
            await pay(sender, "next", 3)
        assert await chain.client.nonce(Key(0).address) == 2
        assert await chain.client.balance(SINK) == 12


def forged(block: dict[str, Any]) -> dict[str, Any]:
    """Changes what a block's transactions pay, so that their signatures are another account's."""
    sent = (
        item if isinstance(item, str) else item | {"value": "0x7"} for item in block["transactions"]
    )
    return block | {"transactions": list(sent)}


async def test_a_count_that_falls_fills_no_nonces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node("devnet") as chain:
        async with meddled(chain, tmp_path / "elsewhere") as (_, other), mining(chain):
            for number in range(3):
                await pay(other, f"pay-{number}", 1)
        async with meddled(chain, tmp_path / "outbox") as (meddler, sender):
            meddler.change = lying("eth_getTransactionCount", lambda count: "0x0")
            await sender._nonces.prepare(SendRecord("first", -1, SINK, b"", 1, 21_000, ()))
            behind = SendRecord("late", -1, SINK, b"", 1, 21_000, ())
            meddler.change = lying("eth_getBlockByNumber", forged)
            with pytest.raises(Unavailable, match="tells nonce 3 .* does not show the others"):
                await sender._nonces.prepare(behind)
            meddler.change = lambda method, tree: tree
            late = await sender._nonces.prepare(behind)
            assert late.nonce == 3, "another machine has used those before"
            assert "one node's word" not in caplog.text
            meddler.change = lying("eth_getTransactionCount", lambda count: "0x1")
            with pytest.raises(Unavailable, match="nonce 3: 2 before it were not sent from here"):
                await pay(sender, "late", 1, seconds=0.3)
            assert not meddler.raw


@pytest.mark.parametrize(
    "lie", [{"status": "0x0"}, {"status": "0x0", "blockHash": "0x" + "1" * 64}]
)
async def test_an_invented_failure_is_not_believed_for_ever(
    lie: dict[str, str], tmp_path: Path
) -> None:
    async with node("devnet") as chain, mining(chain):
        async with meddled(chain, tmp_path / "outbox") as (meddler, sender):
            meddler.change = lying("eth_getTransactionReceipt", lambda receipt: receipt | lie)
            # A failure is told once there is a block; what the block contradicts is waited out.
            told, seconds = (Unavailable, 1) if "blockHash" in lie else (Refused, 30)
            with pytest.raises(told):
                await pay(sender, "pay", 9, seconds=seconds)
            meddler.change = lambda method, tree: tree
            await pay(sender, "pay", 9)
        assert await chain.client.balance(SINK) == 9
