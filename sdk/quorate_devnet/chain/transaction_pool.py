"""Transactions that wait for a block.

The pool has a size limit. A transaction with 10 % more fee replaces one. The pool keeps
transactions behind a missing nonce.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eth.abc import SignedTransactionAPI

from quorate_devnet.chain.rpc_errors import SERVER_ERROR, RpcError

POOL_MAX = 4096


@dataclass(frozen=True, slots=True)
class Pending:
    """One decoded transaction with its sender recovered."""

    transaction: SignedTransactionAPI
    hash: bytes
    sender: bytes
    raw: bytes

    @property
    def nonce(self) -> int:
        return int(self.transaction.nonce)


class Pool:
    """Transactions in order of arrival, at most one per sender and nonce."""

    def __init__(self) -> None:
        self._arrived: dict[bytes, Pending] = {}
        self._slots: dict[tuple[bytes, int], Pending] = {}

    def __len__(self) -> int:
        return len(self._arrived)

    def get(self, transaction_hash: bytes) -> Pending | None:
        return self._arrived.get(transaction_hash)

    def add(self, pending: Pending) -> None:
        """Adds one transaction.

        Raises RpcError in geth's words if it is known, underpriced, or the pool is full.
        """
        if pending.hash in self._arrived:
            raise RpcError(SERVER_ERROR, "already known")
        before = self._slots.get((pending.sender, pending.nonce))
        if before is not None:
            if not _outbids(pending.transaction, before.transaction):
                raise RpcError(SERVER_ERROR, "replacement transaction underpriced")
            self.remove(before)
        elif len(self._arrived) >= POOL_MAX:
            raise RpcError(SERVER_ERROR, "txpool is full")
        self._arrived[pending.hash] = pending
        self._slots[pending.sender, pending.nonce] = pending

    def remove(self, pending: Pending) -> None:
        del self._arrived[pending.hash]
        del self._slots[pending.sender, pending.nonce]

    def ready(self, nonce_of: Callable[[bytes], int]) -> Iterator[Pending]:
        """Yields transactions that can be mined, by arrival.

        The nonces of each sender follow each other from `nonce_of(sender)`.
        """
        expected: dict[bytes, int] = {}
        for pending in list(self._arrived.values()):
            sender = pending.sender
            nonce = expected.setdefault(sender, nonce_of(sender))
            if pending.nonce != nonce:
                continue  # behind a gap, or yielded with its predecessor
            following: Pending | None = pending
            while following is not None:
                nonce += 1
                yield following
                following = self._slots.get((sender, nonce))
            expected[sender] = nonce

    def stale(self, nonce_of: Callable[[bytes], int]) -> list[Pending]:
        """Returns transactions whose nonce has been used."""
        return [
            pending
            for pending in self._arrived.values()
            if pending.nonce < nonce_of(pending.sender)
        ]

    def next_nonce(self, sender: bytes, nonce: int) -> int:
        """Returns the first nonce from `nonce` on for which no transaction waits."""
        while (sender, nonce) in self._slots:
            nonce += 1
        return nonce


def _outbids(new: SignedTransactionAPI, old: SignedTransactionAPI) -> bool:
    # 10 % on both fees, as geth asks; integers, so a fee of a few wei must grow by at least one.
    return all(
        10 * fee >= 11 * before and fee > before
        for fee, before in (
            (new.max_fee_per_gas, old.max_fee_per_gas),
            (new.max_priority_fee_per_gas, old.max_priority_fee_per_gas),
        )
    )
