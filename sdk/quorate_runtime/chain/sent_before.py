"""Finds out whether an account has sent a transaction that the own records lack.

A node's count of an account's transactions is one number, which costs nothing to invent. The
signature of the account's last transaction cannot be invented.
"""

import logging

from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, Hash32, Signature
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import RpcFailure
from quorate_runtime.chain.types import Json, hex_integer, member
from quorate_runtime.keys.crypto import recover

DYNAMIC_FEE = "0x2"  # the type of transaction (EIP-1559) whose signature is checked
_SIGNED = ("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "value")

log = logging.getLogger(__name__)


async def was_sent(client: ChainClient, account: Address, nonce: int, deep: BlockNumber) -> bool:
    """Returns whether a block up to `deep` has the account's transaction with this nonce.

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
        return True  # not re-raised: many nodes delete old states
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
        return None  # not re-raised: no signature of the account is shown
