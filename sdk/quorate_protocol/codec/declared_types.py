"""Helpers of the codec for declared types: value types, names on the wire, cached builders."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from msgspec import Struct

R = TypeVar("R")
Json = Any  # a JSON tree; its type cannot be declared more exactly
SAFE_INTEGER = 2**53
"""Largest integer that every JSON parser reads exactly; larger ones are decimal text."""


def memo(build: Callable[[Any], R]) -> Callable[[Any], R]:
    """`functools.cache` for functions of a type. It needs no bound: a program has few types."""
    return cache(build)


def is_value_type(kind: Any) -> bool:
    """Whether a declared type is a Struct class. A generic class with type arguments is not one."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
