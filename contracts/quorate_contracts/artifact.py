"""Compiled contracts as data (ABI and creation code, from `abi/*.json`), and how calls and logs
are encoded by it. eth-abi does the encoding. Neither the compiler nor web3 is needed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quorate_contracts.abi_codec import decode, encode
from quorate_protocol.codec.canonical import Json
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32

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
        """The results. ValueError or OverflowError for bytes that no such function returns."""
        return decode(self.outputs, data)


@dataclass(frozen=True, slots=True)
class LogType:
    """One event: parameter names and ABI types, in order, and which of them are topics."""

    name: str
    parameters: tuple[tuple[str, str, bool], ...]

    def decode(self, topics: Sequence[bytes], data: bytes) -> dict[str, Json]:
        """Parameters by name. Unavailable for bytes that no such event has: the chain node is out
        of order.
        """
        try:
            return self._decode(topics, data)
        except (ValueError, OverflowError) as error:
            raise Unavailable(
                f"the chain node sent a log that is no {self.name}: {str(error)[:200]}",
                CHAIN_RETRY_SECONDS,
            ) from error

    def _decode(self, topics: Sequence[bytes], data: bytes) -> dict[str, Json]:
        plain = [(name, kind) for name, kind, indexed in self.parameters if not indexed]
        values = decode([kind for _, kind in plain], data)
        found = {name: value for (name, _), value in zip(plain, values, strict=True)}
        indexed = [(name, kind) for name, kind, is_topic in self.parameters if is_topic]
        for (name, kind), topic in zip(indexed, topics[1:], strict=True):
            found[name] = decode([kind], topic)[0]
        for name, value in found.items():
            _check_size(name, value)
        return found


def _check_size(name: str, value: Json) -> None:
    """ValueError for larger numbers than the contracts have: amounts are below 2^128, all others
    below 2^64. A larger one would be journaled, and no journal could read it back.
    """
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, int) and item >> (128 if name in AMOUNTS else 64):
            raise ValueError(f"{name} is {hex(item)[:40]}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled contract. `abi` is the JSON ABI, as web3 takes it."""

    abi: list[Json]
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
    from eth_utils.abi import (
        event_abi_to_log_topic,
        function_abi_to_4byte_selector,
        get_abi_input_types,
        get_abi_output_types,
    )

    assert name in CONTRACTS, f"no contract {name}"
    tree = json.loads((FOLDER / f"{name}.json").read_text())
    functions: dict[str, Function] = {}
    events: dict[Hash32, LogType] = {}
    constructor: tuple[str, ...] = ()
    for entry in tree["abi"]:
        inputs = tuple(get_abi_input_types(entry))
        match entry["type"]:
            case "function":
                outputs = tuple(get_abi_output_types(entry))
                functions[entry["name"]] = Function(
                    function_abi_to_4byte_selector(entry), inputs, outputs
                )
            case "event":
                events[Hash32(event_abi_to_log_topic(entry))] = LogType(
                    entry["name"],
                    tuple(
                        (each["name"], kind, each["indexed"])
                        for each, kind in zip(entry["inputs"], inputs, strict=True)
                    ),
                )
            case "constructor":
                constructor = inputs
            case other:
                raise AssertionError(f"an ABI entry of type {other} in {name}")
    return Artifact(
        abi=tree["abi"],
        bytecode=bytes.fromhex(tree["bytecode"][2:]),
        constructor=constructor,
        functions=functions,
        events=events,
        integrity=tree["integrity"],
    )
