"""Tests that abandoned transactions, unwritable files and failing nodes do not stop other
transactions of the key.
"""

import asyncio
import sqlite3
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorate_contracts.generated.contract_calls import Call
from quorate_coordinator.effect_performer import EffectPerformer
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.chain import Sender, SendPolicy, SendRecords
from quorate_runtime.clock import SystemClock
from quorate_runtime.durable import open_whole
from quorate_runtime.keys.crypto import KeySigner
from support.chain.chain_nodes import CHAIN_ID, node
from support.chain.chain_proxy import through
from support.chain.meddler import SINK, Meddler, meddled, mining, new_sender, pay

QUICK = SendPolicy(poll_seconds=0.02, resend_seconds=0.05, bump_seconds=0.1)


def records_of(sender: Sender) -> SendRecords:
    assert sender._nonces._records is not None
    return sender._nonces._records


async def test_abandoned_transaction_gets_a_higher_fee_when_it_holds_up_others(
    tmp_path: Path,
) -> None:
    base_fee = 100 * 10**9

    def dear(method: str, tree: Any) -> Any:
        if method in ("eth_getBlockByNumber", "eth_feeHistory"):
            tree["result"]["baseFeePerGas"] = hex(base_fee)
        return tree

    async with (
        node("devnet") as chain,
        meddled(chain, tmp_path / "outbox", policy=QUICK) as (meddler, sender),
    ):
        with pytest.raises(Unavailable):
            await sender.send("left alone", SINK, b"", value=1, gas=21_000, deadline_seconds=0.05)
        meddler.change = dear
        behind = asyncio.create_task(
            sender.send("behind it", SINK, b"", value=2, gas=21_000, deadline_seconds=60)
        )
        async with asyncio.timeout(30):  # until it has looked twice at what is before it
            while len(records_of(sender).unsettled(10)[-1].attempts) < 3:
                await asyncio.sleep(0.02)
        first, second = records_of(sender).unsettled(10)
        assert (first.purpose, second.purpose) == ("left alone", "behind it")
        assert first.attempts[-1].fee_max >= base_fee, (
            "else no block takes it, nor anything after it"
        )
        assert len(first.attempts) == 2, "raised to today's price, and left there"
        await chain.mine()
        assert (await behind).success
        assert await chain.client.balance(SINK) == 3


async def test_end_of_an_abandoned_transaction_is_stored(tmp_path: Path) -> None:
    async with node("devnet") as chain:
        sender = new_sender(chain.client, tmp_path / "outbox", policy=QUICK)
        with pytest.raises(Unavailable):
            await sender.send("left alone", SINK, b"", value=1, gas=21_000, deadline_seconds=3)
        await chain.mine()
        later = asyncio.create_task(
            sender.send("later", SINK, b"", value=2, gas=21_000, deadline_seconds=60)
        )
        async with asyncio.timeout(30):  # else it is handed over again for ever
            while [entry.purpose for entry in records_of(sender).unsettled(10)] != ["later"]:
                await asyncio.sleep(0.05)
        assert (await sender.send("left alone", SINK, b"", deadline_seconds=30)).success
        assert await chain.client.nonce(sender.address) == 1, "once"
        later.cancel()
        with suppress(asyncio.CancelledError):
            await later
        sender.close()


async def test_the_sender_waits_while_its_file_is_locked_or_the_disk_is_full(
    tmp_path: Path,
) -> None:
    async with node("devnet") as chain:
        sender = new_sender(chain.client, tmp_path / "outbox", policy=QUICK)
        await sender.known("anything")
        box = records_of(sender)
        box._db.execute("PRAGMA busy_timeout = 20")
        with closing(sqlite3.connect(tmp_path / "outbox", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="outbox: database is locked"):
                await sender.send("pay", SINK, b"", value=1, gas=21_000, deadline_seconds=0.1)
            other.execute("ROLLBACK")
        pages = box._db.execute("PRAGMA page_count").fetchone()[0]
        # SQLite reports a full disk by this error
        box._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(Unavailable, match="full"):
            await sender.send(
                "pay", SINK, b"\x01" * 40_000, value=1, gas=900_000, deadline_seconds=0.1
            )
        box._db.execute("PRAGMA max_page_count = 1000000")
        async with mining(chain):
            await pay(sender, "pay", 1)
        assert await chain.client.nonce(sender.address) == 1
        sender.close()


def test_a_locked_file_is_not_called_damaged(tmp_path: Path) -> None:
    path, tables = tmp_path / "book", ("CREATE TABLE a (b INTEGER);", "CREATE TABLE c (d INTEGER);")
    for connection in open_whole(path, tables[:1]):
        connection.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="book: database is locked"):
            open_whole(path, tables, timeout=0.02)
    for connection in open_whole(path, tables):
        connection.close()


