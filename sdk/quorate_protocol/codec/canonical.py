"""The one strict canonical codec: frozen dataclasses to canonical JSON and back.

Canonical JSON: sorted keys, no spaces, integers only, those above 2^53 as decimal strings, byte
strings as 0x-hex in lower case, field names in camelCase. Decoding refuses unknown and missing
fields, wrong widths, floats, and any text that is not the canonical form of what it says. Unions
of dataclasses carry the class name under "kind".

The same codec serves messages, documents, journal events, snapshots and the HTTP API.
"""

import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import WIRE_TYPES

T = TypeVar("T")
R = TypeVar("R")
SAFE_INTEGER = 2**53
DEPTH_MAX = 32
NESTING_SAFE = 200
# A string that never ends is one token too: were it tried again from each quote inside it, the time
# would be its length squared.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_ESCAPED_HALF = re.compile(r"\\u[dD]")
_INTEGER = re.compile(r"-?[0-9]{1,78}")
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
Json = Any  # a JSON tree; the one place of the rules where the type cannot be told beforehand
Encoder = Callable[[Any], Json]
Decoder = Callable[[Json, str], Any]


def encode(value: object) -> bytes:
    """Canonical JSON bytes of a dataclass."""
    return canonical(to_json(value))


def decode(cls: type[T], data: bytes, bytes_max: int = 1 << 20) -> T:
    """The dataclass that `data` is the canonical encoding of; anything else is
    `Refused(MALFORMED)` or `Refused(OVERSIZE)`.
    """
    tree = parse(data, bytes_max)
    value = from_json(cls, tree)
    if canonical(to_json(value)) != data:
        raise Refused(
            Code.NOT_CANONICAL,
            "send canonical JSON: sorted keys, no spaces, no repeated or default-less fields",
        )
    return value


def canonical(tree: Json) -> bytes:
    """Canonical bytes of a JSON tree."""
    return text(tree).encode()


def text(tree: Json) -> str:
    """Canonical text of a JSON tree."""
    return _ENCODER.encode(tree)


def parse(data: bytes, bytes_max: int) -> Json:
    """A JSON tree without floats, duplicate keys or deep nesting."""
    if len(data) > bytes_max:
        raise Refused(Code.OVERSIZE, f"{len(data)} bytes, at most {bytes_max}")
    check_nesting(data)
    try:
        # Decoded here: the parser would also take UTF-16, and halves of surrogate pairs, which no
        # text in UTF-8 has.
        text = data.decode("utf-8")
        tree = json.loads(
            text, parse_float=_no_float, parse_constant=_no_float, object_pairs_hook=_no_duplicates
        )
        if _ESCAPED_HALF.search(text):
            canonical(tree)
    except (ValueError, RecursionError) as error:
        raise Refused(Code.MALFORMED, f"not JSON: {str(error)[:200]}") from error
    return tree


def memo(build: Callable[[Any], R]) -> Callable[[Any], R]:
    """`functools.cache` for builders keyed by a type: one entry per declared message, so it
    needs no bound.
    """
    return cache(build)


def loads(data: bytes) -> Json:
    """Any JSON of a stranger (numbers of all kinds), for answers that are not ours to make
    canonical. ValueError for what is none.
    """
    try:
        check_nesting(data)
        return json.loads(data)
    except (Refused, RecursionError) as error:
        raise ValueError(str(error)) from error


def check_nesting(data: bytes) -> None:
    """Refuses what is nested too deep: the standard parser recurses on the C stack, and where a
    library has raised the recursion limit, "[[[[..." kills the process.
    """
    if data.count(b"[") + data.count(b"{") <= NESTING_SAFE:
        return
    depth = 0
    for token in _TOKENS.finditer(data):
        mark = token.group()
        if mark in b"[{":
            depth += 1
            if depth > NESTING_SAFE:
                raise Refused(Code.MALFORMED, f"nested deeper than {NESTING_SAFE}")
        elif mark in b"]}":
            depth -= 1


def to_json(value: object) -> Json:
    """JSON tree of a dataclass (its own type, no union tag)."""
    return _encoder(type(value))(value)


def from_json(cls: type[T], tree: Json, path: str = "") -> T:
    """Builds `cls` from a JSON tree; errors name the field's path."""
    result: T = _decoder(cls)(tree, path)
    return result


def encoder_of(kind: Any) -> Encoder:
    """The encoder of any type that the codec knows."""
    return _encoder(kind)


def decoder_of(kind: Any) -> Decoder:
    """The decoder of any type that the codec knows: (tree, path) -> value."""
    return _decoder(kind)


