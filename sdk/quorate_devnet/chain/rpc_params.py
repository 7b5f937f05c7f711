"""Turns JSON-RPC parameters into values. Raises RpcError for anything malformed."""

from typing import Literal, overload

from quorate_devnet.chain.block_records import Block, Call
from quorate_devnet.chain.evm_chain import TRANSACTION_GAS_MAX, Ledger
from quorate_devnet.chain.json_forms import Json
from quorate_devnet.chain.rpc_errors import INVALID_PARAMS, SERVER_ERROR, RpcError

_HEX_MAX = 2 * 256 * 1024 + 2
_CALL_FIELDS = frozenset(
    {
        *("from", "to", "data", "input", "value", "gas", "nonce", "type", "chainId"),
        *("gasPrice", "maxFeePerGas", "maxPriorityFeePerGas", "accessList"),
    }
)


def int_of(value: Json) -> int:
    """Returns a quantity: 0x-hex, or a plain integer as some clients write it."""
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, str) and value.startswith("0x") and len(value) <= 66:
        try:
            return int(value, 16)
        except ValueError:
            # Falls through to the one refusal below.
            pass
    raise RpcError(INVALID_PARAMS, f"not a quantity: {str(value)[:80]}")


def bytes_of(value: Json, size: int | None = None) -> bytes:
    """0x-hex data, of exactly `size` bytes when given."""
    if isinstance(value, str) and value.startswith("0x") and len(value) <= _HEX_MAX:
        try:
            found = bytes.fromhex(value[2:])
        except ValueError as error:
            raise RpcError(INVALID_PARAMS, f"not 0x-hex: {value[:80]}") from error
        if size is None or len(found) == size:
            return found
    raise RpcError(
        INVALID_PARAMS, f"not {'' if size is None else size} bytes of 0x-hex: {str(value)[:80]}"
    )


@overload
def block_at(ledger: Ledger, tag: Json, missing_ok: Literal[False] = False) -> Block: ...


@overload
def block_at(ledger: Ledger, tag: Json, missing_ok: Literal[True]) -> Block | None: ...


def block_at(ledger: Ledger, tag: Json, missing_ok: bool = False) -> Block | None:
    """The block of a tag, a number or an EIP-1898 object. This chain has no uncertain blocks:
    pending, safe and finalized are the head.
    """
    if isinstance(tag, dict) and "blockHash" in tag:
        block = ledger.block_of_hash(bytes_of(tag["blockHash"], 32))
    elif isinstance(tag, dict):
        block = ledger.block(int_of(tag.get("blockNumber")))
    elif tag in ("latest", "pending", "safe", "finalized"):
        block = ledger.head
    else:
        block = ledger.block(0 if tag == "earliest" else int_of(tag))
    if block is None and not missing_ok:
        raise RpcError(SERVER_ERROR, f"header not found: {str(tag)[:80]}")
    return block


def call_of(value: Json) -> Call:
    """Returns a call object. Its fees are ignored, because a tried call costs nothing."""
    if not isinstance(value, dict) or not value.keys() <= _CALL_FIELDS:
        raise RpcError(INVALID_PARAMS, "not a call object")
    sender = bytes_of(value["from"], 20) if value.get("from") else bytes(20)
    to = bytes_of(value["to"], 20) if value.get("to") else b""
    data = value.get("input", value.get("data")) or "0x"
    gas = int_of(value["gas"]) if value.get("gas") else TRANSACTION_GAS_MAX
    return Call(
        sender, to, bytes_of(data), int_of(value.get("value") or 0), min(gas, TRANSACTION_GAS_MAX)
    )