@pytest.mark.parametrize(
    "error",
    [
        {"code": -32005, "message": "request rate exceeded"},
        {"code": -32000, "message": "header not found"},
        {"code": -32000, "message": "missing trie node 00 (path )"},
        {"code": -32016, "message": "limit of your plan"},
    ],
    ids=lambda error: error["message"],
)
async def test_an_error_of_the_node_is_not_taken_for_a_refusal(error: dict[str, Any]) -> None:
    async def failing(told: Any, method: str, params: Any) -> dict[str, Any] | None:
        return {"error": told} if method in ("eth_call", "eth_estimateGas") else None

    async with node("devnet") as chain:
        meddler = Meddler(chain.url)
        meddler.instead = partial(failing, error)
        async with through(meddler.handle) as client:
            for ask in (client.call(SINK, b""), client.estimate_gas(SINK, b"", SINK)):
                with pytest.raises(Unavailable):
                    await ask
            for told in (
                {"code": -32015, "message": "VM execution error.", "data": "Reverted 0x"},
                {"code": -32000, "message": "out of gas"},
            ):
                meddler.instead = partial(failing, told)
                with pytest.raises(Refused):
                    await client.call(SINK, b"")


async def test_an_effect_waits_for_coins_and_is_not_refused(tmp_path: Path) -> None:
    """A refused effect is final. The coordinator would drop the case and release the provider,
    because the posting key had no coins.
    """
    async with node("devnet") as chain:
        poor = KeySigner(b"\x77" * 32)
        sender = new_sender(chain.client, tmp_path / "outbox", poor, QUICK)
        nobody: Any = None
        market = SimpleNamespace(deployment=SimpleNamespace(chain_id=CHAIN_ID, token=SINK))
        parts = [nobody, market] + [nobody] * 4 + [sender, SystemClock()] + [nobody] * 4
        performer = EffectPerformer(*parts)
        with pytest.raises(Unavailable, match=f"0x{poor.address.hex()} needs "):
            await performer._transact("case-1", Call(SINK, b"", 21_000))
        assert await sender.known("case-1"), "it keeps its nonce"
        rich = new_sender(chain.client, tmp_path / "rich", policy=QUICK)
        async with mining(chain):
            await rich.send("give", poor.address, b"", value=10**18, deadline_seconds=30)
            await performer._transact("case-1", Call(SINK, b"", 21_000))
        sender.close()
        rich.close()


async def test_settled_transaction_that_a_reorganisation_removed_is_sent_again_once(
    tmp_path: Path,
) -> None:
    async with node("devnet") as chain:
        sender = new_sender(chain.client, tmp_path / "outbox", policy=QUICK)

        async def paid() -> bool:
            paying = asyncio.create_task(
                sender.send("pay", SINK, b"", value=9, gas=21_000, deadline_seconds=30)
            )
            while not paying.done() and not await chain.client.nonce(sender.address, "pending"):
                await asyncio.sleep(0.01)
            await chain.mine()
            return (await paying).success

        assert await paid() and await chain.client.balance(SINK) == 9
        await chain.drop(1)
        assert await chain.client.balance(SINK) == 0
        assert await paid() and await chain.client.balance(SINK) == 9, (
            "else a step of a case would be missing for ever"
        )
        assert await paid() and await chain.client.nonce(sender.address) == 1
        sender.close()
