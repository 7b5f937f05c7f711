"""Compiled contracts as data: ABI and creation code from `abi/*.json`, and the encoding of calls
by them. No compiler, no web3.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError

from quorate_protocol.codec.canonical import Json
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32

CHAIN_RETRY_SECONDS = 2.0
AMOUNTS = frozenset(
    {"amount", "bond", "slashed", "burned", "sumFinal", "sumHeld", "charged", "pays"}
)
FOLDER = Path(__file__).parent / "abi"
CONTRACTS = ("TestToken", "Stakes", "Escrow", "Epochs", "Beacon", "Court")


@dataclass(frozen=True, slots=True)
class Function:
    """One external function: its 4-byte selector and the ABI types of its arguments and results."""

    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def encode(self, arguments: Sequence[object]) -> bytes:
        """Call data."""
        return self.selector + encode(self.inputs, arguments)

    def decode(self, data: bytes) -> tuple[Json, ...]:
        """Results, addresses as 20 bytes."""
        return tuple(
            _plain(kind, value)
            for kind, value in zip(self.outputs, decode(self.outputs, data), strict=True)
        )


@dataclass(frozen=True, slots=True)
class LogType:
    """One event: parameter names and ABI types, in order, and which of them are topics."""

    name: str
    parameters: tuple[tuple[str, str, bool], ...]

    def decode(self, topics: Sequence[bytes], data: bytes) -> dict[str, Json]:
        """Parameters by name. Unavailable for bytes that no such event has: then the chain node
        is out of order.
        """
        try:
            return self._decode(topics, data)
        except (DecodingError, ValueError, OverflowError) as error:
            raise Unavailable(
                f"the chain node sent a log that is no {self.name}: {str(error)[:200]}",
                CHAIN_RETRY_SECONDS,
            ) from error

    def _decode(self, topics: Sequence[bytes], data: bytes) -> dict[str, Json]:
        plain = [(name, kind) for name, kind, indexed in self.parameters if not indexed]
        values = decode([kind for _, kind in plain], data)
        found = {
            name: _plain(kind, value) for (name, kind), value in zip(plain, values, strict=True)
        }
        indexed = [(name, kind) for name, kind, is_topic in self.parameters if is_topic]
        for (name, kind), topic in zip(indexed, topics[1:], strict=True):
            found[name] = _plain(kind, decode([kind], topic)[0])
        for name, value in found.items():
            _check_size(name, value)
        return found


def _check_size(name: str, value: Json) -> None:
    """The contracts keep amounts below 2^128 and all else below 2^64; what is larger could be
    journaled and never read back.
    """
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, int) and item >> (128 if name in AMOUNTS else 64):
            raise ValueError(f"{name} is {hex(item)[:40]}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled contract."""

    bytecode: bytes
    constructor: tuple[str, ...]
    functions: Mapping[str, Function]
    events: Mapping[Hash32, LogType]
    integrity: str

    def creation(self, arguments: Sequence[object]) -> bytes:
        """Data of the transaction that deploys it."""
        return self.bytecode + encode(self.constructor, arguments)


@cache
def artifact(name: str) -> Artifact:
    """A contract of `CONTRACTS` by its name."""
    assert name in CONTRACTS, f"no contract {name}"
    tree = json.loads((FOLDER / f"{name}.json").read_text())
    functions: dict[str, Function] = {}
    events: dict[Hash32, LogType] = {}
    constructor: tuple[str, ...] = ()
    for entry in tree["abi"]:
        inputs = tuple(_kind(each) for each in entry["inputs"])
        signature = keccak256(f"{entry.get('name', '')}({','.join(inputs)})".encode())
        match entry["type"]:
            case "function":
                functions[entry["name"]] = Function(
                    signature[:4], inputs, tuple(_kind(each) for each in entry["outputs"])
                )
            case "event":
                parameters = tuple(
                    (each["name"], _kind(each), each["indexed"]) for each in entry["inputs"]
                )
                events[signature] = LogType(entry["name"], parameters)
            case "constructor":
                constructor = inputs
            case other:
                raise AssertionError(f"an ABI entry of type {other} in {name}")
    return Artifact(
        bytes.fromhex(tree["bytecode"][2:]), constructor, functions, events, tree["integrity"]
    )


def _kind(parameter: Json) -> str:
    """ABI type with structs written out as tuples."""
    kind: str = parameter["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({','.join(_kind(each) for each in parameter['components'])}){kind[len('tuple') :]}"


def _plain(kind: str, value: Json) -> Json:
    """eth-abi gives addresses as hex text; everything here has bytes."""
    if kind == "address":
        return Address(bytes.fromhex(value[2:]))
    if kind.endswith("]"):
        inner = kind[: kind.rindex("[")]
        return tuple(_plain(inner, each) for each in value)
    if kind.startswith("("):
        return tuple(_plain(inner, each) for inner, each in zip(_members(kind), value, strict=True))
    return value


def _members(kind: str) -> list[str]:
    """Types inside a tuple type, split at the commas of its own level."""
    members, depth, start = [], 0, 1
    for position, letter in enumerate(kind):
        depth += (letter == "(") - (letter == ")")
        if (letter == "," and depth == 1) or (letter == ")" and depth == 0):
            members.append(kind[start:position])
            start = position + 1
    return members
