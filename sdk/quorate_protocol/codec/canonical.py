"""The one strict canonical codec of what is signed or crosses a boundary.

Canonical JSON: sorted keys, no spaces, integers only, those above 2^53 as decimal strings, byte
strings as 0x-hex in lower case, field names in camelCase. Decoding refuses unknown and missing
fields, wrong widths, floats, and any text that is not the canonical form of what it says. A member
of a union of Structs carries its class name under "kind".

Messages, documents, frames and the HTTP API use it. The journal does not; see `packed`.
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
# A string that never ends is one token too. If it were tried again from each quote inside it, the
# time would be its length squared.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_ESCAPED_HALF = re.compile(r"\\u[dD]")
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_DECODER = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """Canonical bytes of a value."""
    return text_writer.encode(value)


def decode(cls: type[T], data: bytes, bytes_max: int = 1 << 20) -> T:
    """The value that `data` is the canonical encoding of. Anything else is refused as `OVERSIZE`,
    `MALFORMED`, `UNKNOWN_FIELD` or `NOT_CANONICAL`.
    """
    if len(data) <= bytes_max:
        try:
            check_nesting(data)
            value: T = reader_of(cls)(_DECODER.decode(data))
            # Repeated keys, spaces and escapes do not come out of the writer as they went in.
            if text_writer.writer_of(cls)(value).encode() == data:
                return value
        except (Wrong, Refused, ValueError, RecursionError, msgspec.MsgspecError):
            # `_refuse` finds out what is wrong with it.
            pass
    _refuse(cls, data, bytes_max)
    raise Refused(
        Code.NOT_CANONICAL,
        "send canonical JSON: sorted keys, no spaces, no repeated or default-less fields",
    )


def _refuse(cls: type[T], data: bytes, bytes_max: int) -> None:
    """Raises what is wrong with data that `decode` did not take, if more than its form is."""
    from_json(cls, parse(data, bytes_max))


def canonical(tree: Json) -> bytes:
    """Canonical bytes of a JSON tree."""
    return _ENCODER.encode(tree).encode()


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


def loads(data: bytes) -> Json:
    """Any JSON of a stranger (numbers of all kinds), for answers that need not be canonical.
    Raises ValueError for data that is no JSON.
    """
    try:
        check_nesting(data)
        return json.loads(data)
    except (Refused, RecursionError) as error:
        raise ValueError(str(error)) from error


def check_nesting(data: bytes) -> None:
    """Refuses data that is nested too deep. The standard parser recurses on the C stack, and where
    a library has raised the recursion limit, "[[[[..." kills the process.
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
    """JSON tree of a value, without a union's tag."""
    return json.loads(text_writer.writer_of(type(value))(value))


def from_json(cls: type[T], tree: Json, path: str = "") -> T:
    """Builds `cls` from a JSON tree. A refusal names the field's path, which begins with `path`."""
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
        raise ValueError("a key stands twice")
    return tree
