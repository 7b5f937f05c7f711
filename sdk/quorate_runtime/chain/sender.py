"""One key's transactions: each purpose exactly once, whatever crashes or hangs in between.

Order of things: sign, persist (nonce, raw, hash), then send. So after a crash the same bytes are
sent again, and "already known" or "nonce too low" with a known hash is success. A purpose never
gets a second transaction unless its nonce was used up, at depth k, by something else. Nodes are
asked through `ChainClient`; while they are away the caller's deadline runs.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quorate_protocol.ports import Clock, Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber
from quorate_runtime.chain.client import FEE_CAP_GWEI, GWEI, TIP_LEAST_WEI, ChainClient
from quorate_runtime.chain.node_errors import Answer, classify
from quorate_runtime.chain.outbox import Attempt, Entry, Outbox
from quorate_runtime.chain.revert import revert_reason
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.transactions import Transaction, sign
from quorate_runtime.chain.types import Fees, Receipt
from quorate_runtime.process.crash_points import crash_point

GAP_PURPOSE = "nonce-gap/"
GAPS_MAX = 16
TRANSFER_GAS = 21_000
# so old is the use of a nonce before a receipt that no node shows means that another program used
# it
LOST_BLOCKS = 8
# times what recent blocks were paid: a node that keeps transactions back would have us raise it
# without end
TIP_RISE_MAX = 8

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """How patient and how generous: depth k, waits in seconds, greatest fee per gas in wei, of
    which most is only ever offered.
    """

    depth: int = 1
    poll_seconds: float = 0.5
    resend_seconds: float = 5.0
    bump_seconds: float = 30.0
    fee_cap_wei: int = FEE_CAP_GWEI * GWEI


class Unfunded(Refused):
    """The account has too few coins for the transaction, which was not sent and is forgotten. It
    may be asked for again.
    """


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One transaction to be sent: as the arguments of `Sender.send`."""

    purpose: str
    to: Address | None
    data: bytes
    value: int = 0
    gas: int | None = None


