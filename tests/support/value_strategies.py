"""Hypothesis strategies for values of any type that the codec knows. Values at the limits are
frequent.
"""

import types
import typing
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin

from hypothesis import strategies as st
from msgspec.structs import fields

from quorate_protocol.codec.declared_types import is_value_type
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.units import WIRE_TYPES, Signature

_SIGNATURES = st.sampled_from([bytes(65), b"\x01" * 64 + b"\x1b", b"", b"\xff" * 65, bytes(64)])


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for values of a declared type. Values at the limits are frequent."""
    if hasattr(kind, "__supertype__"):
        return _unit(kind)
    origin = get_origin(kind)
    if origin is Envelope:
        return st.builds(Envelope, values_of(get_args(kind)[0]), _SIGNATURES.map(Signature))
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(arg) for arg in get_args(kind)])
    if origin is tuple:
        inner = get_args(kind)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return st.lists(values_of(inner[0]), max_size=2).map(tuple)
        return st.tuples(*(values_of(item) for item in inner))
    if origin is dict:
        key, item = get_args(kind)
        return st.dictionaries(values_of(key), values_of(item), max_size=2)
    if is_value_type(kind):
        return st.builds(kind, **{f.name: values_of(f.type) for f in fields(kind)})
    return _plain(kind)


def _unit(kind: Any) -> st.SearchStrategy[Any]:
    solidity, width = WIRE_TYPES.get(kind.__name__, ("", 0))
    if solidity.startswith("uint"):
        return st.sampled_from([0, 1, 2**width - 1, 2 ** (width - 1)]) | st.integers(
            0, 2**width - 1
        )
    if solidity:
        return st.sampled_from([bytes(width), b"\xff" * width, b"\x11" * width])
    return _SIGNATURES if kind is Signature else values_of(kind.__supertype__)


def _plain(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    made: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**64, 2**255])
        | st.integers(-(2**64), 2**64),
        str: st.sampled_from(["", "a", "task", "x86_64", "v3"]) | st.text(max_size=8),
        bytes: st.binary(max_size=8),
        type(None): st.none(),
    }
    return made[kind]
