"""EIP-1559 transactions: built and serialised by eth-account, signed through a `Signer`."""

from dataclasses import dataclass

from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.ports import Signer
from quorate_protocol.units import Address, Hash32

TRANSFER_GAS = 21_000  # of a transfer of coins


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
    """A signed transaction: its bytes as a node takes them, and its hash."""

    raw: bytes
    hash: Hash32


def sign(transaction: Transaction, signer: Signer) -> Signed:
    """Signs a transaction. The same transaction and key always give the same bytes (RFC 6979)."""
    # Here, because it takes half a second to import.
    from eth_account.typed_transactions.typed_transaction import TypedTransaction

    fields = _fields(transaction)
    digest = bytes(TypedTransaction.from_dict(fields).hash())
    signature = signer.sign(digest)
    parity = signature[64] - 27
    assert parity in (0, 1), "a signer gives v 27 or 28"
    fields |= {
        "v": parity,
        "r": int.from_bytes(signature[:32], "big"),
        "s": int.from_bytes(signature[32:64], "big"),
    }
    raw = bytes(TypedTransaction.from_dict(fields).encode())
    return Signed(raw, Hash32(keccak256(raw)))


def _fields(transaction: Transaction) -> dict[str, object]:
    t = transaction
    return {
        "type": 2,
        "chainId": t.chain_id,
        "nonce": t.nonce,
        "maxPriorityFeePerGas": t.tip_max,
        "maxFeePerGas": t.fee_max,
        "gas": t.gas,
        "to": bytes(t.to) if t.to else b"",
        "value": t.value,
        "data": t.data,
        "accessList": [],
    }
