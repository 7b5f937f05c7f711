"""Orders, Assignments and Commits: dicts in the order of their signed fields.

`changes` replace fields by name; names of other messages' fields are passed over.
"""

from collections.abc import Mapping
from typing import Any

from contracts.world import ASSIGNMENT, CLASS, ORDER, World, account, typed_hash
from quorate_contracts.abi_codec import encode
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Hash32

HOUR = 3600
PRICE = 2 * USD  # an hour
CLASS_ID = keccak256(b"determinism class")
Message = dict[str, Any]


def changed(usual: Message, changes: Mapping[str, Any]) -> Message:
    return usual | {name: value for name, value in changes.items() if name in usual}


def blind_of(provider: str) -> Hash32:
    return keccak256(b"blind" + provider.encode())


def salt_of(answer: bytes) -> Hash32:
    return keccak256(b"salt" + answer)


def result(answer: bytes, status: int = 0) -> Hash32:
    """The result digest of an answer."""
    return keccak256(encode(["uint16", "bytes32"], [status, keccak256(answer)]))


def order(world: World, client: str, nonce: int, changes: Mapping[str, Any]) -> Message:
    """An order that a jury can judge and that may have an escrow of its own."""
    usual = {
        "client": account(client),
        "coordinator": account("coordinator"),
        "specHash": keccak256(b"spec"),
        "inputRoot": keccak256(b"inputs"),
        "termsHash": keccak256(b"terms"),
        "priceTier": 2,
        "maxPricePerHour": 3 * USD,
        "budget": 6 * USD,
        "maxDuration": HOUR,
        "maxExecutions": 7,
        "auditPremiumBps": 500,
        "maxFeeBps": 300,
        "verifyTier": 2,
        "comparator": 1,
        "caseable": True,
        "pool": ZERO_HASH,
        "witness": ZERO_ADDRESS,
        "acceptUnwitnessed": False,
        "acceptUnverified": False,
        "sealedKeyHash": ZERO_HASH,
        "maxRecipients": 0,
        "expiry": world.now + HOUR,
        "nonce": nonce,
    }
    return changed(usual, changes)


def assignment(world: World, order: Message, provider: str, changes: Mapping[str, Any]) -> Message:
    """An Assignment of the order, with the first index and a blind of the provider's own."""
    job = typed_hash(world.domain, ORDER, tuple(order.values()))
    hidden = [job, changes.get("index", 1), blind_of(provider)]
    usual = {
        "assignmentId": keccak256(encode(["bytes32", "uint256", "bytes32"], hidden)),
        "coordinator": order["coordinator"],
        "provider": account(provider),
        "specHash": order["specHash"],
        "pool": CLASS,
        "priceTier": order["priceTier"],
        "pricePerHour": PRICE,
        "maxDuration": order["maxDuration"],
        "acceptBy": world.now - 1,
    }
    return changed(usual, changes)


def commit(world: World, assigned: Message, answer: bytes, changes: Mapping[str, Any]) -> Message:
    """A Commit to an answer, and to an exit status if `changes` name one."""
    place = typed_hash(world.domain, ASSIGNMENT, tuple(assigned.values()))
    found = result(answer, changes.get("status", 0))
    bound = [place, assigned["provider"], salt_of(answer), found]
    usual = {
        "assignmentHash": place,
        "classId": CLASS_ID,
        "commitment": keccak256(encode(["bytes32", "address", "bytes32", "bytes32"], bound)),
        "encryptedOutput": keccak256(b"ciphertext"),
        "usageMs": 20_000,
        "beaconRound": 5,
    }
    return changed(usual, changes)
