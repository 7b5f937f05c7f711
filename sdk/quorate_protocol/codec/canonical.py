"""Strict canonical JSON, for values that are signed or sent to another program.

Keys are sorted, and there are no spaces. Numbers are integers; those above 2^53 are decimal
strings. Byte strings are 0x-hex in lower case. Field names are in camelCase. A member of a union of
Structs has its class name under "kind".

The decoder refuses unknown and missing fields, wrong widths, floats, and text in any other form
than the canonical one.

Messages, documents, frames and the HTTP API use this module. The journal uses `packed`.
"""

import json
import re
from typing import TypeVar

import msgspec

from quorate_protocol.codec import declared_types, text_writer
from quorate_protocol.codec.value_reader import Wrong, reader_of
from quorate_protocol.refusals import Code, Refused

T = TypeVar("T")
Json = declared_types.Json
NESTING_SAFE = 200
CONTAINER_BYTES = 64  # for so many bytes of its bound a document may have one list or object
# A string without an end is one token too. Otherwise the search would start again at each quote in
# it, and take quadratic time.
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ESCAPED_HALF = re.compile(r"\\u[dD]")
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_DECODER = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    return text_writer.encode(value)


def decode(cls: type[T], data: bytes, bytes_max: int = 1 << 20) -> T:
    """The value of type `cls` that `data` encodes canonically. For other data it raises `Refused`
    with `OVERSIZE`, `MALFORMED`, `UNKNOWN_FIELD` or `NOT_CANONICAL`.
    """
    if len(data) <= bytes_max:
        try:
            check_structure(data, bytes_max)
            value: T = reader_of(cls)(_DECODER.decode(data))
            # The writer gives other bytes if the data has repeated keys, spaces or escapes.
            if text_writer.writer_of(cls)(value).encode() == data:
                return value
        except (Wrong, Refused, ValueError, RecursionError, msgspec.MsgspecError):
            # `_refuse` finds out what is wrong with the data.
            pass
    _refuse(cls, data, bytes_max)
    raise Refused(
        Code.NOT_CANONICAL,
        "send canonical JSON: sorted keys, no spaces, no repeated keys, all fields",
    )


def _refuse(cls: type[T], data: bytes, bytes_max: int) -> None:
    """Raises `Refused` with what is wrong in `data`, unless only its form is not canonical."""
    from_json(cls, parse(data, bytes_max))


def canonical(tree: Json) -> bytes:
    return _ENCODER.encode(tree).encode()


def parse(data: bytes, bytes_max: int) -> Json:
    """The JSON tree of some bytes; floats, duplicate keys and deep nesting are refused."""
    if len(data) > bytes_max:
        raise Refused(Code.OVERSIZE, f"{len(data)} bytes, at most {bytes_max}")
    check_structure(data, bytes_max)
    try:
        # The bytes are decoded here, because the parser would also take UTF-16, and halves of
        # surrogate pairs, which UTF-8 does not allow.
        text = data.decode("utf-8")
        tree = json.loads(
            text, parse_float=_no_float, parse_constant=_no_float, object_pairs_hook=_no_duplicates
        )
        if _ESCAPED_HALF.search(text):
            canonical(tree)
    except (ValueError, RecursionError) as error:
        raise Refused(Code.MALFORMED, f"not JSON: {str(error)[:200]}") from error
    return tree


def loads(data: bytes) -> Json:
    """The tree of any JSON text from another program, canonical or not. Raises ValueError for data
    that is not JSON or is nested too deep.
    """
    try:
        check_structure(data, max(len(data), 1 << 20))
        return json.loads(data)
    except (Refused, RecursionError) as error:
        raise ValueError(str(error)) from error


def check_structure(data: bytes, bytes_max: int) -> None:
    """Refuses data that is nested deeper than NESTING_SAFE, or has more lists and objects than a
    document of `bytes_max` bytes needs.

    The standard parser recurses on the C stack. If a library has raised the recursion limit,
    "[[[[..." would kill the process. And small lists take far longer to read than their bytes to
    send.
    """
    if data.count(b"[") + data.count(b"{") <= NESTING_SAFE:
        return
    brackets = _STRINGS.sub(b"", data).translate(None, _NO_BRACKETS)
    most, depth = max(NESTING_SAFE, bytes_max // CONTAINER_BYTES), 0
    for bracket in brackets[: 2 * most]:
        depth += 1 if bracket in b"[{" else -1
        if depth > NESTING_SAFE:
            raise Refused(Code.MALFORMED, f"nested deeper than {NESTING_SAFE}")
    if len(brackets) > 2 * most:
        raise Refused(Code.OVERSIZE, f"more than {most} lists and objects")


def to_json(value: object) -> Json:
    """JSON tree of a value, without a union's tag."""
    return json.loads(text_writer.writer_of(type(value))(value))


def from_json(cls: type[T], tree: Json, path: str = "") -> T:
    """Raises `Refused` with the path of the wrong field; `path` is put before it."""
    try:
        value: T = reader_of(cls)(tree)
    except Wrong as wrong:
        raise wrong.refused(path) from None
    return value


def _no_float(text: str) -> Json:
    raise ValueError(f"only integers are allowed, not {text[:32]}")


def _no_duplicates(pairs: list[tuple[str, Json]]) -> Json:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key occurs twice")
    return tree
