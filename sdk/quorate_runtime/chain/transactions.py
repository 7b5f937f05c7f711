"""EIP-1559 transactions: built, signed through a `Signer`, serialised. Sources: EIP-1559,
EIP-2718, the Yellow Paper's RLP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.ports import Signer
from quorate_protocol.units import Address, Hash32

DYNAMIC_FEE = b"\x02"
Item: TypeAlias = "bytes | int | Sequence[Item]"


@dataclass(frozen=True, slots=True)
class Transaction:
    """An unsigned EIP-1559 transaction; `to` None creates a contract. Fees in wei per gas."""

    chain_id: int
    nonce: int
    to: Address | None
    data: bytes
    value: int
    gas: int
    fee_max: int
    tip_max: int


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed transaction."""

    raw: bytes
    hash: Hash32


def sign(transaction: Transaction, signer: Signer) -> Signed:
    """Signs; the same transaction and key always give the same bytes (RFC 6979)."""
    fields = _fields(transaction)
    signature = signer.sign(keccak256(DYNAMIC_FEE + rlp(fields)))
    r, s, parity = (
        int.from_bytes(signature[:32], "big"),
        int.from_bytes(signature[32:64], "big"),
        signature[64] - 27,
    )
    assert parity in (0, 1), "a signer gives v 27 or 28"
    raw = DYNAMIC_FEE + rlp([*fields, parity, r, s])
    return Signed(raw, keccak256(raw))


def _fields(transaction: Transaction) -> list[Item]:
    t = transaction
    return [t.chain_id, t.nonce, t.tip_max, t.fee_max, t.gas, t.to or b"", t.value, t.data, []]


def rlp(item: Item) -> bytes:
    """Recursive length prefix of bytes, integers and lists of them."""
    if isinstance(item, int):
        return rlp(item.to_bytes((item.bit_length() + 7) // 8, "big"))
    if isinstance(item, bytes):
        return item if len(item) == 1 and item[0] < 0x80 else _length(len(item), 0x80) + item
    body = b"".join(rlp(member) for member in item)
    return _length(len(body), 0xC0) + body


def _length(size: int, offset: int) -> bytes:
    if size < 56:
        return bytes([offset + size])
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([offset + 55 + len(digits)]) + digits
