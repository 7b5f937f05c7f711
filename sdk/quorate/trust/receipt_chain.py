"""Compares a receipt with the chain: slots, keys, payouts, networks, and the money behind it.

Slots, payouts and networks are read at the block that the Ack names. A node that keeps no state of
that block cannot check them.
"""

from collections.abc import AsyncIterator
from itertools import count
from typing import TypeVar

from quorate.base.errors import UnavailableError, translated
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.encodings import OPEN_BLOCK, SLOT_PAGE, is_active
from quorate_contracts.generated.contract_calls import Query
from quorate_contracts.generated.stakes import Slot
from quorate_protocol.messages.receipt import Check, Receipt
from quorate_protocol.messages.stake_slot import FOREVER, StakeSlot
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.receipts import receipt_pins
from quorate_protocol.units import BlockNumber
from quorate_runtime.chain.client import BlockId, ChainClient
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.http.client_sessions import plain_session

T = TypeVar("T")
CLOCK_TOLERANCE_SECONDS = 60


async def check_chain(body: Receipt, deployment: Deployment, url: str) -> tuple[Check, ...]:
    """Returns every comparison of a checked receipt with the chain.

    Raises UnavailableError if the node does not answer or keeps no state of the receipt's block,
    RefusedError if it serves another chain.
    """
    async with plain_session() as session:
        client = ChainClient(Rpc(url, session))
        with translated():
            found = await client.chain_id()
            if found != body.chain_id:
                raise Refused(
                    Code.CHAIN, f"{url} serves chain {found}, the receipt is of {body.chain_id}"
                )
            reader = _ChainReader(body, Contracts.of(deployment), client)
            return tuple([check async for check in reader.checks()])


class _ChainReader:
    """Reads one receipt's facts from the chain."""

    def __init__(self, body: Receipt, contracts: Contracts, client: ChainClient) -> None:
        self._body, self._contracts, self._client = body, contracts, client
        self._block = body.ack.message.slot_block

    async def checks(self) -> AsyncIterator[Check]:
        yield await self._block_time()
        yield await self._block_hash()
        async for check in self._slots():
            yield check
        async for check in self._keys():
            yield check
        async for check in self._parties():
            yield check
        async for check in self._money():
            yield check

    async def _ask(self, query: "Query[T]", block: BlockId = "latest") -> T:
        try:
            return await ask(self._client, query, block)
        except Refused as refused:
            if block == "latest":
                raise
            raise UnavailableError(
                f"the chain node has no state of block {block!r} ({refused.detail}); name an "
                "archive node with --rpc URL"
            ) from refused

    async def _block_time(self) -> Check:
        ack = self._body.ack.message
        head = await self._client.block(self._block)
        oldest = ack.ack_time - self._contracts.deployment.constants().ack_age_max
        good = head is not None and (
            oldest - CLOCK_TOLERANCE_SECONDS <= head.time <= ack.ack_time + CLOCK_TOLERANCE_SECONDS
        )
        return Check("chain:block", good, f"block {self._block} was the newest at ackTime")

    async def _block_hash(self) -> Check:
        head = await self._client.block(self._block)
        good = head is not None and head.hash == self._body.taken_from_chain.block_hash
        return Check("chain:blockHash", good, f"block {self._block} has the receipt's hash")

    async def _slots(self) -> AsyncIterator[Check]:
        """The lists of several pools follow each other."""
        stakes, listed = self._contracts.stakes, list[Slot]()
        said = self._body.taken_from_chain.list_lengths
        for pool, shown in zip(self._body.pools, said, strict=False):
            length = await self._ask(stakes.slot_count(pool.id()), self._block)
            yield Check("chain:length", length == shown, f"{pool} has {length} stake slots")
            for first in range(0, length, SLOT_PAGE):
                listed += await self._ask(stakes.slot_page(pool.id(), first), self._block)
        for check in receipt_pins.list_checks(self._body, [*map(_slot, count(), listed)]):
            yield check
        for item in self._body.slots:
            if item.slot is None or item.slot.index >= len(listed):
                continue
            found = listed[item.slot.index]
            same = _facts(item.slot) == (
                found.owner,
                found.operator_key,
                found.payout,
                found.network,
            )
            yield Check(
                f"chain:slot[{item.slot.index}]",
                same and is_active(found, self._block),
                "owner, operator key, payout and network are those of the stake slot",
            )

    async def _keys(self) -> AsyncIterator[Check]:
        stakes, body = self._contracts.stakes, self._body
        order, acked = body.order.message, body.ack.message.ack_time
        is_theirs = await self._ask(
            stakes.key_valid(order.coordinator, body.coordinator_key, acked)
        )
        yield Check("chain:coordinator", is_theirs, "the coordinator's statement key at ackTime")
        asked = [(item.assignment.message, item.operator_key) for item in body.executions]
        asked += [(skip.assignment.message, skip.operator_key) for skip in body.skips]
        for number, (assignment, key) in enumerate(asked):
            good = await self._ask(stakes.key_valid(assignment.provider, key, assignment.accept_by))
            yield Check(f"chain:key[{number}]", good, "the provider's operator key at acceptBy")
        for number, gone in enumerate(body.withdrawals):
            owner = gone.offer.message.provider
            good = await self._ask(stakes.key_valid(owner, gone.operator_key, acked))
            yield Check(f"chain:withdrawal[{number}]", good, "its owner's operator key at ackTime")

    async def _parties(self) -> AsyncIterator[Check]:
        stakes = self._contracts.stakes
        for number, party in enumerate(self._body.taken_from_chain.parties):
            good = False
            # A provider may change both after the Ack and before it is matched.
            for block in (self._block, "latest"):
                good = good or (party.payout, party.network) == (
                    await self._ask(stakes.payout_of(party.owner), block),
                    await self._ask(stakes.network_of(party.owner), block),
                )
            yield Check(f"chain:party[{number}]", good, "the provider's payout and network")

    async def _money(self) -> AsyncIterator[Check]:
        order, ack = self._body.order.message, self._body.ack.message
        if ack.escrowed:
            job = await self._ask(self._contracts.jobs.job(order.client, ack.job_id))
            yield Check(
                "chain:escrow",
                job.budget >= order.budget,
                "the client funded the order's own escrow with its budget",
            )
            return
        tab = await self._ask(
            self._contracts.escrow.tab(order.client, order.coordinator), self._block
        )
        yield Check(
            "chain:tab",
            tab.locked > tab.paid,
            "the client had money locked for the coordinator when it ordered",
        )


def _slot(index: int, found: Slot) -> StakeSlot:
    until = FOREVER if found.until_block == OPEN_BLOCK else BlockNumber(found.until_block)
    keys = found.owner, found.operator_key, found.payout, found.network
    return StakeSlot(index, *keys, BlockNumber(found.from_block), until)


def _facts(slot: StakeSlot) -> tuple[bytes, bytes, bytes, bytes]:
    return slot.owner, slot.operator_key, slot.payout, slot.network