def camel(name: str) -> str:
    """snake_case to camelCase."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _no_float(text: str) -> Json:
    raise ValueError(f"only integers are allowed, not {text[:32]}")


def _no_duplicates(pairs: list[tuple[str, Json]]) -> Json:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key stands twice")
    return tree


def _bad(path: str, expected: str, got: object) -> Refused:
    return Refused(
        Code.MALFORMED, f"{path or 'document'}: expected {expected}, got {str(got)[:64]!r}"
    )


CUSTOM: dict[Any, tuple[Callable[[Any], Encoder], Callable[[Any], Decoder]]] = {}
"""Generic types with a form of their own (the envelope): origin -> (encoder of, decoder of) its type argument."""


@memo
def _encoder(kind: Any) -> Encoder:
    if hasattr(kind, "__supertype__"):
        return _encoder(kind.__supertype__)
    origin = get_origin(kind)
    if (origin or kind) in CUSTOM:
        return CUSTOM[origin or kind][0](next(iter(get_args(kind)), None))
    if origin in (types.UnionType, typing.Union):
        return _union_encoder(kind)
    if origin is tuple:
        inner = get_args(kind)
        if len(inner) == 2 and inner[1] is Ellipsis:
            each = _encoder(inner[0])
            return lambda value: [each(item) for item in value]
        several = [_encoder(item) for item in inner]
        return lambda value: [enc(item) for enc, item in zip(several, value, strict=True)]
    if origin is frozenset:
        each = _encoder(get_args(kind)[0])
        return lambda value: sorted((each(item) for item in value), key=str)
    if origin in (dict, Mapping):
        key, item = (_encoder(arg) for arg in get_args(kind))
        return lambda value: {str(key(k)): item(v) for k, v in value.items()}
    if is_value_type(kind):
        return _struct_encoder(kind)
    if kind is bytes:
        return lambda value: "0x" + value.hex()
    if kind is int:
        return _encode_int
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value: value.value
    if kind in (str, bool, type(None)):
        return lambda value: value
    raise TypeError(f"the codec has no form for {kind}")


def _encode_int(value: int) -> Json:
    return int(value) if -SAFE_INTEGER <= value <= SAFE_INTEGER else str(int(value))


def is_value_type(kind: Any) -> bool:
    """Whether a declared type is a class of Structs (a generic one with its arguments is not)."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def _struct_encoder(kind: Any) -> Encoder:
    # Encoders of the fields are found at first use, so that recursive types work.
    members: list[tuple[str, str, Encoder]] = []

    def run(value: Any) -> Json:
        if not members:
            members.extend((f.name, camel(f.name), _encoder(f.type)) for f in fields(kind))
        return {key: enc(getattr(value, name)) for name, key, enc in members}

    return run


def _union_encoder(kind: Any) -> Encoder:
    classes = [arg for arg in get_args(kind) if is_value_type(arg)]
    scalars = [arg for arg in get_args(kind) if not is_value_type(arg) and arg is not type(None)]
    assert len(scalars) <= 1 and not (scalars and classes), f"ambiguous union {kind}"

    def run(value: Any) -> Json:
        if value is None:
            return None
        if scalars:
            return _encoder(scalars[0])(value)
        tree = _encoder(type(value))(value)
        return tree if len(classes) == 1 else {"kind": type(value).__name__, **tree}

    return run


