"""The codec's short cut for decoding: what is in order is built at once, whatever is not goes
the long way and is refused there.

One function is written and compiled for each dataclass at its first use. It keeps no path and
gives no reasons: at the first thing out of order it gives up, and `codec` decodes the same tree
again and says what was wrong with it, so there is one set of rules and of refusals. It takes
nothing that `codec` refuses, and gives the same value; a test holds the two together.
"""

import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin

from msgspec.structs import fields

from quorate_protocol.codec import canonical, text_writer
from quorate_protocol.codec.canonical import Json
from quorate_protocol.refusals import Refused
from quorate_protocol.units import WIRE_TYPES

T = TypeVar("T")
Reader = Callable[[Json], Any]

CUSTOM: dict[Any, Callable[[Any], Reader]] = {}
"""Generic types with a form of their own, as `codec.CUSTOM`: origin -> reader of its type argument."""

_SAFE = canonical.SAFE_INTEGER
_JSON = json.JSONDecoder()


class _OutOfOrder(Exception):
    """Not the usual form; `codec` knows whether it is a form at all."""


def decode(cls: type[T], data: bytes, bytes_max: int = 1 << 20) -> T:
    """As `codec.decode`."""
    if len(data) <= bytes_max:
        try:
            canonical.check_nesting(data)
            text = data.decode("utf-8")
            value: T = reader_of(cls)(_JSON.decode(text))
            # Keys that stand twice, spaces, escapes and halves of surrogate pairs do not come out
            # of the writer as they went in.
            if text_writer.writer_of(cls)(value) == text:
                return value
        except (_OutOfOrder, Refused, ValueError, TypeError, KeyError, RecursionError):
            # Said by the long way.
            pass
    return canonical.decode(cls, data, bytes_max)


def from_json(cls: type[T], tree: Json, path: str = "") -> T:
    """As `codec.from_json`."""
    try:
        value: T = reader_of(cls)(tree)
    except (_OutOfOrder, Refused, ValueError, TypeError, KeyError, RecursionError):
        # Said by the long way.
        return canonical.from_json(cls, tree, path)
    return value


@canonical.memo
def reader_of(kind: Any) -> Reader:
    """The reader of any type that the codec knows; it raises whatever it likes when something is
    out of order.
    """
    if hasattr(kind, "__supertype__"):
        return _newtype_reader(kind)
    origin = get_origin(kind)
    if origin in CUSTOM:
        return CUSTOM[origin](get_args(kind)[0])
    if origin in (types.UnionType, typing.Union):
        return _union_reader(kind)
    if origin is tuple:
        return _tuple_reader(kind)
    if canonical.is_value_type(kind):
        return _at_first_use(kind)
    if kind is bytes:
        return _bytes
    if kind is int:
        return _int
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    if kind in (str, bool):
        return _scalar_reader(kind)
    return _long_way(kind)


def _give_up(_: object) -> Any:
    raise _OutOfOrder


def _long_way(kind: Any) -> Reader:
    decoder = canonical.decoder_of(kind)
    return lambda tree: decoder(tree, "")


def _scalar_reader(kind: type) -> Reader:
    return lambda tree: tree if type(tree) is kind else _give_up(tree)


def _enum_reader(kind: type[Enum]) -> Reader:
    # By type too: 1, 1.0 and true are one key.
    members = {(type(member.value), member.value): member for member in kind}
    return lambda tree: members[type(tree), tree]


def _newtype_reader(kind: Any) -> Reader:
    solidity, width = WIRE_TYPES.get(kind.__name__, ("", 0))
    if solidity.startswith("uint"):
        return _uint_reader(width)
    return _fixed_reader(width) if solidity else reader_of(kind.__supertype__)


def _uint_reader(bits: int) -> Reader:
    most = min(_SAFE, (1 << bits) - 1)

    def run(tree: Json) -> int:
        if type(tree) is int and 0 <= tree <= most:
            return tree
        value = _int(tree)
        return value if 0 <= value < 1 << bits else _give_up(tree)

    return run


def _fixed_reader(width: int) -> Reader:
    length = 2 + 2 * width

    def run(tree: Json) -> bytes:
        return _bytes(tree) if len(tree) == length else _give_up(tree)

    return run


