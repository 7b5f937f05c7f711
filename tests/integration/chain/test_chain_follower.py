"""Tests the follower of logs through reorganisations and restarts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain import ChainClient, Cursor, LogBatch, LogFollower, Reorganised, Rpc
from quorate_runtime.chain.follower import block_at
from quorate_runtime.chain.transactions import Transaction, sign
from quorate_runtime.clock import SystemClock
from support.chain.chain_nodes import Key, Node, calldata, node, pinger_code
from support.chain.chain_proxy import through
from support.chain.meddler import Meddler

KINDS = ["devnet", "anvil"]
KEY = Key(0)
PING = Hash32(keccak256(b"Ping(address,uint256)"))


async def transact(chain: Node, to: Address | None, data: bytes) -> Hash32:
    """One mined transaction in a block of its own."""
    nonce = await chain.client.nonce(KEY.address)
    sent = await chain.client.send_raw(
        sign(Transaction(31337, nonce, to, data, 0, 1_500_000, 10**11, 10**9), KEY).raw
    )
    await chain.mine()
    return sent


async def pinger(chain: Node) -> Address:
    created = await chain.client.receipt(await transact(chain, None, pinger_code()))
    assert created is not None and created.contract is not None
    return created.contract


async def ping(chain: Node, contract: Address, number: int) -> None:
    await transact(chain, contract, calldata("ping(uint256)", number))


class Consumer:
    """Keeps what the follower says: numbers by block, dropped again on a reorganisation."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.notices: list[Reorganised] = []
        self.cursor = Cursor()

    async def drain(self, follower: LogFollower) -> list[int]:
        for _ in range(100):
            step = await follower.step()
            match step:
                case None:
                    return [number for _, number in self.heard]
                case Reorganised(kept):
                    self.notices.append(step)
                    self.heard = [
                        item for item in self.heard if kept is not None and item[0] <= kept
                    ]
                case LogBatch():
                    self.heard += [
                        (log.block, int.from_bytes(log.data, "big")) for log in step.logs
                    ]
                    assert all(
                        step.first <= log.block <= step.last.number and log.block_time
                        for log in step.logs
                    )
            self.cursor = step.cursor
        raise AssertionError("the follower does not come to rest")


def follow(
    client: ChainClient, contract: Address, cursor: Cursor | None = None, depth: int = 1
) -> LogFollower:
    return LogFollower(client, SystemClock(), [contract], [PING], cursor=cursor, depth=depth)


@pytest.mark.parametrize("kind", KINDS)
async def test_reorganisation_is_announced_and_replayed(kind: str) -> None:
    async with node(kind) as chain:
        contract, consumer = await pinger(chain), Consumer()
        follower = follow(chain.client, contract)
        for number in (1, 2, 3):
            await ping(chain, contract, number)
            await consumer.drain(follower)
        assert await consumer.drain(follower) == [1, 2, 3] and not consumer.notices
        await chain.drop(2)
        assert await consumer.drain(follower) == [1]
        assert [notice.kept for notice in consumer.notices] == [2]
        await ping(chain, contract, 9)
        assert await consumer.drain(follower) == [1, 9] and len(consumer.notices) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_restart_continues_at_the_cursor_even_after_a_reorganisation(kind: str) -> None:
    async with node(kind) as chain:
        contract, consumer = await pinger(chain), Consumer()
        for number in (1, 2):
            await ping(chain, contract, number)
            await consumer.drain(follow(chain.client, contract, consumer.cursor))
        assert await consumer.drain(follow(chain.client, contract, consumer.cursor)) == [1, 2]
        await chain.drop(1)
        await ping(chain, contract, 3)
        assert await consumer.drain(follow(chain.client, contract, consumer.cursor)) == [1, 3]
        # Only the newest checkpoint survived: the follower reports all again and guesses nothing.
        alone = Cursor(consumer.cursor.trail[-1:])
        await chain.drop(1)
        consumer.cursor = alone
        assert await consumer.drain(follow(chain.client, contract, alone)) == [1]
        assert consumer.notices[-1].kept is None


@pytest.mark.rule("2.17")
async def test_nothing_above_depth_is_delivered() -> None:
    async with node("devnet") as chain:
        contract, consumer = await pinger(chain), Consumer()
        follower = follow(chain.client, contract, depth=3)
        await ping(chain, contract, 1)
        assert await consumer.drain(follower) == []
        await chain.mine()
        assert await consumer.drain(follower) == []
        await chain.mine()
        assert await consumer.drain(follower) == [1]


async def test_the_block_of_a_time_is_found_by_few_headers() -> None:
    async with node("devnet") as chain:
        await chain.mine(40)
        head = await chain.client.head()
        times = [(await chain.client.block(BlockNumber(n))).time for n in range(41)]  # type: ignore[union-attr]
        for time in (0, *times):
            found = await block_at(chain.client, head, time)
            assert found == next(n for n in range(41) if times[n] >= time)
        assert await block_at(chain.client, head, head.time + 9) == head.number


async def test_other_contracts_and_topics_are_left_out() -> None:
    async with node("devnet") as chain:
        contract, other, consumer = await pinger(chain), await pinger(chain), Consumer()
        await ping(chain, other, 5)
        assert await consumer.drain(follow(chain.client, contract)) == []
        strange = LogFollower(chain.client, SystemClock(), [other], [Hash32(bytes(32))])
        assert await consumer.drain(strange) == []
        either = LogFollower(
            chain.client, SystemClock(), [contract, other], [[Hash32(bytes(32)), PING]]
        )
        assert await Consumer().drain(either) == [5]


