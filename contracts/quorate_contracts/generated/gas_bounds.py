"""Measured upper bounds of each transaction's gas. A test compares them with what is used."""

from collections.abc import Sequence

# Contract.function -> gas, and gas for each item of the longest list among the arguments.
BOUNDS: dict[str, tuple[int, int]] = {}


def gas_of(contract: str, function: str, arguments: Sequence[object]) -> int:
    """Returns the gas to give a call."""
    base, each = BOUNDS[f"{contract}.{function}"]
    lists = [len(value) for value in arguments if isinstance(value, list)]
    return base + each * max(lists, default=0)
