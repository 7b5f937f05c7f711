"""Compiled contracts as data, read from `abi/*.json`: their ABI and creation code, and how calls
and logs are encoded.

eth-abi does the encoding. Neither the compiler nor web3 is needed.
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
    {"amount", "bond", "budget", "locks", "paid", "pay", "payroll", "reward", "taken", "upTo"}
)
WORDS = frozenset({"pays"})  # an account and an amount each
FOLDER = Path(__file__).parent / "abi"
CONTRACTS = ("TestToken", "Stakes", "Escrow", "Jobs", "Beacon", "Court", "Faults")


@dataclass(frozen=True, slots=True)
class Function:
    """One external function: its 4-byte selector and the ABI types of its arguments and results."""

    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def call_data(self, arguments: Sequence[object]) -> bytes:
        return self.selector + encode(self.inputs, arguments)

    def results(self, data: bytes) -> tuple[Json, ...]:
        """Raises ValueError or OverflowError if no such function returns these bytes."""
        return decode(self.outputs, data)


@dataclass(frozen=True, slots=True)
class LogType:
    """The form of one event's logs: parameter names and ABI types, in order, and which of them are
    topics.
    """

    name: str
    parameters: tuple[tuple[str, str, bool], ...]

    def parameters_of(self, topics: Sequence[bytes], data: bytes) -> dict[str, Json]:
        """Returns the parameters of a log by name. Raises Unavailable if the bytes are not such a
        log, because then the chain node is faulty.
        """
        try:
            return self._read(topics, data)
        except (ValueError, OverflowError) as error:
            raise Unavailable(
                f"the chain node sent a log that is no {self.name}: {str(error)[:200]}",
                CHAIN_RETRY_SECONDS,
            ) from error

    def _read(self, topics: Sequence[bytes], data: bytes) -> dict[str, Json]:
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
    """Raises ValueError for a number that no contract has: amounts are below 2^128, all others
    below 2^64. The journal could store a larger one, but could not read it back.
    """
    if isinstance(value, list | tuple) and name not in WORDS:
        for item in value:
            _check_size("amount", item)  # members of a struct have no name here
    elif isinstance(value, int) and value >> (128 if name in AMOUNTS else 64):
        raise ValueError(f"{name} is {hex(value)[:40]}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled contract. `abi` is the JSON ABI in the form that web3 takes.

    On chain the runtime code is followed by the immutables: (name, bytes) in their order. Each
    immutable is named like the argument of the constructor that sets it.
    """

    abi: list[Json]
    bytecode: bytes
    constructor: tuple[str, ...]
    parameters: tuple[str, ...]  # names of the constructor's arguments
    functions: Mapping[str, Function]
    events: Mapping[Hash32, LogType]
    integrity: str
    runtime_bytes: int
    runtime_hash: Hash32  # keccak-256 of the runtime code, without immutables
    immutables: tuple[tuple[str, int], ...]
    sources: tuple[str, ...]  # names of all its source files

    def creation(self, arguments: Sequence[object]) -> bytes:
        return self.bytecode + encode(self.constructor, arguments)


@cache
def artifact(name: str) -> Artifact:
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
    parameters: tuple[str, ...] = ()
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
                parameters = tuple(each["name"] for each in entry["inputs"])
            case other:
                raise AssertionError(f"an ABI entry of type {other} in {name}")
    return Artifact(
        abi=tree["abi"],
        bytecode=bytes.fromhex(tree["bytecode"][2:]),
        constructor=constructor,
        parameters=parameters,
        functions=functions,
        events=events,
        integrity=tree["integrity"],
        runtime_bytes=tree["runtime_bytes"],
        runtime_hash=Hash32(bytes.fromhex(tree["runtime_keccak"])),
        immutables=tuple((name, length) for name, length in tree["immutables"]),
        sources=tuple(tree["sources"]),
    )
