"""Calls contracts by name from their ABI, on a chain of the contract tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from eth_utils.abi import (
    event_abi_to_log_topic,
    function_abi_to_4byte_selector,
    get_abi_input_types,
    get_abi_output_types,
)

from contracts.evm import Log
from quorate_contracts.abi_codec import decode, encode
from quorate_contracts.compile import SOURCES, compiled
from quorate_protocol.units import Address


@lru_cache(maxsize=16)
def compilation(name: str) -> dict[str, Any]:
    """The ABI and the creation code of a contract."""
    return compiled(name, SOURCES)


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of a contract, with its parameters as attributes."""

    name: str
    at: Address
    values: dict[str, Any] = field(hash=False)

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


@dataclass(frozen=True, slots=True)
class Contract:
    """A deployed contract."""

    name: str
    address: Address
    abi: tuple[dict[str, Any], ...] = field(repr=False, hash=False)

    def data(self, function: str, *arguments: Any) -> bytes:
        """The data of a call."""
        entry = self._entry("function", function)
        selector = function_abi_to_4byte_selector(entry)  # type: ignore[arg-type]
        return selector + encode(get_abi_input_types(entry), arguments)  # type: ignore[arg-type]

    def result(self, function: str, data: bytes) -> Any:
        """What a call returned: one value, several, or None."""
        entry = self._entry("function", function)
        found = decode(get_abi_output_types(entry), data)  # type: ignore[arg-type]
        return found[0] if len(found) == 1 else (found or None)

    def event(self, log: Log) -> Happened | None:
        """A log of this contract as an event; None if another contract made it."""
        place, topics, data = log
        if place != self.address:
            return None
        entry = next(each for each in self.abi if _topic(each) == topics[0])
        kinds = list(zip(entry["inputs"], get_abi_input_types(entry), strict=True))  # type: ignore[arg-type]
        plain = [(each["name"], kind) for each, kind in kinds if not each["indexed"]]
        values = decode([kind for _, kind in plain], data)
        found = {name: value for (name, _), value in zip(plain, values, strict=True)}
        indexed = [(each["name"], kind) for each, kind in kinds if each["indexed"]]
        for (name, kind), topic in zip(indexed, topics[1:], strict=True):
            found[name] = decode([kind], topic)[0]
        return Happened(entry["name"], place, found)

    def _entry(self, kind: str, name: str) -> dict[str, Any]:
        return next(each for each in self.abi if (each["type"], each.get("name")) == (kind, name))


def _topic(entry: dict[str, Any]) -> bytes | None:
    return event_abi_to_log_topic(entry) if entry["type"] == "event" else None  # type: ignore[arg-type]


def creation(made: dict[str, Any], arguments: Sequence[Any]) -> bytes:
    """The data of the transaction that deploys a compiled contract."""
    constructor = next((each for each in made["abi"] if each["type"] == "constructor"), None)
    kinds = get_abi_input_types(constructor) if constructor else []
    return bytes.fromhex(made["bytecode"][2:]) + encode(kinds, arguments)


def arguments(name: str, values: dict[str, Any]) -> list[Any]:
    """Those of `values` that a contract's constructor takes, in its order."""
    made = compilation(name)
    constructor = next(each for each in made["abi"] if each["type"] == "constructor")
    return [values[each["name"]] for each in constructor["inputs"]]
