"""The records of blocks, transactions and calls that the ledger keeps."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from eth.abc import BlockHeaderAPI, ComputationAPI
from eth.exceptions import Revert

from quorate_devnet.chain.transaction_pool import Pending


@dataclass(frozen=True, slots=True)
class Event:
    """One log of one transaction."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes
    index: int  # in its block


@dataclass(frozen=True, slots=True)
class Mined:
    """One transaction in a block, with its effects."""

    pending: Pending
    index: int
    success: bool
    gas_used: int
    gas_before: int  # gas used by the block's earlier transactions
    gas_price: int  # effective, wei
    events: tuple[Event, ...]
    contract: bytes | None  # address of the created contract
    output: bytes  # what it returned, or its revert data


@dataclass(frozen=True, slots=True)
class Block:
    """One block."""

    header: BlockHeaderAPI
    transactions: tuple[Mined, ...]

    @property
    def number(self) -> int:
        return int(self.header.block_number)


@dataclass(frozen=True, slots=True)
class Call:
    """An unsigned call to try."""

    sender: bytes
    to: bytes  # empty = creation
    data: bytes
    value: int
    gas: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a tried call.

    `gas_spent` is before refunds, and at least the least gas for its calldata.
    """

    success: bool
    output: bytes
    gas_spent: int
    error: str


def mined_record(
    pending: Pending,
    index: int,
    before: BlockHeaderAPI,
    after: BlockHeaderAPI,
    computation: ComputationAPI,
    events_before: int,
) -> Mined:
    """Returns the record of an applied transaction.

    `before` and `after` are the block's header without and with its gas.
    """
    logs = computation.get_log_entries() if computation.is_success else ()
    found = tuple(
        Event(
            bytes(address),
            tuple(topic.to_bytes(32, "big") for topic in topics),
            bytes(data),
            events_before + place,
        )
        for place, (address, topics, data) in enumerate(logs)
    )
    transaction, base_fee = pending.transaction, before.base_fee_per_gas or 0
    created = computation.is_success and computation.msg.is_create
    return Mined(
        pending=pending,
        index=index,
        success=computation.is_success,
        gas_used=after.gas_used - before.gas_used,
        gas_before=before.gas_used,
        gas_price=min(transaction.max_fee_per_gas, base_fee + transaction.max_priority_fee_per_gas),
        events=found,
        contract=bytes(computation.msg.storage_address) if created else None,
        output=_output(computation),
    )


def outcome(call: Call, computation: ComputationAPI) -> Outcome:
    floor = max(0, getattr(computation, "data_floor_gas", 0))
    spent = call.gas - computation.get_gas_remaining() + floor
    return Outcome(
        computation.is_success,
        _output(computation),
        spent,
        "" if computation.is_success else _error_text(computation),
    )


def events(blocks: Iterable[Block]) -> Iterator[tuple[Block, Mined, Event]]:
    """Returns every log of some blocks, in order."""
    for block in blocks:
        for mined in block.transactions:
            for event in mined.events:
                yield block, mined, event


def _output(computation: ComputationAPI) -> bytes:
    # Revert carries its data as the exception's argument; output is the same bytes where it is set.
    if computation.is_error and not isinstance(computation.error, Revert):
        return b""
    return bytes(computation.output)


def _error_text(computation: ComputationAPI) -> str:
    return (
        "execution reverted"
        if isinstance(computation.error, Revert)
        else f"{type(computation.error).__name__}: {computation.error}"
    )
