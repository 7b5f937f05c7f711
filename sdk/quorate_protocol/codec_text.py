"""The codec's short cut for encoding: canonical text straight from a value, without a tree in between.

What it writes is `codec.canonical(codec.to_json(value))` to the byte, in a third of the time; a test holds the two together.
"""

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, get_args, get_origin, get_type_hints

from quorate_protocol import codec

Writer = Callable[[Any], str]

CUSTOM: dict[Any, Writer] = {}
"""Generic types with a form of their own, as `codec.CUSTOM`."""


def encode(value: object) -> bytes:
    """As `codec.encode`."""
    return writer_of(type(value))(value).encode()


@codec.memo
def writer_of(kind: Any) -> Writer:
    """The writer of any type that the codec knows."""
    if hasattr(kind, "__supertype__"):
        return writer_of(kind.__supertype__)
    origin = get_origin(kind)
    if (origin or kind) in CUSTOM:
        return CUSTOM[origin or kind]
    if origin in (types.UnionType, typing.Union):
        return _union_writer(kind)
    if origin is tuple:
        return _tuple_writer(kind)
    if is_dataclass(kind) and origin is None:
        return _dataclass_writer(kind, "")
    if kind is bytes:
        return lambda value: f'"0x{value.hex()}"'
    if kind is int:
        return _write_int
    if kind is str:
        return encode_basestring
    return _by_tree(kind)


def _by_tree(kind: Any) -> Writer:
    """What is rare is written as ever."""
    encoder, encode_json = codec.encoder_of(kind), codec.text
    if isinstance(kind, type) and issubclass(kind, Enum):
        texts = {member: encode_json(member.value) for member in kind}
        return texts.__getitem__
    return lambda value: encode_json(encoder(value))


def _write_int(value: int) -> str:
    return str(int(value)) if -codec.SAFE_INTEGER <= value <= codec.SAFE_INTEGER else f'"{int(value)}"'


def _tuple_writer(kind: Any) -> Writer:
    inner = get_args(kind)
    if len(inner) != 2 or inner[1] is not Ellipsis:
        return _by_tree(kind)
    each = writer_of(inner[0])
    return lambda value: f"[{','.join([each(item) for item in value])}]"


def _dataclass_writer(kind: Any, tag: str) -> Writer:
    # Found at first use, so that recursive types work. The tag of a union stands among the fields, in its place by name.
    members: list[tuple[str, str, Writer]] = []

    def run(value: Any) -> str:
        if not members:
            hints = get_type_hints(kind, include_extras=True)
            found = {codec.camel(f.name): (f.name, writer_of(hints[f.name])) for f in fields(kind)}
            if tag:
                found.setdefault("kind", ("__class__", lambda _: f'"{tag}"'))
            members.extend((name, f'"{key}":', writer) for key, (name, writer) in sorted(found.items()))
        return "{" + ",".join([head + writer(getattr(value, name)) for name, head, writer in members]) + "}"

    return run


def _union_writer(kind: Any) -> Writer:
    args = [arg for arg in get_args(kind) if arg is not type(None)]
    classes: set[Any] = {arg for arg in args if is_dataclass(arg) and get_origin(arg) is None}
    if len(classes) > 1:
        writers = {arg: _dataclass_writer(arg, str(arg.__name__)) for arg in classes}
        return lambda value: "null" if value is None else writers[type(value)](value)
    if len(args) > 1:
        return _by_tree(kind)
    one = writer_of(args[0])
    return lambda value: "null" if value is None else one(value)
