"""Tests that the committed artifacts match their sources, fit on a chain, and sign what Python
signs.
"""

import json
import re
from enum import IntEnum
from pathlib import Path
from typing import get_args, get_origin

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from msgspec.structs import fields

from contracts.evm import CODE_BYTES_MAX
from quorate_contracts import artifact, compile
from quorate_protocol.codec.declared_types import camel, is_value_type
from quorate_protocol.codec.eip712 import Domain, digest, type_string
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.requests import REQUEST_TYPES
from quorate_protocol.messages.signed import (
    MESSAGE_TYPES,
    Ack,
    Assignment,
    Commit,
    JuryVote,
    Order,
    Session,
    Voucher,
)
from quorate_protocol.units import WIRE_TYPES, Address

DOMAIN = Domain(31337, Address(b"\x11" * 20))
SIGNED = (Session, Order, Ack, Assignment, Commit, JuryVote, Voucher)
SOURCES = sorted(compile.SOURCES.glob("*.vy"))


@pytest.mark.parametrize("name", artifact.CONTRACTS)
def test_a_fresh_compilation_gives_the_committed_artifact(name: str) -> None:
    assert compile.text(name) == (artifact.FOLDER / f"{name}.json").read_text(), (
        "run python -m quorate_contracts.compile"
    )


@pytest.mark.parametrize("name", artifact.CONTRACTS)
def test_runtime_code_fits_under_the_size_limit(name: str) -> None:
    assert (
        0
        < json.loads((artifact.FOLDER / f"{name}.json").read_text())["runtime_bytes"]
        <= CODE_BYTES_MAX
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_source_pins_the_compiler_and_stays_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0] == "# pragma version 0.4.3" and len(lines) <= 500
    assert "snekmate" not in path.read_text(), "that module is AGPL"


@pytest.mark.rule("0.7")
@pytest.mark.parametrize("kind", [*SIGNED, *REQUEST_TYPES.values()], ids=lambda kind: kind.__name__)
def test_contracts_hash_the_types_that_python_signs(kind: type) -> None:
    written = {
        text
        for path in SOURCES
        for text in re.findall(r'keccak256\("(\w+\([^"]*\))"\)', path.read_text())
    }
    assert type_string(kind) in written


@pytest.mark.rule("3.1")
@pytest.mark.parametrize(
    "kind", [*MESSAGE_TYPES.values(), *REQUEST_TYPES.values()], ids=lambda kind: kind.__name__
)
def test_digests_equal_those_of_eth_account(kind: type) -> None:
    message = _sample(kind, 1)
    types: dict[str, list[dict[str, str]]] = {}
    _declare(kind, types)
    domain = {
        "name": "Quorate",
        "version": "1",
        "chainId": 31337,
        "verifyingContract": "0x" + "11" * 20,
    }
    signable = encode_typed_data(domain, types, _tree(message))
    key = keccak256(b"parity")
    signature = Account.sign_message(signable, key)
    assert (
        Account._recover_hash(digest(DOMAIN, message), signature=signature.signature)
        == Account.from_key(key).address
    )


def _sample(hint: object, seed: int) -> object:
    """Returns a value of a declared type, with a different value in each field."""
    if get_origin(hint) is tuple:
        return (_sample(get_args(hint)[0], seed), _sample(get_args(hint)[0], seed + 40))
    if is_value_type(hint):
        return hint(*[_sample(each.type, seed + i) for i, each in enumerate(fields(hint))])
    if hint is bool:
        return seed % 2 == 1
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return list(hint)[seed % len(hint)]
    kind, width = WIRE_TYPES[hint.__name__]  # type: ignore[attr-defined]
    return bytes([seed]) * width if kind in ("address", "bytes32") else 2**width - seed


def _declare(kind: type, types: dict[str, list[dict[str, str]]]) -> None:
    """Adds EIP-712 declarations in eth-account's form, made from Python's type string."""
    for name, members in re.findall(r"(\w+)\(([^)]*)\)", type_string(kind)):
        pairs = [member.split(" ") for member in members.split(",")]
        types[name] = [{"type": each, "name": field} for each, field in pairs]


def _tree(value: object) -> object:
    if is_value_type(type(value)):
        return {camel(each.name): _tree(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_tree(each) for each in value]
    if isinstance(value, IntEnum):
        return int(value)
    return value
