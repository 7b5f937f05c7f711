"""EIP-712 hashes of messages (https://eips.ethereum.org/EIPS/eip-712).

The types come from the fields' NewTypes (`units.WIRE_TYPES`), so a message is declared only once.
Field names are in camelCase, both in JSON and in the type string.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from quorate_protocol.codec.declared_types import camel, is_value_type, memo
from quorate_protocol.codec.hashing import EMPTY_HASH, keccak256, word
from quorate_protocol.codec.identity_cache import Kept
from quorate_protocol.units import WIRE_TYPES, Address, Hash32

DOMAIN_NAME = "Quorate"
DOMAIN_VERSION = "1"
DOMAIN_TYPE = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


class Domain(Struct, frozen=True):
    """The deployment for which a signature is valid."""

    chain_id: int
    verifying_contract: Address  # the contract `Stakes`, for every message

    def separator(self) -> Hash32:
        return _separator(self.chain_id, self.verifying_contract)


@lru_cache(maxsize=64)
def _separator(chain_id: int, contract: Address) -> Hash32:
    parts = (
        keccak256(DOMAIN_TYPE.encode()),
        keccak256(DOMAIN_NAME.encode()),
        keccak256(DOMAIN_VERSION.encode()),
    )
    return keccak256(b"".join(parts) + word(chain_id) + word(contract))


def digest(domain: Domain, message: object) -> Hash32:
    """The hash that is signed: keccak256(0x1901 || separator || struct hash). Results are kept,
    because one message's digest is needed to check, store and name it.
    """
    return _digests(domain.chain_id, domain.verifying_contract)(message)


@lru_cache(maxsize=16)
def _digests(chain_id: int, contract: Address) -> Kept[object, Hash32]:
    head = b"\x19\x01" + _separator(chain_id, contract)
    return Kept(lambda message: keccak256(head + struct_hash(message)))


def struct_hash(message: object) -> Hash32:
    """EIP-712 hashStruct of a message."""
    return _hasher(type(message))(message)


def type_string(kind: type) -> str:
    """EIP-712 encodeType: the struct, then the structs it refers to in alphabetical order."""
    nested: dict[str, str] = {}
    head = _own_type(kind, nested)
    return head + "".join(nested[name] for name in sorted(nested))


def _own_type(kind: Any, nested: dict[str, str]) -> str:
    members = ",".join(f"{_solidity(f.type, nested)} {camel(f.name)}" for f in fields(kind))
    return f"{kind.__name__}({members})"


def _solidity(hint: Any, nested: dict[str, str]) -> str:
    if get_origin(hint) is tuple:
        return _solidity(get_args(hint)[0], nested) + "[]"
    if is_value_type(hint):
        name = hint.__name__
        if name not in nested:
            nested[name] = _own_type(hint, nested)
        return str(name)
    if hint is bool:
        return "bool"
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return "uint8"
    return WIRE_TYPES[hint.__name__][0]


@memo
def _hasher(kind: Any) -> Callable[[Any], Hash32]:
    """The function that computes hashStruct for one message type. hashStruct is keccak256 of the
    type hash and one 32-byte word for each field.
    """
    type_hash = keccak256(type_string(kind).encode())
    members = [(f.name, _word_of(f.type)) for f in fields(kind)]

    def hash_struct(message: Any) -> Hash32:
        words = [write(getattr(message, name)) for name, write in members]
        return keccak256(type_hash + b"".join(words))

    return hash_struct


def _word_of(hint: Any) -> Callable[[Any], bytes]:
    if get_origin(hint) is tuple:
        each = _word_of(get_args(hint)[0])
        return lambda items: (
            keccak256(b"".join([each(item) for item in items])) if items else EMPTY_HASH
        )
    if is_value_type(hint):
        return _hasher(hint)
    solidity = _solidity(hint, {})
    if solidity == "address":
        return _address_word
    return _hash_word if solidity == "bytes32" else _int_word


def _address_word(value: bytes) -> bytes:
    assert len(value) == 20, "an address has 20 bytes"
    return _PAD + value


def _hash_word(value: bytes) -> bytes:
    assert len(value) == 32, "a hash has 32 bytes"
    return value


def _int_word(value: int) -> bytes:
    return value.to_bytes(32, "big")


_PAD = bytes(12)
