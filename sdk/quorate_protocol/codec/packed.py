"""MessagePack of values that only this program reads again: journal, snapshots and archive.

What is signed or crosses a boundary is canonical JSON (`canonical`). MessagePack is several times
faster and half as large, but it has two limits that canonical JSON does not have:

- A member of a union needs its class name beside its fields. The classes say so by `tag=True`.
- Integers have 64 bits, and amounts and nonces may have up to 256. A value that holds a larger
  integer is packed again with that integer as decimal text. Decoders take such text for an integer.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import msgpack

from quorate_protocol.refusals import Code, Refused

T = TypeVar("T")
_ENCODER = msgpack.Encoder()
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1


class Packed(Generic[T]):
    """Encodes and decodes values of one declared type, which may be a union of tagged Structs."""

    def __init__(self, kind: Any) -> None:
        # Not strict: an integer may be written as decimal text.
        self._decoder: msgpack.Decoder[T] = msgpack.Decoder(kind, strict=False)

    def encode(self, value: T) -> bytes:
        return encode(value)

    def decode(self, data: bytes | memoryview) -> T:
        """The value of MessagePack bytes. Raises `Refused(MALFORMED)` if they are not this type."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise Refused(Code.MALFORMED, str(error)[:200]) from error


def encode(value: object) -> bytes:
    """MessagePack bytes of any value; a tagged Struct's bytes hold its class name."""
    try:
        return _ENCODER.encode(value)
    except OverflowError:
        # Rare: 2^64 millionths are 18 trillion USD, and clients choose small nonces.
        tree = msgspec.to_builtins(value, builtin_types=(bytes,))
        return _ENCODER.encode(_with_texts(tree))


def encode_rows(rows: list[tuple[Any, Any]]) -> bytes:
    """Bytes of a list of rows; only a row that holds a large integer is packed twice."""
    try:
        return _ENCODER.encode(rows)
    except OverflowError:
        return _ENCODER.encode([msgspec.Raw(encode(row)) for row in rows])


def _with_texts(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {_with_texts(key): _with_texts(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [_with_texts(item) for item in tree]
    if type(tree) is int and not _INTEGER_MIN <= tree <= _INTEGER_MAX:
        return str(tree)
    return tree
