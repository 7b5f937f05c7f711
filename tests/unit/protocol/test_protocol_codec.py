"""Tests the codec: each value has one canonical form, and other forms are refused with a code.

Each frame and event is read back as it was written.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from quorate_coordinator.core.model import events as coordinator_events
from quorate_node.core import events as node_events
from quorate_protocol.codec import canonical
from quorate_protocol.messages import envelope, frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import MESSAGE_TYPES, Order, Stop
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    Address,
    Amount,
    Bps,
    Comparator,
    Hash32,
    Nonce,
    Signature,
    UnixSeconds,
)
from quorate_runtime.actor.actor_codec import PackedCodec
from vectors.generate import message_of


class Inner(Struct, frozen=True):
    amount: Amount
    names: tuple[str, ...] = ()


class Thing(Struct, frozen=True):
    who: Address
    inner: Inner
    is_good: bool
    comparator: Comparator
    maybe: int | None
    share: Bps


THING = Thing(
    Address(b"\x01" * 20), Inner(Amount(2**60), ("a", "ü")), True, Comparator.TEXT, None, Bps(7)
)
GOOD = canonical.encode(THING)


@pytest.mark.rule("3.4")
def test_a_value_has_one_canonical_form() -> None:
    text = GOOD.decode()
    assert text == (
        '{"comparator":3,"inner":{"amount":"1152921504606846976","names":["a","ü"]},"isGood":true,"maybe":null,"share":7,"who":"0x'
        + "01" * 20
        + '"}'
    )
    assert canonical.decode(Thing, GOOD) == THING


def _refused(data: bytes) -> Code:
    with pytest.raises(Refused) as caught:
        canonical.decode(Thing, data)
    return caught.value.code


@pytest.mark.rule("3.4")
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"share":7', '"share":7.0', Code.MALFORMED),
        ('"share":7', '"share":NaN', Code.MALFORMED),
        ('"share":7', '"share":-1', Code.MALFORMED),
        ('"share":7', '"share":65536', Code.MALFORMED),
        ('"share":7', '"share":true', Code.MALFORMED),
        ('"share":7', '"share":"7"', Code.MALFORMED),
        ('"share":7', '"share":7,"share":7', Code.MALFORMED),
        ('"share":7', '"shares":7', Code.UNKNOWN_FIELD),
        ('"share":7,', "", Code.MALFORMED),
        ('"comparator":3', '"comparator":9', Code.MALFORMED),
        ('"comparator":3', '"comparator":true', Code.MALFORMED),
        ('"isGood":true', '"isGood":1', Code.MALFORMED),
        ('"1152921504606846976"', "1152921504606846976", Code.MALFORMED),
        ('"1152921504606846976"', '"01152921504606846976"', Code.MALFORMED),
        ('"1152921504606846976"', '"' + "9" * 60 + '"', Code.MALFORMED),
        ('"0x01', '"0X01', Code.MALFORMED),
        ('"0x01', '"01', Code.MALFORMED),
        ('"0x0101', '"0x01', Code.MALFORMED),
        ('"0x01', '"0xzz', Code.MALFORMED),
        ('["a"', '[ "a"', Code.NOT_CANONICAL),
        ('"ü"', '"\\u00fc"', Code.NOT_CANONICAL),
        ('["a","ü"]', '"a"', Code.MALFORMED),
        ('"maybe":null', '"maybe":"x"', Code.MALFORMED),
    ],
)
def test_any_other_form_is_refused(old: str, new: str, code: Code) -> None:
    text = GOOD.decode()
    assert old in text
    assert _refused(text.replace(old, new, 1).encode()) is code


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b"null"])
def test_a_value_that_is_no_object_is_refused(data: bytes) -> None:
    assert _refused(data) is Code.MALFORMED


def test_size_and_depth_of_a_document_are_bounded() -> None:
    with pytest.raises(Refused) as caught:
        canonical.decode(Thing, GOOD, len(GOOD) - 1)
    assert caught.value.code is Code.OVERSIZE
    assert _refused(b"[" * 200_000) is Code.MALFORMED


@pytest.mark.rule("3.74")
def test_lists_and_objects_of_a_document_are_bounded_before_it_is_parsed() -> None:
    bytes_max = 128 * 1024
    most = bytes_max // canonical.CONTAINER_BYTES
    for one in (b"[]", b"{}", b'{"a":1}', b'[""]'):
        for count, is_taken in ((most - 1, True), (most, False)):
            data = b"[" + b",".join([one] * count) + b"]"
            if is_taken:
                assert len(canonical.parse(data, bytes_max)) == count
                continue
            with pytest.raises(Refused, match="lists and objects") as caught:
                canonical.parse(data, bytes_max)
            assert caught.value.code is Code.OVERSIZE
    assert canonical.parse(b'["' + b"[{" * most + b'"]', bytes_max), "text is no list"


def test_errors_name_the_path() -> None:
    with pytest.raises(Refused, match=r"inner\.amount"):
        canonical.decode(Thing, GOOD.replace(b'"1152921504606846976"', b'"x"'))


@given(st.binary(max_size=200))
def test_bytes_never_crash_the_decoder(data: bytes) -> None:
    with pytest.raises(Refused):
        canonical.decode(Thing, data)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_another_value_or_refused(position: int, byte: int) -> None:
    changed = bytearray(GOOD)
    changed[position] = byte
    try:
        value = canonical.decode(Thing, bytes(changed))
    except Refused:
        return  # most changes are refused
    assert canonical.encode(value) == bytes(changed)
    assert (value == THING) == (bytes(changed) == GOOD), "one value, one form"


@pytest.mark.rule("0.2", "3.4")
@given(st.integers(0, 2**256 - 1))
def test_integers_of_any_size_are_read_back(number: int) -> None:
    envelope_kind = message_of(Order)
    order = type(envelope_kind)(
        **{
            **{f: getattr(envelope_kind, f) for f in envelope_kind.__struct_fields__},
            "nonce": Nonce(number),
        }
    )
    assert canonical.decode(Order, canonical.encode(order)) == order


@pytest.mark.rule("3.2")
@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_an_envelope_of_each_message_is_read_back(name: str) -> None:
    sealed: Envelope[object] = Envelope(message_of(MESSAGE_TYPES[name]), Signature(b"\x05" * 65))
    data = envelope.encode(sealed)  # type: ignore[arg-type]
    assert envelope.decode(data, MESSAGE_TYPES[name]) == sealed
    with pytest.raises(Refused):
        envelope.decode(
            data, next(kind for kind in MESSAGE_TYPES.values() if kind is not MESSAGE_TYPES[name])
        )
    with pytest.raises(Refused):
        envelope.decode(data + b" ")


def test_frames_carry_their_name() -> None:
    stop = Envelope(Stop(Hash32(bytes(32)), UnixSeconds(1)), Signature(bytes(65)))
    frame = frames.StopSent(Hash32(b"\x01" * 32), stop)
    assert frames.decode(frames.encode(frame)) == frame
    with pytest.raises(Refused):
        frames.decode(frames.encode(frame).replace(b"StopSent", b"StopSend"))


def test_two_events_without_fields_are_distinguished() -> None:
    coded: PackedCodec[object, object] = PackedCodec(coordinator_events.Event, node_events.Event)
    for event in (
        coordinator_events.Tick(),
        coordinator_events.Compared(),
        coordinator_events.Restarted(),
    ):
        assert type(coded.decode_event(coded.version, coded.encode_event(event))) is type(event)


@pytest.mark.rule("3.3")
@pytest.mark.parametrize(
    "bad", [bytes(64), bytes(66), bytes(64) + b"\x02", b"\x01" * 32 + b"\xff" * 32 + b"\x1b"]
)
def test_a_signature_has_one_written_form(bad: bytes) -> None:
    with pytest.raises(Refused) as caught:
        envelope.check_signature_form(Signature(bad))
    assert caught.value.code is Code.BAD_SIGNATURE
