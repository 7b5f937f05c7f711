"""Writers of canonical JSON text: one for each declared type, built at its first use."""

import types
import typing
from collections.abc import Callable
from enum import Enum
from json.encoder import encode_basestring
from operator import attrgetter
from typing import Annotated, Any, get_args, get_origin

from msgspec.structs import fields

from quorate_protocol.codec.declared_types import SAFE_INTEGER, camel, is_value_type, memo
from quorate_protocol.codec.identity_cache import Kept

Writer = Callable[[Any], str]

CUSTOM: dict[Any, Writer] = {}
"""Writers of types that have their own form, or whose newest texts are cached."""


def encode(value: object) -> bytes:
    return writer_of(type(value))(value).encode()


def enclose(name: str, write: Writer, value: object) -> bytes:
    return f'{{"{name}":{write(value)}}}'.encode()


def keep(kind: type, newest: int) -> None:
    """Caches the newest texts of a type whose values are written more than once. The module that
    declares the type calls it.
    """
    CUSTOM[kind] = Kept(_struct_writer(kind, ""), newest)


@memo
def writer_of(kind: Any) -> Writer:
    if hasattr(kind, "__supertype__"):
        return writer_of(kind.__supertype__)
    origin = get_origin(kind)
    if origin is Annotated:
        return writer_of(get_args(kind)[0])
    if (origin or kind) in CUSTOM:
        return CUSTOM[origin or kind]
    if origin in (types.UnionType, typing.Union):
        return _union_writer(kind)
    if origin is tuple:
        return _tuple_writer(kind)
    if origin is dict:
        return _dict_writer(kind)
    if is_value_type(kind):
        return _struct_writer(kind, "")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {member: writer_of(type(member.value))(member.value) for member in kind}.__getitem__
    if kind in _PLAIN:
        return _PLAIN[kind]
    raise TypeError(f"the codec has no form for {kind}")


def _write_bytes(value: bytes) -> str:
    return f'"0x{value.hex()}"'


def _write_int(value: int) -> str:
    # `int` comes first, because the text of an enumeration's member is its name.
    return str(int(value)) if -SAFE_INTEGER <= value <= SAFE_INTEGER else f'"{int(value)}"'


def _write_bool(value: bool) -> str:
    return "true" if value else "false"


_PLAIN: dict[Any, Writer] = {
    bytes: _write_bytes,
    int: _write_int,
    str: encode_basestring,
    bool: _write_bool,
    type(None): lambda value: "null",
}


def _tuple_writer(kind: Any) -> Writer:
    inner = get_args(kind)
    if len(inner) != 2 or inner[1] is not Ellipsis:
        several = [writer_of(item) for item in inner]
        return lambda value: (
            f"[{','.join([write(item) for write, item in zip(several, value, strict=True)])}]"
        )
    each = writer_of(inner[0])
    return lambda value: f"[{','.join([each(item) for item in value])}]" if value else "[]"


def _dict_writer(kind: Any) -> Writer:
    item = writer_of(get_args(kind)[1])

    def run(value: dict[Any, Any]) -> str:
        rows = sorted([(_key(key), item(each)) for key, each in value.items()])
        return "{" + ",".join([f"{encode_basestring(key)}:{each}" for key, each in rows]) + "}"

    return run


def _key(key: bytes | int | str) -> str:
    return f"0x{key.hex()}" if isinstance(key, bytes) else str(key)


def _union_writer(kind: Any) -> Writer:
    args = [arg for arg in get_args(kind) if arg is not type(None)]
    if len(args) == 1:
        one = writer_of(args[0])
        return lambda value: "null" if value is None else one(value)
    if not all(is_value_type(arg) for arg in args):
        raise TypeError(f"the codec has no form for {kind}: it cannot tell its members apart")
    writers = {arg: _struct_writer(arg, str(arg.__name__)) for arg in args}
    return lambda value: "null" if value is None else writers[type(value)](value)


def _struct_writer(kind: Any, tag: str) -> Writer:
    """Returns a writer that fills a template, which has the keys and a union's tag in canonical
    order.
    """
    if kind.__struct_config__.omit_defaults:
        return _sparse_writer(kind)
    if getattr(kind, "LATER_FIELDS", ()):
        return _later_writer(kind, tag)
    found: list[tuple[str, Callable[[Any], Any], list[Writer]]] = []

    def run(value: Any) -> str:
        if not found:
            # Built at the first use, so that types may refer to each other.
            found.append(_template(kind, tag))
        template, values_of, writers = found[0]
        return template % tuple([write(item) for write, item in zip(writers, values_of(value))])

    return run


def _sparse_writer(kind: Any) -> Writer:
    """Returns a writer of a Struct class with `omit_defaults`, for fields that came later. It
    leaves out a field that has its default, so older documents keep their bytes.
    """
    found: list[tuple[str, str, Any, Writer]] | None = None

    def run(value: Any) -> str:
        nonlocal found
        if found is None:  # a whole list at once, as in `value_reader`
            members = sorted((camel(f.name), f) for f in fields(kind))
            found = [(key, f.name, f.default, writer_of(f.type)) for key, f in members]
        held = [(key, getattr(value, name), default, write) for key, name, default, write in found]
        parts = [f'"{key}":{write(item)}' for key, item, default, write in held if item != default]
        return f"{{{','.join(parts)}}}"

    return run


def _later_writer(kind: Any, tag: str) -> Writer:
    """Returns a writer of a type that names fields in `LATER_FIELDS`. It leaves out such a field
    while it has its default, so older documents keep their bytes.
    """
    defaults = {f.name: f.default for f in fields(kind) if f.name in kind.LATER_FIELDS}
    found: dict[frozenset[str], tuple[str, Callable[[Any], Any], list[Writer]]] = {}

    def run(value: Any) -> str:
        absent = frozenset(
            name for name, usual in defaults.items() if getattr(value, name) == usual
        )
        if absent not in found:
            found[absent] = _template(kind, tag, absent)
        template, values_of, writers = found[absent]
        return template % tuple([write(item) for write, item in zip(writers, values_of(value))])

    return run


def _template(
    kind: Any, tag: str, absent: frozenset[str] = frozenset()
) -> tuple[str, Callable[[Any], Any], list[Writer]]:
    members = {camel(f.name): f for f in fields(kind) if f.name not in absent}
    parts = {"kind": f'"{tag}"'} if tag else {}
    # Bytes are frequent, so `bytes.hex` is called directly, and the template has the quotes and 0x.
    parts |= {key: '"0x%s"' if _is_bytes(f.type) else "%s" for key, f in members.items()}
    held = [members[key] for key in sorted(members)]
    writers = [bytes.hex if _is_bytes(f.type) else writer_of(f.type) for f in held]
    template = ",".join(f'"{key}":{part}' for key, part in sorted(parts.items()))
    names = [f.name for f in held]
    # attrgetter gives a tuple only for two names or more.
    values_of = (
        attrgetter(*names)
        if len(names) > 1
        else lambda value: [getattr(value, name) for name in names]
    )
    return "{" + template + "}", values_of, writers


def _is_bytes(kind: Any) -> bool:
    return getattr(kind, "__supertype__", kind) is bytes
