"""Encodes one transaction of the journal: events with their effects, and marks of done effects.

A batch is one row. One row per event would be slower: a statement costs more than what it writes,
and each one releases and takes the interpreter's lock. The layout is fixed and big-endian; the
actor's codec encodes the payloads. The parts follow each other:

    event   1 u8 | version u32 | at u64 | random 32 | payload bytes u32 | effects u32
            | payload | effects
    effect  key bytes u16 | payload bytes u32 | key (UTF-8) | payload
    done    2 u8 | count u32 | count times (offset u64 | place u32)
"""

import struct
from collections.abc import Iterator, Sequence

import msgspec

from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.actor.journal_port import KeyedEffect, Pending, Record

_EVENT = struct.Struct(">BIQ32sII")
_EFFECT = struct.Struct(">HI")
_DONE = struct.Struct(">BI")
_PLACE = struct.Struct(">QI")
_IS_EVENT, _IS_DONE = 1, 2

Place = tuple[int, int]
"""An effect's place: the offset of its event, and its index among that event's effects."""


class Event(msgspec.Struct, frozen=True):
    """A record with its effects, without those whose keys the journal knew already."""

    record: Record
    effects: tuple[KeyedEffect, ...]

    def pending(self, offset: int) -> Iterator[tuple[Place, Pending]]:
        for index, (key, payload) in enumerate(self.effects):
            yield (offset, index), Pending(key, offset, self.record.version, payload)


class Done(msgspec.Struct, frozen=True):
    """Marks effects that must not be performed again."""

    places: tuple[Place, ...]


def pack_event(record: Record, effects: Sequence[KeyedEffect]) -> bytes:
    head = _EVENT.pack(
        _IS_EVENT, record.version, record.at, record.random, len(record.payload), len(effects)
    )
    if not effects:
        return head + record.payload
    parts = [head, record.payload]
    for key, payload in effects:
        raw = key.encode()
        parts += (_EFFECT.pack(len(raw), len(payload)), raw, payload)
    return b"".join(parts)


def pack_done(places: Sequence[Place]) -> bytes:
    return _DONE.pack(_IS_DONE, len(places)) + b"".join([_PLACE.pack(*place) for place in places])


def unpack(data: bytes) -> Iterator[Event | Done]:
    at = 0
    try:
        while at < len(data):
            if data[at] == _IS_EVENT:
                event, at = _event(data, at)
                yield event
            elif data[at] == _IS_DONE:
                _, count = _DONE.unpack_from(data, at)
                at += _DONE.size
                yield Done(tuple(_PLACE.iter_unpack(_cut(data, at, count * _PLACE.size))))
                at += count * _PLACE.size
            else:
                raise ValueError(f"no part of a batch begins with {data[at]}")
    except struct.error as short:
        raise ValueError(f"a batch ends within a part: {short}") from short


def _event(data: bytes, at: int) -> tuple[Event, int]:
    _, version, moment, random, length, count = _EVENT.unpack_from(data, at)
    at += _EVENT.size
    payload = _cut(data, at, length)
    at += length
    effects: list[KeyedEffect] = []
    for _ in range(count):
        key_length, effect_length = _EFFECT.unpack_from(data, at)
        at += _EFFECT.size
        effects.append(
            (_cut(data, at, key_length).decode(), _cut(data, at + key_length, effect_length))
        )
        at += key_length + effect_length
    return Event(Record(version, UnixSeconds(moment), Hash32(random), payload), tuple(effects)), at


def _cut(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise ValueError("a batch ends within a part")
    return data[at : at + length]