@memo
def _decoder(kind: Any) -> Decoder:
    if hasattr(kind, "__supertype__"):
        return _newtype_decoder(kind)
    origin = get_origin(kind)
    if origin in CUSTOM:
        return CUSTOM[origin][1](get_args(kind)[0])
    if origin in (types.UnionType, typing.Union):
        return _union_decoder(kind)
    if origin is tuple:
        return _tuple_decoder(kind)
    if origin is frozenset:
        each = _decoder(get_args(kind)[0])
        return lambda tree, path: frozenset(each(item, path) for item in _list(tree, path))
    if origin in (dict, Mapping):
        return _mapping_decoder(kind)
    if is_value_type(kind):
        return _struct_decoder(kind)
    if kind is bytes:
        return lambda tree, path: _bytes(tree, path, None)
    if kind is int:
        return lambda tree, path: _int(tree, path, None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_decoder(kind)
    if kind in (str, bool, type(None)):
        return _scalar_decoder(kind)
    raise TypeError(f"the codec has no form for {kind}")


def _scalar_decoder(kind: Any) -> Decoder:
    def run(tree: Json, path: str) -> Any:
        if type(tree) is not kind:
            raise _bad(path, kind.__name__, tree)
        return tree

    return run


def _enum_decoder(kind: Any) -> Decoder:
    def run(tree: Json, path: str) -> Any:
        if isinstance(tree, bool):
            raise _bad(path, kind.__name__, tree)
        try:
            return kind(tree)
        except ValueError as error:
            raise _bad(path, f"one of {[member.value for member in kind]}", tree) from error

    return run


def _newtype_decoder(kind: Any) -> Decoder:
    solidity, width = WIRE_TYPES.get(kind.__name__, ("", 0))
    if solidity.startswith("uint"):
        return lambda tree, path: _int(tree, path, width)
    if solidity:
        return lambda tree, path: _bytes(tree, path, width)
    return _decoder(kind.__supertype__)


def _int(tree: Json, path: str, bits: int | None) -> int:
    if isinstance(tree, str) and _INTEGER.fullmatch(tree):
        value = int(tree)
        if -SAFE_INTEGER <= value <= SAFE_INTEGER or str(value) != tree:
            raise _bad(path, "a plain integer", tree)
    elif type(tree) is int and -SAFE_INTEGER <= tree <= SAFE_INTEGER:
        value = tree
    else:
        raise _bad(path, "an integer (above 2^53 as a decimal string)", tree)
    if bits is not None and not 0 <= value < 1 << bits:
        raise _bad(path, f"an unsigned {bits}-bit integer", tree)
    return value


def _key_int(text: str, path: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _bad(path, "an integer as key", text)
    return int(text)


def _bytes(tree: Json, path: str, width: int | None) -> bytes:
    if not isinstance(tree, str) or not tree.startswith("0x") or tree != tree.lower():
        raise _bad(path, "0x-hex in lower case", tree)
    try:
        value = bytes.fromhex(tree[2:])
    except ValueError as error:
        raise _bad(path, "0x-hex", tree) from error
    if "0x" + value.hex() != tree or (width is not None and len(value) != width):
        raise _bad(path, f"{width} bytes of 0x-hex", tree)
    return value


def _list(tree: Json, path: str) -> list[Json]:
    if not isinstance(tree, list):
        raise _bad(path, "a list", tree)
    return tree


def _tuple_decoder(kind: Any) -> Decoder:
    inner = get_args(kind)
    if len(inner) == 2 and inner[1] is Ellipsis:
        each = _decoder(inner[0])
        return lambda tree, path: tuple(
            each(item, f"{path}[{i}]") for i, item in enumerate(_list(tree, path))
        )
    several = [_decoder(item) for item in inner]

    def run(tree: Json, path: str) -> Any:
        if len(_list(tree, path)) != len(several):
            raise _bad(path, f"a list of {len(several)}", tree)
        return tuple(
            dec(item, f"{path}[{i}]")
            for i, (dec, item) in enumerate(zip(several, tree, strict=True))
        )

    return run


def _mapping_decoder(kind: Any) -> Decoder:
    key_kind, item_kind = get_args(kind)
    is_int = getattr(key_kind, "__supertype__", key_kind) is int
    key, item = _decoder(key_kind), _decoder(item_kind)

    def run(tree: Json, path: str) -> Any:
        if not isinstance(tree, dict):
            raise _bad(path, "an object", tree)
        return {
            key(_key_int(k, path) if is_int else k, path): item(v, f"{path}.{k}")
            for k, v in tree.items()
        }

    return run


def _struct_decoder(kind: Any) -> Decoder:
    # Found at first use, as in _struct_encoder.
    members: dict[str, tuple[str, Decoder, bool]] = {}

    def run(tree: Json, path: str) -> Any:
        if not members:
            for f in fields(kind):
                has_default = f.default is not NODEFAULT or f.default_factory is not NODEFAULT
                members[camel(f.name)] = (f.name, _decoder(f.type), has_default)
        if not isinstance(tree, dict):
            raise _bad(path, f"an object ({kind.__name__})", tree)
        if path.count(".") > DEPTH_MAX:
            raise _bad(path, f"at most {DEPTH_MAX} levels", "deeper")
        unknown = tree.keys() - members.keys()
        if unknown:
            raise Refused(
                Code.UNKNOWN_FIELD,
                f"{path or kind.__name__}: unknown field {sorted(unknown)[0][:64]!r}",
            )
        missing = [
            key for key, (_, _, optional) in members.items() if key not in tree and not optional
        ]
        if missing:
            raise Refused(
                Code.MALFORMED, f"{path or kind.__name__}: field {missing[0]!r} is missing"
            )
        values = {
            members[k][0]: members[k][1](v, f"{path}.{k}" if path else k) for k, v in tree.items()
        }
        return kind(**values)

    return run


def _union_decoder(kind: Any) -> Decoder:
    args = get_args(kind)
    classes = {arg.__name__: arg for arg in args if is_value_type(arg)}
    scalars = [arg for arg in args if not is_value_type(arg) and arg is not type(None)]
    optional = type(None) in args

    def run(tree: Json, path: str) -> Any:
        if tree is None and optional:
            return None
        if scalars:
            return _decoder(scalars[0])(tree, path)
        if len(classes) == 1:
            return _decoder(next(iter(classes.values())))(tree, path)
        name = tree.get("kind") if isinstance(tree, dict) else None
        if not isinstance(name, str) or name not in classes:  # a list or an object is no key at all
            raise _bad(path, f"an object whose kind is one of {sorted(classes)}", name)
        return _decoder(classes[name])({k: v for k, v in tree.items() if k != "kind"}, path)

    return run