def _int(tree: Json) -> int:
    if type(tree) is int and -_SAFE <= tree <= _SAFE:
        return tree
    value: int = canonical.decoder_of(int)(tree, "")
    return value


def _bytes(tree: Json) -> bytes:
    value = bytes.fromhex(tree[2:])
    # `fromhex` also takes capitals and spaces.
    return value if "0x" + value.hex() == tree else _give_up(tree)


def _tuple_reader(kind: Any) -> Reader:
    inner = get_args(kind)
    if len(inner) != 2 or inner[1] is not Ellipsis:
        return _long_way(kind)
    each = reader_of(inner[0])
    return lambda tree: (
        tuple([each(item) for item in tree]) if type(tree) is list else _give_up(tree)
    )


def _union_reader(kind: Any) -> Reader:
    args = [arg for arg in get_args(kind) if arg is not type(None)]
    is_optional = len(args) < len(get_args(kind))
    classes = {
        str(arg.__name__): _compiled(arg, is_tagged=True)
        for arg in args
        if canonical.is_value_type(arg)
    }
    if len(classes) < 2:
        if len(args) > 1:
            return _long_way(kind)
        one = reader_of(args[0])
        return lambda tree: None if tree is None and is_optional else one(tree)
    return lambda tree: None if tree is None and is_optional else classes[tree["kind"]](tree)


# ------------------------------------------------------------------------- one function a dataclass


def _at_first_use(kind: Any) -> Reader:
    """Compiles at first use, so that recursive types work."""
    found: list[Reader] = []

    def run(tree: Json) -> Any:
        if not found:
            found.append(_compiled(kind, is_tagged=False))
        return found[0](tree)

    return run


@dataclass(slots=True)
class _Source:
    """A function while it is written."""

    names: dict[str, object] = field(default_factory=lambda: {"give_up": _give_up})
    lines: list[str] = field(default_factory=list)

    def member(self, kind: Any, key: str) -> str:
        """Expression of one field's value; statements before it bind and check."""
        solidity, width = (
            WIRE_TYPES.get(kind.__name__, ("", 0)) if hasattr(kind, "__supertype__") else ("", 0)
        )
        name = f"x{len(self.lines)}"
        if solidity and not solidity.startswith("uint"):
            self.lines += [
                f"{name} = tree['{key}']",
                f"{name}_b = fromhex({name}[2:])",
                f"if len({name}_b) != {width} or '0x' + {name}_b.hex() != {name}: give_up(0)",
            ]
            return f"{name}_b"
        if solidity:
            self.names[f"{name}_f"] = reader_of(kind)
            self.lines += [
                f"{name} = tree['{key}']",
                (
                    f"if type({name}) is not int or not 0 <= {name} <= "
                    f"{min(_SAFE, (1 << width) - 1)}: {name} = {name}_f({name})"
                ),
            ]
            return name
        if kind in (str, bool):
            self.lines += [
                f"{name} = tree['{key}']",
                f"if type({name}) is not {kind.__name__}: give_up(0)",
            ]
            return name
        self.names[f"{name}_f"] = reader_of(kind)
        self.lines.append(f"{name} = {name}_f(tree['{key}'])")
        return name


def _compiled(kind: Any, is_tagged: bool) -> Reader:
    """Takes an object with every field and nothing else; one that leaves out defaults goes the
    long way.
    """
    own = {f.name: f.type for f in fields(kind)}
    assert not (is_tagged and "kind" in own), f"{kind.__name__}: a field would hide the union's tag"
    source = _Source()
    arguments = [source.member(hint, canonical.camel(name)) for name, hint in own.items()]
    # More keys than fields, or as many of which one is not a field's: then a field is missing.
    lines = [
        f"    if type(tree) is not dict or len(tree) != {len(own) + is_tagged}: give_up(0)",
        *(f"    {line}" for line in source.lines),
    ]
    text = "\n".join(["def read(tree):", *lines, f"    return kind({', '.join(arguments)})"])
    names = source.names | {"kind": kind, "fromhex": bytes.fromhex}
    exec(
        compile(text, f"<reader of {kind.__name__}>", "exec"), names
    )  # of our own declared types only
    return typing.cast(Reader, names["read"])