async def test_long_history_is_read_in_bounded_ranges() -> None:
    async with node("devnet") as chain:
        contract, consumer = await pinger(chain), Consumer()
        await ping(chain, contract, 1)
        await chain.mine(2500)
        await ping(chain, contract, 2)
        assert await consumer.drain(follow(chain.client, contract)) == [1, 2]
        assert [checkpoint.number for checkpoint in consumer.cursor.trail] == [1999, 2503]


@asynccontextmanager
async def stingy(chain: Node, blocks_max: int) -> AsyncIterator[tuple[ChainClient, list[int]]]:
    """A relay that refuses log queries over more than `blocks_max` blocks, and the widths it
    gave.
    """
    given: list[int] = []

    async def instead(method: str, params: Any) -> dict[str, Any] | None:
        if method == "eth_getLogs":
            first, last = (params[0].get(name, "0x0") for name in ("fromBlock", "toBlock"))
            width = int(last, 16) - int(first, 16) + 1
            if width > blocks_max:
                text = "query returned more than 10000 results"
                return {"error": {"code": -32005, "message": text}}
            given.append(width)
        return None

    meddler = Meddler(chain.url)
    meddler.instead = instead
    async with through(meddler.handle) as client:
        yield client, given


async def test_a_node_that_allows_narrow_ranges_is_asked_for_fewer_blocks() -> None:
    async with node("devnet") as chain:
        contract, consumer = await pinger(chain), Consumer()
        for number in range(1, 20):
            await ping(chain, contract, number)
        async with stingy(chain, 4) as (client, given):
            follower = follow(client, contract)
            for _ in range(60):
                await consumer.drain(follower)
            assert [number for _, number in consumer.heard] == list(range(1, 20))
            assert given and max(given) <= 4
        async with stingy(chain, 0) as (client, _):
            narrow = follow(client, contract)
            with pytest.raises(Unavailable, match="block 0"):
                for _ in range(20):
                    await narrow.step()


class Behind(Meddler):
    """Several nodes behind one URL: while `blocks` is set, log queries reach one that lacks the
    newest so many, or all questions do.
    """

    def __init__(self, chain: Node) -> None:
        super().__init__(chain.url)
        self.chain, self.blocks, self.is_for_all = chain, 0, False
        self.instead = self.answer_of_another

    async def answer_of_another(self, method: str, params: Any) -> dict[str, Any] | None:
        newest = (await self.chain.client.head()).number - self.blocks
        if self.blocks and method == "eth_getLogs" and "blockHash" in params[0]:
            found = await self.chain.client.block(Hash32(bytes.fromhex(params[0]["blockHash"][2:])))
            if found is None or found.number > newest:
                return {"error": {"code": -32000, "message": "unknown block"}}
        elif self.blocks and method == "eth_getLogs":
            params[0]["toBlock"] = hex(min(int(params[0]["toBlock"], 16), newest))
        elif self.blocks and self.is_for_all and method == "eth_getBlockByNumber":
            if params[0] != "latest" and int(params[0], 16) > newest:
                return {"result": None}
            params[0] = hex(newest) if params[0] == "latest" else params[0]
        return None


async def test_a_node_that_is_behind_does_not_make_the_follower_miss_a_log() -> None:
    """Asked for a range beyond its newest block, such a node answers with what it has. The
    follower once took that answer for the whole range.
    """
    async with node("devnet") as chain:
        contract, consumer, behind = await pinger(chain), Consumer(), Behind(chain)
        async with through(behind.handle) as client:
            follower = follow(client, contract)
            await consumer.drain(follower)
            for number in (1, 2):
                await ping(chain, contract, number)
            behind.blocks = 1
            with pytest.raises(Unavailable):
                for _ in range(9):
                    await consumer.drain(follower)
            behind.blocks = 0
            assert await consumer.drain(follower) == [1, 2]


async def test_node_that_is_behind_causes_no_reorganisation() -> None:
    """A node that has only begun to fetch the chain causes none either."""
    async with node("devnet") as chain:
        contract, consumer, behind = await pinger(chain), Consumer(), Behind(chain)
        async with through(behind.handle) as client:
            follower = follow(client, contract)
            for number in (1, 2, 3):
                await ping(chain, contract, number)
                await consumer.drain(follower)
            behind.is_for_all = True
            for blocks in (1, 4):
                behind.blocks = blocks
                with pytest.raises(Unavailable, match="does not have block"):
                    await consumer.drain(follower)
            behind.blocks = 0
            assert await consumer.drain(follower) == [1, 2, 3] and not consumer.notices


async def test_batches_wait_for_a_node_that_is_away(unused_tcp_port: int) -> None:
    async with aiohttp.ClientSession() as session:
        client = ChainClient(Rpc(f"http://127.0.0.1:{unused_tcp_port}", session))
        with pytest.raises(Unavailable):
            await follow(client, Address(bytes(20))).step()


async def test_batches_are_an_endless_iterator() -> None:
    async with node("devnet") as chain:
        contract = await pinger(chain)
        await ping(chain, contract, 1)
        found: list[int] = []
        async for step in follow(chain.client, contract).batches():
            assert isinstance(step, LogBatch)
            found += [int.from_bytes(log.data, "big") for log in step.logs]
            if len(found) < 3:
                await ping(chain, contract, len(found) + 1)
            else:
                break
        assert found == [1, 2, 3]
