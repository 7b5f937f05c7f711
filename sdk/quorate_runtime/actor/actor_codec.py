"""How an actor's events and effects are written down: versioned canonical JSON of tagged unions."""

from typing import Any, Generic, Protocol, TypeVar, cast

from msgspec import defstruct

from quorate_protocol.codec import canonical, text_writer, value_reader
from quorate_protocol.refusals import Code, Refused

E = TypeVar("E")
F = TypeVar("F")
ITEM_BYTES_MAX = 64 << 20  # our own journal, so only a guard against nonsense


class ActorCodec(Protocol[E, F]):
    """Encoding of one core's events and effects. `version` is what is written; decoding takes
    all versions ever written.
    """

    version: int

    def encode_event(self, event: E) -> bytes:
        """Bytes of an event."""

    def decode_event(self, version: int, data: bytes) -> E:
        """The event."""

    def encode_effect(self, effect: F) -> bytes:
        """Bytes of an effect."""

    def decode_effect(self, version: int, data: bytes) -> F:
        """The effect."""


class CanonicalCodec(Generic[E, F]):
    """`ActorCodec` by `quorate_protocol.codec.canonical`, for a dataclass or a union of
    dataclasses each. Knows one version.
    """

    def __init__(self, event_kind: object, effect_kind: object, version: int = 1) -> None:
        self.version = version
        self._event: Any = defstruct("EventCarrier", [("item", event_kind)], frozen=True)
        self._effect: Any = defstruct("EffectCarrier", [("item", effect_kind)], frozen=True)
        self._write_event, self._write_effect = (
            text_writer.writer_of(event_kind),
            text_writer.writer_of(effect_kind),
        )

    def encode_event(self, event: E) -> bytes:
        """Bytes of an event."""
        return text_writer.enclose("item", self._write_event, event)

    def decode_event(self, version: int, data: bytes) -> E:
        """The event."""
        return cast(E, self._decode(self._event, version, data))

    def encode_effect(self, effect: F) -> bytes:
        """Bytes of an effect."""
        return text_writer.enclose("item", self._write_effect, effect)

    def decode_effect(self, version: int, data: bytes) -> F:
        """The effect."""
        return cast(F, self._decode(self._effect, version, data))

    def _decode(self, carrier: Any, version: int, data: bytes) -> object:
        if version != self.version:
            raise Refused(
                Code.UNSUPPORTED,
                f"its form has version {version}, and this program knows {self.version}",
            )
        # Our own bytes under a checksum: whether they are canonical need not be asked again.
        return value_reader.from_json(carrier, canonical.parse(data, ITEM_BYTES_MAX)).item
