"""Keeps one account's nonces: which purpose has which nonce, and what was signed for it.

A purpose is a text that names one thing to do on chain, such as `payroll-7`. It keeps its nonce
until a transaction with that nonce is in a block at depth k. A node's answer to a transaction
proves nothing: the node may have accepted it and lost its answer, or have lied. So two transactions
for one purpose always have the same nonce, and the chain accepts at most one of them.
"""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32, Signature
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import Bid, first_bid, lowered_bid, outbidding, raised_bid
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.send_records import Attempt, SendRecord, SendRecords
from quorate_runtime.chain.transactions import TRANSFER_GAS, Transaction, sign
from quorate_runtime.chain.types import Json, Receipt, hex_integer, member
from quorate_runtime.keys.crypto import recover
from quorate_runtime.process.crash_points import crash_point

# If a nonce was used this many blocks ago and no node shows a receipt of ours, another program used
# it.
LOST_BLOCKS = 8

DYNAMIC_FEE = "0x2"  # the type of transaction (EIP-1559) whose signature is checked
_SIGNED = ("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "value")

log = logging.getLogger(__name__)


class AccountNonces:
    """The nonces of one key on one chain. `path` is the records's SQLite file.

    `chain_id` and `deployment` are what the caller trusts. Every transaction is signed for that
    chain and recorded under both, whatever the node names.
    """

    def __init__(
        self,
        client: ChainClient,
        signer: Signer,
        path: Path,
        *,
        chain_id: int,
        deployment: bytes,
        fee_cap_wei: int,
        depth: int,
    ) -> None:
        self.client, self.signer = client, signer
        self._path, self._chain_id, self._fee_cap_wei = path, chain_id, fee_cap_wei
        self._domain = chain_id.to_bytes(32, "big") + deployment
        self._depth, self._lost_blocks = depth, max(depth, LOST_BLOCKS)
        self._confirmed = 0  # the count that the chain has shown for transactions sent elsewhere
        self._lock = asyncio.Lock()
        self._records: SendRecords | None = None
        self._unsent: set[Hash32] = set()  # signed by this process, and handed to no node yet

    @property
    def address(self) -> Address:
        return self.signer.address

    def records(self) -> SendRecords:
        if self._records is None:
            self._records = SendRecords(self._path, self._domain, self.address)
        return self._records

    def close(self) -> None:
        """Closes the records. Transactions that nodes hold may still be mined."""
        if self._records is not None:
            self._records.close()
            self._records = None

    async def prepare(self, wanted: SendRecord) -> SendRecord:
        """Returns the stored entry of a purpose. For a new purpose it chooses a nonce, signs a
        transaction and stores both.
        """
        records = self.records()
        found = await asyncio.to_thread(records.find, wanted.purpose)
        if found is not None:
            return await self._lower_fee(records, found) if found.is_refused else found
        gas = wanted.gas or await self.client.estimate_gas(
            wanted.to, wanted.data, self.address, wanted.value
        )
        bid = first_bid(await self.client.fees(), self._fee_cap_wei)
        async with self._lock:
            found = await asyncio.to_thread(records.find, wanted.purpose)
            if found is None:
                nonce = await self._free_nonce(records)
                found = self._signed(replace(wanted, gas=gas, nonce=nonce), bid)
                await asyncio.to_thread(records.add, found)
        return found

    def was_unsent(self, attempt: Attempt) -> bool:
        """Records that an attempt is handed to a node now. Returns True if this is certainly the
        first time.
        """
        if attempt.hash not in self._unsent:
            return False
        self._unsent.discard(attempt.hash)
        return True

    async def raise_fee(self, entry: SendRecord) -> SendRecord:
        """Signs one more attempt at the same nonce, for a higher fee if `raised_bid` allows it."""
        records = self.records()
        fees = await self.client.fees()
        async with self._lock:
            now = await asyncio.to_thread(records.find, entry.purpose)
            if now is None or now.nonce != entry.nonce or len(now.attempts) != len(entry.attempts):
                return now or entry  # another task has raised it already
            bid = raised_bid(_bid_of(entry), fees, self._fee_cap_wei)
            if isinstance(bid, str):
                log.warning("%s: %s", entry.purpose, bid)
                return entry
            log.info("%s: fee raised to %d wei", entry.purpose, bid.fee_max)
            return await self._add_attempt(records, entry, bid, cancels=entry.attempts[-1].cancels)

    async def raise_fees_before(self, entry: SendRecord) -> None:
        """Raises the fee of earlier transactions whose fee is now below the base fee. They delay
        this one, and perhaps no caller waits for them any more.
        """
        records = self.records()
        fees, mined = await self.client.fees(), await self.client.nonce(self.address)
        for waiting in await asyncio.to_thread(records.unsettled, entry.nonce - 1):
            if (
                waiting.nonce >= mined
                and waiting.attempts[-1].fee_max < fees.base_fee_wei + fees.tip_wei
            ):
                await self.raise_fee(waiting)

    async def cancel(self, entry: SendRecord) -> None:
        """Signs an empty transfer to ourselves at the purpose's nonce, unless there is one.

        The chain mines either it or the purpose's own transaction, never both. The purpose may get
        another nonce only if the chain mines the transfer.
        """
        async with self._lock:
            await self._cancel(entry)

    async def unblock_earlier_nonces(self, entry: SendRecord) -> None:
        """Makes sure that each nonce before the entry's has a transaction that nodes take.

        Two things delay the entry otherwise: a purpose that nodes refuse, and a purpose whose block
        a reorganisation has removed. Raises Unavailable if an earlier nonce was never used from
        here: a node has told a false count, now or when the entry was signed. The next purposes use
        such nonces. Transfers that only fill them would cost as much as a node likes.
        """
        records = self.records()
        await self._reopen_removed(records, entry)
        async with self._lock:
            for waiting in await asyncio.to_thread(records.unsettled, entry.nonce - 1):
                if waiting.is_refused:
                    await self._cancel(waiting)
        used = await self.client.nonce(self.address, "pending")
        held = await asyncio.to_thread(records.nonces, used)
        lacking = max(0, entry.nonce - used) - sum(nonce < entry.nonce for nonce in held)
        if lacking > 0:
            raise Unavailable(
                f"the chain node tells nonce {used} of 0x{self.address.hex()}, and {entry.purpose} "
                f"has nonce {entry.nonce}: {lacking} before it were not sent from here"
            )

    async def renumber_if_lost(self, entry: SendRecord) -> None:
        """Gives the purpose a free nonce if another program used its nonce.

        The caller calls it after the error "nonce too low". Behind one URL there may be several
        nodes, and the one that is asked for the receipt may lack the block that has it. A second
        transaction would then pay twice. So the nonce must have been used for `LOST_BLOCKS` while
        no receipt of ours is found.
        """
        records = self.records()
        async with self._lock:
            head = await self.client.head()
            deep = BlockNumber(max(0, head.number - self._lost_blocks + 1))
            if await self.client.nonce(self.address, deep) <= entry.nonce:
                return
            # The receipts come after the nonce: if one of ours had used it, the receipt is there.
            for attempt in entry.attempts:
                if await self.client.receipt(attempt.hash) is not None:
                    return
            bid = first_bid(await self.client.fees(), self._fee_cap_wei)
            again = self._signed(replace(entry, nonce=await self._free_nonce(records)), bid)
            await asyncio.to_thread(records.renumber, entry, again.nonce, again.attempts[0])
            log.warning(
                "%s: another program used nonce %d, now %d", entry.purpose, entry.nonce, again.nonce
            )

    async def is_removed(self, receipt: Receipt) -> bool:
        """Returns whether the chain has another block at the receipt's height. It returns False if
        the node lacks a block of that height, because such a node proves nothing.
        """
        block = await self.client.block(receipt.block)
        return block is not None and block.hash != receipt.block_hash

    async def is_outdated(self, receipt: Receipt) -> bool:
        if receipt.success:
            return await self.is_removed(receipt)
        now = await self.client.receipt(receipt.transaction)
        return await self.is_removed(receipt) if now is None else now.success

    async def _free_nonce(self, records: SendRecords) -> int:
        # From the chain, not from a counter, so that no resynchronisation is needed. Nonces of the
        # records are skipped even when a node that lags behind reports fewer than have been used.
        nonce = await self.client.nonce(self.address)
        own = await asyncio.to_thread(records.next_nonce)
        if nonce > max(own, self._confirmed):
            await self._confirm(nonce, own)
        held = await asyncio.to_thread(records.nonces, nonce)
        while nonce in held:
            nonce += 1
        return nonce

    async def _confirm(self, told: int, own: int) -> None:
        """Raises Unavailable unless the chain shows at depth k that the account has sent so many
        transactions, though only `own` were sent from here.

        Another machine may have sent the others. A false count would give a purpose a nonce that is
        never reached.
        """
        head = await self.client.head()
        deep = head.final(self._depth)
        if await self.client.nonce(self.address, deep) < told or not await was_sent(
            self.client, self.address, told - 1, deep
        ):
            raise Unavailable(
                f"the chain node tells nonce {told} of 0x{self.address.hex()}, {own} were sent "
                f"from here, and it does not show the others {self._depth} blocks deep"
            )
        self._confirmed = told

    async def _lower_fee(self, records: SendRecords, entry: SendRecord) -> SendRecord:
        """Signs one more attempt for less, where fees fell. The account may have enough coins for
        today's price, after nodes refused a higher one for lack of coins.
        """
        fees = await self.client.fees()
        async with self._lock:
            now = await asyncio.to_thread(records.find, entry.purpose)
            if now is None or not now.is_refused or now.attempts[-1].cancels:
                return now or entry
            bid = lowered_bid(_bid_of(now), fees, self._fee_cap_wei)
            return now if bid is None else await self._add_attempt(records, now, bid)

    async def _cancel(self, entry: SendRecord) -> None:
        if any(attempt.cancels for attempt in entry.attempts):
            return
        bids = [Bid(attempt.fee_max, attempt.tip_max) for attempt in entry.attempts]
        highest = Bid(max(bid.fee_max for bid in bids), max(bid.tip_max for bid in bids))
        bid = outbidding(highest, await self.client.fees(), self._fee_cap_wei)
        await self._add_attempt(self.records(), entry, bid, cancels=True)
        log.warning("%s: nonce %d gets an empty transfer", entry.purpose, entry.nonce)

    async def _reopen_removed(self, records: SendRecords, entry: SendRecord) -> None:
        mined = await self.client.nonce(self.address)
        for ended in await asyncio.to_thread(records.settled, mined, entry.nonce - 1):
            if ended.receipt is not None and await self.is_removed(ended.receipt):
                await asyncio.to_thread(records.reopen, ended)
                log.warning(
                    "%s: a reorganisation removed block %d", ended.purpose, ended.receipt.block
                )

    async def _add_attempt(
        self, records: SendRecords, entry: SendRecord, bid: Bid, *, cancels: bool = False
    ) -> SendRecord:
        asked = replace(entry, to=self.address, data=b"", value=0, gas=TRANSFER_GAS)
        attempt = replace(
            self._signed(asked if cancels else entry, bid).attempts[0], cancels=cancels
        )
        await asyncio.to_thread(records.attempt, entry, attempt)
        return replace(entry, attempts=(*entry.attempts, attempt))

    def _signed(self, entry: SendRecord, bid: Bid) -> SendRecord:
        crash_point("chain.before-sign")
        transaction = Transaction(
            chain_id=self._chain_id,
            nonce=entry.nonce,
            to=entry.to,
            data=entry.data,
            value=entry.value,
            gas=entry.gas,
            fee_max=bid.fee_max,
            tip_max=bid.tip_max,
        )
        signed = sign(transaction, self.signer)
        self._unsent.add(signed.hash)
        return replace(entry, attempts=(Attempt(signed.hash, signed.raw, *_pair(bid)),))


def _bid_of(entry: SendRecord) -> Bid:
    return Bid(entry.attempts[-1].fee_max, entry.attempts[-1].tip_max)


def _pair(bid: Bid) -> tuple[int, int]:
    return bid.fee_max, bid.tip_max


async def was_sent(client: ChainClient, account: Address, nonce: int, deep: BlockNumber) -> bool:
    """Returns whether a block up to `deep` has the account's transaction with this nonce.

    A node's count costs nothing to invent; the signature of the last transaction cannot be.
    Two nodes that agree are believed. So is a single node that has deleted the old states, or that
    shows a transaction of another type: nothing can be proved with it.
    """
    if client.is_compared:
        return True
    try:
        block = await _block_of(client, account, nonce, deep)
        if block is None:
            return False
        tree = await client.rpc.read("eth_getBlockByNumber", hex(block), True)
    except (Unavailable, RpcFailure) as error:
        log.warning("nonce %d of 0x%s is one node's word: %s", nonce, account.hex(), error)
        return True  # many nodes delete old states
    trees = member(tree, "transactions")
    own = [item for item in trees or () if _is_named(item, account, nonce)]
    return any(item.get("type") != DYNAMIC_FEE or signer(item) == account for item in own)


async def _block_of(
    client: ChainClient, account: Address, nonce: int, deep: BlockNumber
) -> BlockNumber | None:
    """Returns the block that used the nonce, or None if the account had used it before all."""
    low, high = 0, int(deep)  # not used at `low`, used at `high`
    if await client.nonce(account, BlockNumber(low)) > nonce:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if await client.nonce(account, BlockNumber(middle)) > nonce:
            high = middle
        else:
            low = middle
    return BlockNumber(high)


def _is_named(tree: Json, account: Address, nonce: int) -> bool:
    sender = str(member(tree, "from")).lower()
    return sender == "0x" + account.hex() and member(tree, "nonce") == hex(nonce)


def signer(tree: Json) -> Address | None:
    """Returns who signed a transaction; None if its form is wrong."""
    from eth_account.typed_transactions.typed_transaction import TypedTransaction

    fields = {name: tree.get(name) for name in _SIGNED}
    fields |= {"type": 2, "data": tree.get("input"), "accessList": tree.get("accessList") or []}
    try:
        # As octets: the library refuses a text whose letters show no checksum, as nodes answer.
        fields["to"] = bytes.fromhex(str(tree.get("to") or "0x").removeprefix("0x"))
        digest = Hash32(bytes(TypedTransaction.from_dict(fields).hash()))
        parts = [hex_integer(tree.get(name), 256).to_bytes(32, "big") for name in ("r", "s")]
        parity = hex_integer(tree.get("yParity", tree.get("v")), 8)
        return recover(digest, Signature(b"".join(parts) + bytes([27 + parity])))
    except (Refused, Unavailable, ValueError, TypeError):
        return None  # no signature of the account is shown
