"""Encodes an actor's events and effects as MessagePack, with a version."""

from typing import Any, Generic, TypeVar

from quorate_protocol.codec import packed
from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Code, Refused

E = TypeVar("E")
F = TypeVar("F")
VERSION = 2
"""The version of the encoding of events and effects. Version 1 was canonical JSON."""


class PackedCodec(Generic[E, F]):
    """Encodes and decodes one core's events and effects, each a union of tagged Structs.

    Decoding raises `Refused` for another version or wrong bytes.
    """

    def __init__(self, event_kind: Any, effect_kind: Any, version: int = VERSION) -> None:
        self.version = version
        self._events: Packed[E] = Packed(event_kind)
        self._effects: Packed[F] = Packed(effect_kind)

    def encode_event(self, event: E) -> bytes:
        return packed.encode(event)

    def decode_event(self, version: int, data: bytes) -> E:
        self._check(version)
        return self._events.decode(data)

    def encode_effect(self, effect: F) -> bytes:
        return packed.encode(effect)

    def decode_effect(self, version: int, data: bytes) -> F:
        self._check(version)
        return self._effects.decode(data)

    def _check(self, version: int) -> None:
        if version != self.version:
            raise Refused(
                Code.UNSUPPORTED,
                f"its encoding has version {version}, and this program reads {self.version}",
            )
