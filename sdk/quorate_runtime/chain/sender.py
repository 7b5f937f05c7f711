"""Sends one key's transactions: each purpose once, even if the program or a node crashes in
between.

A purpose is a text that names one thing to do on chain. The order is: sign, store (nonce, raw
bytes, hash), then send. After a crash the sender sends the same bytes again, and "already known" or
"nonce too low" with a known hash is success. A purpose gets a transaction with another nonce only
if another transaction has used its nonce, at depth k. While the node does not answer, the caller's
deadline runs.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address
from quorate_runtime.chain.account_nonces import AccountNonces
from quorate_runtime.chain.client import FEE_CAP_GWEI, ChainClient
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.chain.node_errors import Answer, classify, revert_reason
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.send_records import SendRecord, SendRecords
from quorate_runtime.chain.types import Receipt
from quorate_runtime.process.crash_points import crash_point

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """Depth k, waits in seconds, and the highest fee per gas in wei, which the sender rarely
    offers.
    """

    depth: int = 1
    poll_seconds: float = 0.5
    resend_seconds: float = 5.0
    bump_seconds: float = 30.0
    fee_cap_wei: int = FEE_CAP_GWEI * GWEI


class Unfunded(Refused):
    """The account has too few coins for the transaction. Send coins to it and call again."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One transaction to be sent: the arguments of `Sender.send`."""

    purpose: str
    to: Address | None
    data: bytes
    value: int = 0
    gas: int | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the chain says of a purpose: its receipt at depth k, or whether some block has it."""

    receipt: Receipt | None = None
    is_in_block: bool = False
    is_cancelled: bool = False  # at depth k; the purpose may have another nonce now


class Sender:
    """Sends for one key. Use one instance per key and file. `path` is the records's SQLite file.

    `chain_id` is the chain that the caller trusts and has compared with the node's. `deployment`
    tells deployments on it apart (`Deployment.trusted`); it is empty for a tool that uses none.
    """

    def __init__(
        self,
        client: ChainClient,
        signer: Signer,
        path: Path,
        clock: Clock,
        policy: SendPolicy | None = None,
        *,
        chain_id: int,
        deployment: bytes = b"",
    ) -> None:
        self._client = client
        self._clock = clock
        self._policy = policy or SendPolicy(fee_cap_wei=client.fee_cap_wei)
        self._nonces = AccountNonces(
            client,
            signer,
            path,
            chain_id=chain_id,
            deployment=deployment,
            fee_cap_wei=self._policy.fee_cap_wei,
            depth=self._policy.depth,
        )

    @property
    def address(self) -> Address:
        return self._nonces.address

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
        """Sends the transaction of `purpose` once and returns its receipt at depth k.

        For a known purpose the first call's arguments hold, and this call only waits. If `to` is
        None, it creates a contract. If `gas` is None, it estimates.

        Raises Refused(CHAIN, reason) if the contract reverts (now or in the estimate), or the node
        will not take the transaction. The purpose keeps its nonce, and a later call sends it again.
        Raises `Unfunded` in the same way if the account has too few coins. Raises Unavailable if it
        is not at depth k within the deadline. Call again to go on waiting.
        """
        return await self._sent(
            _unsigned(Outgoing(purpose, to, data, value, gas)), deadline_seconds
        )

    async def _sent(self, wanted: SendRecord, deadline_seconds: float) -> Receipt:
        purpose = wanted.purpose
        limit = self._clock.now() + deadline_seconds
        sent_at = bumped_at = None
        while True:
            pause = self._policy.poll_seconds
            try:
                entry = await self._nonces.prepare(wanted)
                now = self._clock.now()
                found = await self._outcome_on_chain(entry)
                if found.receipt is not None:
                    return found.receipt
                bumped_at = now if bumped_at is None else bumped_at
                if not found.is_in_block and now - bumped_at >= self._policy.bump_seconds:
                    await self._nonces.raise_fees_before(entry)
                    entry = await self._nonces.raise_fee(entry)
                    sent_at, bumped_at = None, now
                if found.is_cancelled:
                    pause, sent_at = 0.0, None  # it gets another nonce at once
                elif not found.is_in_block and (
                    sent_at is None or now - sent_at >= self._policy.resend_seconds
                ):
                    await self._send_up_to(entry, again=sent_at is not None)
                    sent_at = now
            except Unavailable as error:
                # The deadline decides how long the node may fail.
                log.warning("%s waits for the chain: %s", purpose, error)
                pause, reason = max(pause, error.retry_after), str(error)
            else:
                reason = "not mined yet"
            if self._clock.now() >= limit:
                told = f"not at depth {self._policy.depth} within {deadline_seconds:g} s"
                raise Unavailable(f"{purpose}: {told}: {reason}", pause)
            await self._clock.sleep(min(pause, max(0.0, limit - self._clock.now())))

    async def send_in_order(
        self, outgoing: Sequence[Outgoing], *, deadline_seconds: float
    ) -> tuple[Receipt, ...]:
        """Sends each as `send` does, signed in this order (rising nonces), so that one block can
        have all.

        It waits for all together. Purposes that were signed before keep their nonces; a concurrent
        `send` may take one in between. It raises the first failure after all have ended.
        """
        wanted = [_unsigned(item) for item in outgoing]
        for item in wanted:
            await self._nonces.prepare(item)
        sends = (self._sent(item, deadline_seconds) for item in wanted)
        ended = await asyncio.gather(*sends, return_exceptions=True)
        receipts = []
        for result in ended:
            if isinstance(result, BaseException):
                raise result
            receipts.append(result)
        return tuple(receipts)

    async def known(self, purpose: str) -> bool:
        """Returns whether a purpose has been signed and holds a nonce."""
        records = self._nonces.records()
        return await asyncio.to_thread(records.find, purpose) is not None

    async def has_ended(self, purpose: str) -> bool:
        """Returns whether a purpose's transaction is known to be mined, or to have reverted."""
        records = self._nonces.records()
        found = await asyncio.to_thread(records.find, purpose)
        return found is not None and found.receipt is not None

    def close(self) -> None:
        """Closes the records. Transactions that nodes hold may still be mined."""
        self._nonces.close()

    async def _outcome_on_chain(self, entry: SendRecord) -> _Outcome:
        records = self._nonces.records()
        if entry.receipt is not None:
            # A transaction that a reorganisation removed is sent again: others may wait for it,
            # such as for a step of a case. Handing over the same bytes twice is harmless. A failure
            # is read again each time, because one node may have invented it.
            if not await self._nonces.is_outdated(entry.receipt):
                return _Outcome(_ended(entry.receipt, entry.reason), True)
            await asyncio.to_thread(records.reopen, entry)
            log.warning("%s: block %d does not have it now", entry.purpose, entry.receipt.block)
        for attempt in reversed(entry.attempts):
            receipt = await self._client.receipt(attempt.hash)
            if receipt is None:
                continue
            head = await self._client.head()
            if head.number - receipt.block + 1 < self._policy.depth:
                return _Outcome(is_in_block=True)
            if attempt.cancels:
                await asyncio.to_thread(records.forget, entry)
                return _Outcome(is_in_block=True, is_cancelled=True)
            if not receipt.success:
                await self._confirm_failure(receipt)
            reason = "" if receipt.success else await self._revert_reason(entry, receipt)
            crash_point("chain.after-receipt")
            await asyncio.to_thread(records.settle, entry.purpose, receipt, reason)
            crash_point("chain.after-settle")
            return _Outcome(_ended(receipt, reason), True)
        return _Outcome()

    async def _has_ended(self, entry: SendRecord) -> bool:
        """Returns whether some block has the purpose's transaction, and stores the outcome if so.

        Perhaps no caller waits for it any more. Without the stored outcome it would be sent for
        ever.
        """
        try:
            return (await self._outcome_on_chain(entry)).is_in_block
        except Refused:
            return True  # it reverted, and its own caller hears of it

    async def _confirm_failure(self, receipt: Receipt) -> None:
        """Raises Unavailable unless the node says it again, and the block has the transaction."""
        again = await self._client.receipt(receipt.transaction)
        if (
            again != receipt
            or await self._nonces.is_removed(receipt)
            or not await self._client.has_transaction(receipt.block_hash, receipt.transaction)
        ):
            told = f"of transaction 0x{receipt.transaction.hex()} in block {receipt.block}"
            raise Unavailable(f"the chain node contradicts the failure that it told {told}")

    async def _revert_reason(self, entry: SendRecord, receipt: Receipt) -> str:
        """Returns the reason of a revert: from the receipt, else by calling again at its block."""
        if receipt.revert_output:
            return revert_reason(receipt.revert_output)
        if entry.to is None:
            return "the contract was not created"
        try:
            await self._client.call(entry.to, entry.data, self.address, receipt.block, entry.value)
        except Refused as refused:
            return refused.detail
        except Unavailable as error:
            # How it ended is known, and no node may ever again have the state of
            # that block.
            return f"reverted, for a reason that the node does not give: {error}"
        out_of_gas = receipt.gas_used >= entry.gas
        return "out of gas" if out_of_gas else "reverted, but not when called again after its block"

    async def _send_up_to(self, entry: SendRecord, again: bool) -> None:
        """Sends this entry and those with lower nonces, which would delay it. It sends those that
        no node has taken yet, or all if `again`.
        """
        await self._nonces.unblock_earlier_nonces(entry)
        records = self._nonces.records()
        for waiting in await asyncio.to_thread(records.unsettled, entry.nonce):
            is_own = waiting.purpose == entry.purpose
            if is_own or (
                (again or not waiting.attempts[-1].taken) and not await self._has_ended(waiting)
            ):
                await self._hand_over(records, waiting, is_own)

    async def _hand_over(self, records: SendRecords, entry: SendRecord, is_own: bool) -> None:
        attempt = entry.attempts[-1]
        # Only if no node can have this transaction yet, a refusal proves that none has it.
        is_first = self._nonces.was_unsent(attempt) or attempt.refused
        if attempt.refused:
            await asyncio.to_thread(records.mark, attempt, refused=False)
        try:
            crash_point("chain.before-send")
            await self._client.send_raw(attempt.raw)
            crash_point("chain.after-send")
        except RpcFailure as failure:
            match classify(failure.message):
                case Answer.KNOWN:
                    pass
                case Answer.NONCE_USED:
                    await self._nonces.renumber_if_lost(entry)
                    return
                case Answer.NEVER | Answer.UNFUNDED as answer:
                    if is_first:
                        await asyncio.to_thread(records.mark, attempt, refused=True)
                    await self._refused(records, entry, answer, failure, is_own)
                    return
                case _:
                    raise Unavailable(
                        f"{entry.purpose}: the chain node says: {failure.message}"
                    ) from failure
        if not attempt.taken:
            await asyncio.to_thread(records.mark, attempt, taken=True)

    async def _refused(
        self,
        records: SendRecords,
        entry: SendRecord,
        answer: Answer,
        failure: RpcFailure,
        is_own: bool,
    ) -> None:
        """Tells the caller that the node refuses its purpose, if no node can have taken it.

        Otherwise its nonce has to decide. If the node will never take it (again), an empty
        transfer takes part in the race for the nonce, so that there is an end.
        """
        now = await asyncio.to_thread(records.find, entry.purpose)
        if now is not None and now.is_refused and not now.attempts[-1].cancels:
            if is_own:
                kind = Unfunded if answer is Answer.UNFUNDED else Refused
                raise kind(Code.CHAIN, f"{entry.purpose}: {failure.message}") from failure
            return  # its own caller hears of it
        if now is not None and answer is Answer.NEVER:
            await self._nonces.cancel(now)
        raise Unavailable(f"{entry.purpose}: the chain node says: {failure.message}") from failure


def _unsigned(item: Outgoing) -> SendRecord:
    return SendRecord(
        purpose=item.purpose,
        nonce=-1,
        to=item.to,
        data=item.data,
        value=item.value,
        gas=item.gas or 0,
        attempts=(),
    )


def _ended(receipt: Receipt, reason: str) -> Receipt:
    if not receipt.success:
        raise Refused(Code.CHAIN, reason)
    return receipt
