"""What the codec asks of a declared type: is it a value, its fields, its name on the wire."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct

R = TypeVar("R")
Json = Any  # a JSON tree; the one place of the rules whose type cannot be declared
SAFE_INTEGER = 2**53
"""Largest integer that every JSON parser reads exactly; larger ones are decimal text."""


def memo(build: Callable[[Any], R]) -> Callable[[Any], R]:
    """`functools.cache` for builders keyed by a type. It needs no bound: one entry a type."""
    return cache(build)


def is_value_type(kind: Any) -> bool:
    """Whether a declared type is a class of Structs (a generic one with its arguments is not)."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def camel(name: str) -> str:
    """snake_case to camelCase."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
