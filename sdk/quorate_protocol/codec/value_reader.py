"""Readers of values from JSON trees: one for each declared type, built at its first use.

A reader does not know where in the document its tree is, because tracking that would cost as much
as reading a field. A reader that finds an error raises `Wrong`, and the readers around it add their
field names.
"""

import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Never, get_args, get_origin

from msgspec import NODEFAULT
from msgspec.structs import fields

from quorate_protocol.codec.declared_types import SAFE_INTEGER, Json, camel, is_value_type, memo
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import WIRE_TYPES

Reader = Callable[[Json], Any]

CUSTOM: dict[Any, Callable[[Any], Reader]] = {}
"""Generic types that have their own form: origin -> function from its type argument to a reader."""

_INTEGER = re.compile(r"-?[0-9]{1,78}")


class Wrong(Exception):
    """A tree is not of the declared type. `place` names the whole tree in messages."""

    def __init__(self, code: Code, detail: str, place: str = "document") -> None:
        super().__init__(detail)
        self._code, self._detail, self._place = code, detail, place
        self._path = ""

    def inside(self, step: str) -> "Wrong":
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{step}{dot}{self._path}"
        return self

    def refused(self, path: str) -> Refused:
        """Returns the refusal for the sender. `path` says where the tree itself is."""
        if path:
            self.inside(path)
        return Refused(self._code, f"{self._path or self._place}: {self._detail}")


def expected(what: str, got: object) -> Never:
    raise Wrong(Code.MALFORMED, f"expected {what}, got {str(got)[:64]!r}")