class Sender:
    """Sends for one key; one instance per key and file. `path` is the outbox's SQLite file."""

    def __init__(
        self,
        client: ChainClient,
        signer: Signer,
        path: Path,
        clock: Clock,
        policy: SendPolicy | None = None,
    ) -> None:
        self._client = client
        self._signer = signer
        self._path = path
        self._clock = clock
        self._policy = policy or SendPolicy(fee_cap_wei=client.fee_cap_wei)
        self._lock = asyncio.Lock()
        self._opened: tuple[Outbox, int] | None = None  # with the chain id

    @property
    def address(self) -> Address:
        """The account that pays and signs."""
        return self._signer.address

    async def send(
        self,
        purpose: str,
        to: Address | None,
        data: bytes,
        *,
        deadline_seconds: float,
        value: int = 0,
        gas: int | None = None,
    ) -> Receipt:
        """Does `purpose` once and returns its receipt at depth k; a purpose that is known is
        only waited for, its first call stands.

        `to` None creates a contract; `gas` None estimates. Refused(CHAIN, reason): the contract
        reverted it (now or in the estimate), or no node will ever take it; `Unfunded`: none does
        as things stand. Unavailable: not at depth k within the deadline; call again to go on
        waiting.
        """
        wanted = Entry(purpose, -1, to, data, value, gas or 0, ())
        limit = self._clock.now() + deadline_seconds
        sent_at = bumped_at = None
        while True:
            pause = self._policy.poll_seconds
            try:
                entry = await self._prepare(wanted)
                now = self._clock.now()
                receipt, in_block = await self._look(entry)
                if receipt is not None:
                    return receipt
                bumped_at = now if bumped_at is None else bumped_at
                if not in_block and now - bumped_at >= self._policy.bump_seconds:
                    await self._bump_before(entry)
                    entry = await self._bump(entry)
                    sent_at, bumped_at = None, now
                if not in_block and (
                    sent_at is None or now - sent_at >= self._policy.resend_seconds
                ):
                    await self._send_up_to(entry, again=sent_at is not None)
                    sent_at = now
            except Unavailable as error:
                # The node is away or confused: the deadline decides how long that is borne.
                _logger.warning("%s waits for the chain: %s", purpose, error)
                pause, reason = max(pause, error.retry_after), str(error)
            else:
                reason = "not mined yet"
            if self._clock.now() >= limit:
                raise Unavailable(
                    (
                        f"{purpose}: not at depth {self._policy.depth} within "
                        f"{deadline_seconds:g} s: "
                        f"{reason}"
                    ),
                    pause,
                )
            await self._clock.sleep(min(pause, max(0.0, limit - self._clock.now())))

    async def send_in_order(
        self, outgoing: Sequence[Outgoing], *, deadline_seconds: float
    ) -> tuple[Receipt, ...]:
        """Like `send` for each, but signed in this order (rising nonces) and waited for
        together, so that one block can hold all.

        Purposes that were signed before keep their nonces; a concurrent `send` may take one in
        between. The first failure is raised after all have ended.
        """
        for item in outgoing:
            await self._prepare(
                Entry(item.purpose, -1, item.to, item.data, item.value, item.gas or 0, ())
            )
        sends = (
            self.send(
                item.purpose,
                item.to,
                item.data,
                value=item.value,
                gas=item.gas,
                deadline_seconds=deadline_seconds,
            )
            for item in outgoing
        )
        ended = await asyncio.gather(*sends, return_exceptions=True)
        receipts = []
        for result in ended:
            if isinstance(result, BaseException):
                raise result
            receipts.append(result)
        return tuple(receipts)

    async def known(self, purpose: str) -> bool:
        """Whether a purpose has been signed before."""
        outbox, _ = await self._open()
        return await asyncio.to_thread(outbox.find, purpose) is not None

    def close(self) -> None:
        """Closes the outbox; what is on its way stays on its way."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    async def _open(self) -> tuple[Outbox, int]:
        if self._opened is None:
            chain_id = await self._client.chain_id()
            genesis = await self._client.block(BlockNumber(0))
            if genesis is None:
                raise Unavailable("the chain node has no genesis block")
            domain = chain_id.to_bytes(32, "big") + genesis.hash
            if self._opened is None:  # another task may have been faster
                self._opened = (Outbox(self._path, domain, self.address), chain_id)
        return self._opened

    async def _prepare(self, wanted: Entry) -> Entry:
        """The stored entry of a purpose, made and signed first if need be."""
        outbox, _ = await self._open()
        found = await asyncio.to_thread(outbox.find, wanted.purpose)
        if found is not None:
            return found
        gas = wanted.gas or await self._client.estimate_gas(
            wanted.to, wanted.data, self.address, wanted.value
        )
        fees = await self._client.fees()
        async with self._lock:
            found = await asyncio.to_thread(outbox.find, wanted.purpose)
            if found is None:
                found = await self._reserve(
                    Entry(wanted.purpose, -1, wanted.to, wanted.data, wanted.value, gas, ()), fees
                )
        return found

    async def _reserve(self, wanted: Entry, fees: Fees) -> Entry:
        """Takes the lowest free nonce, signs and stores. The lock is held."""
        outbox, _ = await self._open()
        nonce = await self._free_nonce(outbox)
        attempt = await self._sign(
            wanted, nonce, 2 * fees.base_fee_wei + fees.tip_wei, fees.tip_wei
        )
        entry = Entry(
            wanted.purpose, nonce, wanted.to, wanted.data, wanted.value, wanted.gas, (attempt,)
        )
        await asyncio.to_thread(outbox.add, entry)
        return entry

    async def _free_nonce(self, outbox: Outbox) -> int:
        # From the chain, not from a counter: so a resynchronisation is nothing special. Nonces of
        # the outbox are skipped even when a node that lags behind reports less than has been used.
        nonce = await self._client.nonce(self.address)
        held = await asyncio.to_thread(outbox.nonces, nonce)
        while nonce in held:
            nonce += 1
        return nonce

    async def _sign(self, entry: Entry, nonce: int, fee_max: int, tip_max: int) -> Attempt:
        _, chain_id = await self._open()
        crash_point("chain.before-sign")
        fee = min(fee_max, self._policy.fee_cap_wei)
        tip = min(tip_max, fee)
        signed = sign(
            Transaction(chain_id, nonce, entry.to, entry.data, entry.value, entry.gas, fee, tip),
            self._signer,
        )
        return Attempt(signed.hash, signed.raw, fee, tip)

    async def _look(self, entry: Entry) -> tuple[Receipt | None, bool]:
        """(receipt at depth k, whether it is in a block at all). Refused when it reverted."""
        if entry.receipt is not None:
            if not (entry.receipt.success and await self._was_taken_away(entry.receipt)):
                return _ended(entry.receipt, entry.reason), True
            outbox, _ = await self._open()
            await asyncio.to_thread(outbox.reopen, entry.purpose)
            _logger.warning(
                "%s: block %d was taken away by a reorganisation",
                entry.purpose,
                entry.receipt.block,
            )
        for attempt in reversed(entry.attempts):
            receipt = await self._client.receipt(attempt.hash)
            if receipt is None:
                continue
            head = await self._client.head()
            if head.number - receipt.block + 1 < self._policy.depth:
                return None, True
            reason = "" if receipt.success else await self._why(entry, receipt)
            outbox, _ = await self._open()
            crash_point("chain.after-receipt")
            await asyncio.to_thread(outbox.settle, entry.purpose, receipt, reason)
            crash_point("chain.after-settle")
            return _ended(receipt, reason), True
        return None, False

    async def _was_taken_away(self, receipt: Receipt) -> bool:
        """Whether another block stands where it was mined. A node that is behind, or has
        forgotten that block, says nothing.

        Handing over the same transaction again is harmless; one that others wait for, such as a
        step of a case, must not be missing.
        """
        block = await self._client.block(receipt.block)
        return block is not None and block.hash != receipt.block_hash

    async def _has_ended(self, entry: Entry) -> bool:
        """Whether it is in a block. Noted then: perhaps nobody waits for it any more, and it
        would be handed over for ever.
        """
        try:
            return (await self._look(entry))[1]
        except Refused:
            return True  # not re-raised: it reverted, and its own caller is told

    async def _why(self, entry: Entry, receipt: Receipt) -> str:
        """The reason of a revert: from the receipt, else by calling again at its block."""
        if receipt.revert_output:
            return revert_reason(receipt.revert_output)
        if entry.to is None:
            return "the contract was not created"
        try:
            await self._client.call(entry.to, entry.data, self.address, receipt.block, entry.value)
        except Refused as refused:
            # This is what was asked for.
            return refused.detail
        except Unavailable as error:
            # Not re-raised: how it ended is known, and a node may never again have the state of
            # that block.
            return f"reverted, and why is not to be had: {error}"
        out_of_gas = receipt.gas_used >= entry.gas
        return "out of gas" if out_of_gas else "reverted, but not when called again after its block"

    async def _send_up_to(self, entry: Entry, again: bool) -> None:
        """Hands over this entry and what is before it, so that no gap holds it up: what no node
        has taken yet, or (`again`) all.
        """
        await self._fill_gaps(entry)
        outbox, _ = await self._open()
        for waiting in await asyncio.to_thread(outbox.unsettled, entry.nonce):
            is_own = waiting.purpose == entry.purpose
            if is_own or (
                (again or not waiting.attempts[-1].taken) and not await self._has_ended(waiting)
            ):
                await self._hand_over(outbox, waiting, is_own)

    async def _hand_over(self, outbox: Outbox, entry: Entry, is_own: bool) -> None:
        attempt = entry.attempts[-1]
        try:
            crash_point("chain.before-send")
            await self._client.send_raw(attempt.raw)
            crash_point("chain.after-send")
        except RpcFailure as failure:
            match classify(failure.message):
                case Answer.KNOWN:
                    pass
                case Answer.NONCE_USED:
                    await self._renumber_if_lost(outbox, entry)
                    return
                case Answer.NEVER | Answer.UNFUNDED as answer if not any(
                    a.taken for a in entry.attempts
                ):
                    if is_own:
                        await asyncio.to_thread(outbox.forget, entry)
                        kind = Unfunded if answer is Answer.UNFUNDED else Refused
                        raise kind(Code.CHAIN, f"{entry.purpose}: {failure.message}") from failure
                    return  # its own caller is told
                case _:
                    raise Unavailable(
                        f"{entry.purpose}: the chain node says: {failure.message}"
                    ) from failure
        if not attempt.taken:
            await asyncio.to_thread(outbox.taken, attempt)

    async def _renumber_if_lost(self, outbox: Outbox, entry: Entry) -> None:
        """After "nonce too low": if the nonce has been used for some blocks and none of our
        transactions used it, sign with a free one.

        Of several nodes behind one URL the one that is asked for the receipt may not have the
        block that has it: done twice, it would be paid twice.
        """
        async with self._lock:
            head = await self._client.head()
            deep = BlockNumber(max(0, head.number - max(self._policy.depth, LOST_BLOCKS) + 1))
            if await self._client.nonce(self.address, deep) <= entry.nonce:
                return
            # Asked after the nonce: if one of ours had used it, its receipt is there by now.
            for attempt in entry.attempts:
                if await self._client.receipt(attempt.hash) is not None:
                    return
            if entry.purpose.startswith(GAP_PURPOSE):
                await asyncio.to_thread(outbox.forget, entry)
                return
            nonce = await self._free_nonce(outbox)
            fees = await self._client.fees()
            again = await self._sign(
                entry, nonce, 2 * fees.base_fee_wei + fees.tip_wei, fees.tip_wei
            )
            await asyncio.to_thread(outbox.renumber, entry, nonce, again)
            _logger.warning(
                "%s: nonce %d was used by something else, now %d", entry.purpose, entry.nonce, nonce
            )

    async def _fill_gaps(self, entry: Entry) -> None:
        """Nonces before ours that nothing holds any more (a purpose was forgotten) get an empty
        transfer to ourselves.
        """
        outbox, _ = await self._open()
        async with self._lock:
            nonce = await self._client.nonce(self.address, "pending")
            held = await asyncio.to_thread(outbox.nonces, nonce)
            gaps = [n for n in range(nonce, min(entry.nonce, nonce + GAPS_MAX)) if n not in held]
            fees = await self._client.fees() if gaps else Fees(0, 0)
            for gap in gaps:
                filler = Entry(f"{GAP_PURPOSE}{gap}", gap, self.address, b"", 0, TRANSFER_GAS, ())
                attempt = await self._sign(
                    filler, gap, 2 * fees.base_fee_wei + fees.tip_wei, fees.tip_wei
                )
                await asyncio.to_thread(
                    outbox.add,
                    Entry(filler.purpose, gap, filler.to, b"", 0, TRANSFER_GAS, (attempt,)),
                )

    async def _bump_before(self, entry: Entry) -> None:
        """What stands before this one and was left behind by the price holds it up, and perhaps
        nobody waits for it any more.
        """
        outbox, _ = await self._open()
        fees, mined = await self._client.fees(), await self._client.nonce(self.address)
        for waiting in await asyncio.to_thread(outbox.unsettled, entry.nonce - 1):
            if (
                waiting.nonce >= mined
                and waiting.attempts[-1].fee_max < fees.base_fee_wei + fees.tip_wei
            ):
                await self._bump(waiting)

    async def _bump(self, entry: Entry) -> Entry:
        """One more attempt at the same nonce for 12.5 % more, or today's price if that is more;
        none past the cap.
        """
        fees = await self._client.fees()
        async with self._lock:
            outbox, _ = await self._open()
            now = await asyncio.to_thread(outbox.find, entry.purpose)
            if now is None or now.nonce != entry.nonce or len(now.attempts) != len(entry.attempts):
                return now or entry  # another task was faster
            return await self._one_more(outbox, entry, fees)

    async def _one_more(self, outbox: Outbox, entry: Entry, fees: Fees) -> Entry:
        last = entry.attempts[-1]
        tip = max(_raised(last.tip_max), fees.tip_wei)
        fee = max(_raised(last.fee_max), 2 * fees.base_fee_wei + tip)
        if min(fee, self._policy.fee_cap_wei) < _raised(last.fee_max):
            _logger.warning(
                "%s: the fee cap of %d wei is reached", entry.purpose, self._policy.fee_cap_wei
            )
            return entry
        is_left_behind = last.fee_max < fees.base_fee_wei + last.tip_max
        if tip > TIP_RISE_MAX * max(fees.tip_wei, TIP_LEAST_WEI) and not is_left_behind:
            _logger.warning(
                "%s: nobody takes it for a tip of %d wei; is the chain node all right?",
                entry.purpose,
                last.tip_max,
            )
            return entry
        attempt = await self._sign(entry, entry.nonce, fee, tip)
        await asyncio.to_thread(outbox.attempt, entry, attempt)
        _logger.info("%s: fee raised to %d wei", entry.purpose, attempt.fee_max)
        return replace(entry, attempts=(*entry.attempts, attempt))


def _raised(wei: int) -> int:
    """12.5 % more, rounded up: nodes ask for 10 %."""
    return -(-wei * 9 // 8)


def _ended(receipt: Receipt, reason: str) -> Receipt:
    if not receipt.success:
        raise Refused(Code.CHAIN, reason)
    return receipt
