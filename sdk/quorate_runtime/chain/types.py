"""What the chain client hands out. Built from a node's JSON; a node that answers nonsense is
`Unavailable`.
"""

from dataclasses import dataclass
from typing import Any

from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32

Json = Any  # a JSON tree from a node
# of block numbers, times and places in a block: what contracts and journal have room for, thrice
NUMBER_BITS = 48


@dataclass(frozen=True, slots=True)
class BlockHead:
    """A block's header, as far as anybody here needs it."""

    number: BlockNumber
    hash: Hash32
    parent_hash: Hash32
    time: int  # unix seconds; the "now" of chain deadlines
    base_fee_wei: int


@dataclass(frozen=True, slots=True)
class RawLog:
    """An undecoded log."""

    address: Address
    topics: tuple[Hash32, ...]
    data: bytes
    block: BlockNumber
    block_hash: Hash32
    block_time: int
    transaction: Hash32
    log_index: int  # in its block


@dataclass(frozen=True, slots=True)
class Receipt:
    """A mined transaction."""

    transaction: Hash32
    block: BlockNumber
    block_hash: Hash32
    success: bool
    gas_used: int
    gas_price_wei: int
    contract: Address | None  # the created contract
    logs: tuple[RawLog, ...]
    revert_output: bytes | None  # where the node tells it


@dataclass(frozen=True, slots=True)
class Fees:
    """What a transaction would pay now, per gas."""

    base_fee_wei: int
    tip_wei: int


def integer(value: Json, bits: int = 256) -> int:
    """A quantity from a node that fits so many bits."""
    if (
        isinstance(value, str)
        and value.startswith("0x")
        and len(value) <= 66
        and value[2:].isascii()
        and value[2:].isalnum()
    ):
        try:
            found = int(value, 16)
        except ValueError as error:
            raise Unavailable(f"the chain node sent {value[:40]!r} for a number") from error
        if found < 1 << bits:
            return found
    raise Unavailable(f"the chain node sent {str(value)[:40]!r} for a number")


def octets(value: Json, size: int | None = None) -> bytes:
    """Bytes from a node."""
    if isinstance(value, str) and value.startswith("0x"):
        try:
            found = bytes.fromhex(value[2:])
        except ValueError as error:
            raise Unavailable(f"the chain node sent {value[:40]!r} for bytes") from error
        if size is None or len(found) == size:
            return found
    raise Unavailable(f"the chain node sent {str(value)[:40]!r} for bytes")


def member(tree: Json, name: str) -> Json:
    """A member of an object from a node; None where it is absent."""
    if not isinstance(tree, dict):
        raise Unavailable(f"the chain node sent no object with {name!r}")
    return tree.get(name)


def head_from(tree: Json) -> BlockHead:
    """A header from eth_getBlockBy..."""
    return BlockHead(
        number=BlockNumber(integer(member(tree, "number"), NUMBER_BITS)),
        hash=Hash32(octets(member(tree, "hash"), 32)),
        parent_hash=Hash32(octets(member(tree, "parentHash"), 32)),
        time=integer(member(tree, "timestamp"), NUMBER_BITS),
        base_fee_wei=integer(member(tree, "baseFeePerGas") or "0x0"),
    )


def log_from(tree: Json, block_time: int) -> RawLog:
    """A log; `block_time` is used where the node does not tell it."""
    told = member(tree, "blockTimestamp")
    topics = member(tree, "topics")
    if not isinstance(topics, list):
        raise Unavailable("the chain node sent a log without topics")
    return RawLog(
        address=Address(octets(member(tree, "address"), 20)),
        topics=tuple(Hash32(octets(topic, 32)) for topic in topics),
        data=octets(member(tree, "data")),
        block=BlockNumber(integer(member(tree, "blockNumber"), NUMBER_BITS)),
        block_hash=Hash32(octets(member(tree, "blockHash"), 32)),
        block_time=integer(told, NUMBER_BITS) if told else block_time,
        transaction=Hash32(octets(member(tree, "transactionHash"), 32)),
        log_index=integer(member(tree, "logIndex"), NUMBER_BITS),
    )


def receipt_from(tree: Json, block_time: int) -> Receipt:
    """A receipt from eth_getTransactionReceipt."""
    created, revert, logs = (
        member(tree, "contractAddress"),
        member(tree, "revertReason"),
        member(tree, "logs"),
    )
    if not isinstance(logs, list | None):
        raise Unavailable("the chain node sent a receipt whose logs are no list")
    return Receipt(
        transaction=Hash32(octets(member(tree, "transactionHash"), 32)),
        block=BlockNumber(integer(member(tree, "blockNumber"), NUMBER_BITS)),
        block_hash=Hash32(octets(member(tree, "blockHash"), 32)),
        success=integer(member(tree, "status")) == 1,
        gas_used=integer(member(tree, "gasUsed")),
        gas_price_wei=integer(member(tree, "effectiveGasPrice") or "0x0"),
        contract=Address(octets(created, 20)) if created else None,
        logs=tuple(log_from(log, block_time) for log in logs or ()),
        revert_output=octets(revert)
        if isinstance(revert, str) and revert.startswith("0x")
        else None,
    )
