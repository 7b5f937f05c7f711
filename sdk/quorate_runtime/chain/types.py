"""Blocks, logs, receipts and fees as the chain client returns them.

They are built from values that web3 has formatted. web3 checks neither sizes nor signs, so the
functions here do. A node that answers nonsense is `Unavailable`.
"""

from typing import Any

from msgspec import Struct

from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32

Json = Any  # a JSON tree from a node, or what web3 made of one
NUMBER_BITS = 48  # of block numbers, times and places in a block; the journal has room for 64


class BlockHead(Struct, frozen=True):
    """The parts of a block's header that the programs use."""

    number: BlockNumber
    hash: Hash32
    parent_hash: Hash32
    time: int  # unix seconds; deadlines on chain are compared with it
    base_fee_wei: int

    def final(self, depth: int) -> BlockNumber:
        """Returns the newest block that the chain does not drop any more; this one has depth 1."""
        return BlockNumber(max(0, self.number - depth + 1))


class RawLog(Struct, frozen=True):
    """A log whose topics and data are not decoded."""

    address: Address
    topics: tuple[Hash32, ...]
    data: bytes
    block: BlockNumber
    block_hash: Hash32
    block_time: int
    transaction: Hash32
    log_index: int  # in its block


class Receipt(Struct, frozen=True):
    """The outcome of a transaction that is in a block."""

    transaction: Hash32
    block: BlockNumber
    block_hash: Hash32
    success: bool
    gas_used: int
    gas_price_wei: int
    contract: Address | None  # the created contract
    logs: tuple[RawLog, ...]
    revert_output: bytes | None  # from nodes that give it


class Fees(Struct, frozen=True):
    """What a transaction would pay now, per gas."""

    base_fee_wei: int
    tip_wei: int
    usual_base_fee_wei: int = 0  # in recent blocks; it bounds every bid


def integer(value: Json, bits: int = 256) -> int:
    """Returns a quantity that fits into so many bits. Raises Unavailable for anything else."""
    if type(value) is int and 0 <= value < 1 << bits:
        return value
    raise Unavailable(f"the chain node sent {_shown(value)} for a number")


def octets(value: Json, size: int | None = None) -> bytes:
    """Returns bytes, of exactly `size` when given. Raises Unavailable for anything else."""
    if isinstance(value, bytes) and size in (None, len(value)):
        return bytes(value)
    raise Unavailable(f"the chain node sent {_shown(value)} for bytes")


def hex_octets(value: Json) -> bytes:
    """Returns bytes written as 0x and hex digits, where web3 leaves them as the node sent them."""
    if isinstance(value, str) and value.startswith("0x"):
        try:
            return bytes.fromhex(value[2:])
        except ValueError:
            pass  # the same message as for any other text
    raise Unavailable(f"the chain node sent {_shown(value)} for bytes")


def hex_integer(value: Json, bits: int) -> int:
    """Returns a quantity written as 0x and hex digits, where web3 leaves it as the node sent it."""
    text = value[2:] if isinstance(value, str) and value.startswith("0x") else ""
    if 0 < len(text) <= 64 and all(digit in "0123456789abcdefABCDEF" for digit in text):
        return integer(int(text, 16), bits)
    raise Unavailable(f"the chain node sent {_shown(value)} for a number")


def member(tree: Json, name: str) -> Json:
    if not isinstance(tree, dict):
        raise Unavailable(f"the chain node sent no object with {name!r}")
    return tree.get(name)


def head_from(tree: Json) -> BlockHead:
    return BlockHead(
        number=BlockNumber(integer(member(tree, "number"), NUMBER_BITS)),
        hash=Hash32(octets(member(tree, "hash"), 32)),
        parent_hash=Hash32(octets(member(tree, "parentHash"), 32)),
        time=integer(member(tree, "timestamp"), NUMBER_BITS),
        base_fee_wei=integer(member(tree, "baseFeePerGas") or 0),
    )


def log_from(tree: Json, block_time: int) -> RawLog:
    """Returns a log from web3's `get_logs`. `block_time` is used when the node does not send the
    time.
    """
    time = member(tree, "blockTimestamp")
    topics = member(tree, "topics")
    if not isinstance(topics, list | tuple):
        raise Unavailable("the chain node sent a log without topics")
    return RawLog(
        address=_address(member(tree, "address")),
        topics=tuple(Hash32(octets(topic, 32)) for topic in topics),
        data=octets(member(tree, "data")),
        block=BlockNumber(integer(member(tree, "blockNumber"), NUMBER_BITS)),
        block_hash=Hash32(octets(member(tree, "blockHash"), 32)),
        block_time=hex_integer(time, NUMBER_BITS) if time else block_time,
        transaction=Hash32(octets(member(tree, "transactionHash"), 32)),
        log_index=integer(member(tree, "logIndex"), NUMBER_BITS),
    )


def receipt_from(tree: Json, block_time: int) -> Receipt:
    created = member(tree, "contractAddress")
    revert = member(tree, "revertReason")
    logs = member(tree, "logs")
    if not isinstance(logs, list | tuple | None):
        raise Unavailable("the chain node sent a receipt whose logs are no list")
    return Receipt(
        transaction=Hash32(octets(member(tree, "transactionHash"), 32)),
        block=BlockNumber(integer(member(tree, "blockNumber"), NUMBER_BITS)),
        block_hash=Hash32(octets(member(tree, "blockHash"), 32)),
        success=integer(member(tree, "status")) == 1,
        gas_used=integer(member(tree, "gasUsed")),
        gas_price_wei=integer(member(tree, "effectiveGasPrice") or 0),
        contract=_address(created) if created else None,
        logs=tuple(log_from(log, block_time) for log in logs or ()),
        revert_output=hex_octets(revert)
        if isinstance(revert, str) and revert.startswith("0x")
        else None,
    )


def _address(value: Json) -> Address:
    found = hex_octets(value)
    if len(found) != 20:
        raise Unavailable(f"the chain node sent {_shown(value)} for an address")
    return Address(found)


def _shown(value: Json) -> str:
    return hex(value)[:40] if isinstance(value, int) else repr(str(value)[:40])