@memo
def reader_of(kind: Any) -> Reader:
    if hasattr(kind, "__supertype__"):
        return _newtype_reader(kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return reader_of(get_args(kind)[0])
    if origin in CUSTOM:
        return CUSTOM[origin](get_args(kind)[0])
    if origin in (types.UnionType, typing.Union):
        return _union_reader(kind)
    if origin is tuple:
        return _tuple_reader(kind)
    if origin is dict:
        return _dict_reader(kind)
    if is_value_type(kind):
        return _struct_reader(kind, has_tag=False)
    if kind is bytes:
        return _bytes
    if kind is int:
        return _int
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    if kind in (str, bool, type(None)):
        return _scalar_reader(kind)
    raise TypeError(f"the codec has no form for {kind}")


def _scalar_reader(kind: type) -> Reader:
    name = kind.__name__
    return lambda tree: tree if type(tree) is kind else expected(name, tree)


def _enum_reader(kind: type[Enum]) -> Reader:
    members = {member.value: member for member in kind}
    # The type is compared too, because 1, 1.0 and true are equal keys.
    types_of_value = {type(value) for value in members}
    wanted = f"one of {list(members)}"

    def run(tree: Json) -> Enum:
        found = members.get(tree) if type(tree) in types_of_value else None
        return expected(wanted, tree) if found is None else found

    return run


def _newtype_reader(kind: Any) -> Reader:
    solidity, width = WIRE_TYPES.get(kind.__name__, ("", 0))
    if solidity.startswith("uint"):
        return _uint_reader(width)
    return _fixed_reader(width) if solidity else reader_of(kind.__supertype__)


def _uint_reader(bits: int) -> Reader:
    most = min(SAFE_INTEGER, (1 << bits) - 1)

    def run(tree: Json) -> int:
        if type(tree) is int and 0 <= tree <= most:
            return tree
        value = _int(tree)
        return (
            value if 0 <= value < 1 << bits else expected(f"an unsigned {bits}-bit integer", tree)
        )

    return run


def _fixed_reader(width: int) -> Reader:
    length, from_hex = 2 + 2 * width, bytes.fromhex

    def run(tree: Json) -> bytes:
        if type(tree) is str and len(tree) == length:
            try:
                value = from_hex(tree[2:])
            except ValueError:
                expected("0x-hex", tree)
            # `fromhex` also takes capitals and spaces.
            if f"0x{value.hex()}" == tree:
                return value
        expected(f"{width} bytes of 0x-hex in lower case", tree)

    return run


def _int(tree: Json) -> int:
    if type(tree) is int and -SAFE_INTEGER <= tree <= SAFE_INTEGER:
        return tree
    if not isinstance(tree, str) or not _INTEGER.fullmatch(tree):
        expected("an integer (above 2^53 as a decimal string)", tree)
    value = int(tree)
    if -SAFE_INTEGER <= value <= SAFE_INTEGER or str(value) != tree:
        expected("a plain integer", tree)
    return value


def _bytes(tree: Json) -> bytes:
    if type(tree) is not str:
        expected("0x-hex in lower case", tree)
    try:
        value = bytes.fromhex(tree[2:])
    except ValueError:
        expected("0x-hex", tree)
    # `fromhex` also takes capitals and spaces.
    return value if "0x" + value.hex() == tree else expected("0x-hex in lower case", tree)


def _tuple_reader(kind: Any) -> Reader:
    inner = get_args(kind)
    if len(inner) != 2 or inner[1] is not Ellipsis:
        return _fixed_tuple_reader([reader_of(item) for item in inner])
    each = reader_of(inner[0])

    def run(tree: Json) -> tuple[Any, ...]:
        if type(tree) is not list:
            expected("a list", tree)
        made: list[Any] = []
        try:
            for item in tree:
                made.append(each(item))
        except Wrong as wrong:
            raise wrong.inside(f"[{len(made)}]") from None
        return tuple(made)

    return run


def _fixed_tuple_reader(readers: list[Reader]) -> Reader:
    def run(tree: Json) -> tuple[Any, ...]:
        if type(tree) is not list or len(tree) != len(readers):
            expected(f"a list of {len(readers)}", tree)
        return tuple([read(item) for read, item in zip(readers, tree, strict=True)])

    return run


def _dict_reader(kind: Any) -> Reader:
    key_kind, item_kind = get_args(kind)
    is_int = getattr(key_kind, "__supertype__", key_kind) is int
    key, item = reader_of(key_kind), reader_of(item_kind)

    def run(tree: Json) -> dict[Any, Any]:
        if type(tree) is not dict:
            expected("an object", tree)
        made: dict[Any, Any] = {}
        for name, each in tree.items():
            known = _inside(name, key, _int_of_key(name) if is_int else name)
            made[known] = _inside(name, item, each)
        return made

    return run


def _int_of_key(name: str) -> int:
    return int(name) if _INTEGER.fullmatch(name) else expected("an integer as key", name)


def _union_reader(kind: Any) -> Reader:
    args = [arg for arg in get_args(kind) if arg is not type(None)]
    is_optional = len(args) < len(get_args(kind))
    if len(args) == 1:
        one = reader_of(args[0])
        return lambda tree: None if tree is None and is_optional else one(tree)
    if not all(is_value_type(arg) for arg in args):
        raise TypeError(f"the codec has no form for {kind}: it cannot tell its members apart")
    readers = {str(arg.__name__): _struct_reader(arg, has_tag=True) for arg in args}

    def run(tree: Json) -> Any:
        if tree is None and is_optional:
            return None
        name = tree.get("kind") if type(tree) is dict else None
        if type(name) is not str or name not in readers:  # lists and objects cannot be keys
            expected(f"an object whose kind is one of {sorted(readers)}", name)
        return readers[name](tree)

    return run


def _struct_reader(kind: Any, has_tag: bool) -> Reader:
    names = {camel(f.name): f.name for f in fields(kind)}
    assert not has_tag or "kind" not in names, f"{kind.__name__}: a field hides the union's tag"
    keys = {*names, "kind"} if has_tag else set(names)
    required = [
        camel(f.name)
        for f in fields(kind)
        if f.default is NODEFAULT and f.default_factory is NODEFAULT
    ]
    readers: list[tuple[str, Reader]] | None = None

    def run(tree: Json) -> Any:
        nonlocal readers
        if readers is None:
            # Built at the first use, so that types may refer to each other. Threads may build it
            # twice, and each sets a whole list: one that they filled together would refuse all.
            readers = [(camel(f.name), reader_of(f.type)) for f in fields(kind)]
        if type(tree) is not dict:
            expected(f"an object ({kind.__name__})", tree)
        if tree.keys() != keys:
            _check_keys(kind, tree, keys, required)
            some = [item for item in readers if item[0] in tree]
            made = _read(some, tree)
            return kind(**{names[key]: value for (key, _), value in zip(some, made, strict=True)})
        return kind(*_read(readers, tree))

    return run


def _check_keys(kind: Any, tree: dict[str, Json], keys: set[str], required: list[str]) -> None:
    """Raises `Wrong` for unknown fields, and for missing ones that have no default."""
    unknown = tree.keys() - keys
    if unknown:
        detail = f"unknown field {sorted(unknown)[0][:64]!r}"
        raise Wrong(Code.UNKNOWN_FIELD, detail, kind.__name__)
    missing = [key for key in required if key not in tree]
    if missing:
        raise Wrong(Code.MALFORMED, f"field {missing[0]!r} is missing", kind.__name__)


def _inside(key: str, read: Reader, tree: Json) -> Any:
    try:
        return read(tree)
    except Wrong as wrong:
        raise wrong.inside(key) from None


def _read(readers: list[tuple[str, Reader]], tree: dict[str, Json]) -> list[Any]:
    made: list[Any] = []
    add = made.append
    try:
        for key, read in readers:
            add(read(tree[key]))
    except Wrong as wrong:
        raise wrong.inside(readers[len(made)][0]) from None
    return made
