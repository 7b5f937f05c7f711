"""Tests the codec: each value has one canonical form, and other forms are refused with a code.

Each frame and event is read back as it was written.
"""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from quorate_coordinator.core.model import events as coordinator_events
from quorate_node.core import events as node_events
from quorate_protocol.codec import canonical, packed, text_writer
from quorate_protocol.codec.packed import Packed
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
    Label,
    Nonce,
    Signature,
    UnixSeconds,
)
from quorate_runtime.actor.actor_codec import PackedCodec
from sim.run import play
from support.value_strategies import values_of
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


class Small(Struct, frozen=True, tag=True):
    amount: Amount
    label: Label
    text: str | None


class Large(Struct, frozen=True, tag=True):
    by_hash: dict[Hash32, Nonce]
    many: tuple[int, ...]
    inner: Small | None = None


Either = Small | Large
PACKED: Packed[Either] = Packed(Either)


@given(values_of(Either))
def test_packed_values_are_read_back(value: Either) -> None:
    assert PACKED.decode(PACKED.encode(value)) == value


@pytest.mark.parametrize("text", ["null", "true", "123", ""])
def test_text_that_looks_like_another_type_stays_text(text: str) -> None:
    value = Small(Amount(2**100), Label.NONE, text)
    assert PACKED.decode(PACKED.encode(value)) == value


def test_only_rows_with_large_integers_are_packed_twice() -> None:
    rows = [(b"a", Small(Amount(2**64), Label.NONE, None)), (b"b", Large({}, (1,)))]
    data = packed.encode_rows(rows)
    assert Packed[list[tuple[bytes, Either]]](list[tuple[bytes, Either]]).decode(data) == rows
    assert msgspec.msgpack.decode(data)[0][1]["amount"] == str(2**64)
    assert msgspec.msgpack.decode(data)[1][1]["many"] == [1]


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", packed.encode({"type": "Other"}), packed.encode({"type": "Small"})]
)
def test_bytes_that_pack_no_value_are_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        PACKED.decode(data)
    assert caught.value.code is Code.MALFORMED


@pytest.mark.parametrize("kind", [coordinator_events.Event, node_events.Event])
def test_every_event_can_be_packed(kind: object) -> None:
    coded: Packed[object] = Packed(kind)

    @given(values_of(kind))
    def comes_back(event: object) -> None:
        assert coded.decode(coded.encode(event)) == event

    comes_back()


def test_everything_that_a_market_sends_and_publishes_is_canonical(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[str] = set()

    def checked(write: Callable[..., bytes]) -> Callable[..., bytes]:
        def run(*args: object) -> bytes:
            data = write(*args)
            assert canonical.canonical(canonical.parse(data, len(data))) == data
            seen.add(type(args[-1]).__name__)
            return data

        return run

    monkeypatch.setattr(text_writer, "encode", checked(text_writer.encode))
    monkeypatch.setattr(text_writer, "enclose", checked(text_writer.enclose))
    for seed in (2, 5):
        assert play(seed)[2] is None
    assert {"Receipt", "JobSpec", "AssignmentSent", "VerdictSent"} <= seen


class Leaf(Struct, frozen=True):
    amount: Amount
    label: Label
    text: str
    is_good: bool = False
    note: str | None = None


class Other(Struct, frozen=True):
    digests: tuple[Hash32, ...]
    by_name: dict[str, int]
    by_number: dict[int, str]
    zeta: int = 0


class Tree(Struct, frozen=True):
    some: Leaf | Other
    perhaps: Leaf | None
    many: tuple[Leaf | Other | None, ...]
    pair: tuple[int, str]


LEAF = Leaf(Amount(2**60), Label.QUORUM_2, 'a"\\ü\n\u2028\x00😀', True, "")
OTHER = Other((Hash32(b"\x02" * 32),), {'b"': 1, "a": -(2**70)}, {10: "x", 9: "y"})


def test_each_type_is_written_in_its_defined_form() -> None:
    assert canonical.to_json(Tree(OTHER, None, (LEAF, None), (2**53 + 1, "x"))) == {
        "some": {
            "kind": "Other",
            "digests": ["0x" + "02" * 32],
            "byName": {'b"': 1, "a": str(-(2**70))},
            "byNumber": {"10": "x", "9": "y"},
            "zeta": 0,
        },
        "perhaps": None,
        "many": [
            {
                "kind": "Leaf",
                "amount": str(2**60),
                "label": 2,
                "text": LEAF.text,
                "isGood": True,
                "note": "",
            },
            None,
        ],
        "pair": [str(2**53 + 1), "x"],
    }


@pytest.mark.parametrize(
    "tree", [Tree(OTHER, None, (LEAF,), (1, "")), Tree(LEAF, LEAF, (), (0, "x"))]
)
def test_each_type_is_read_back_and_is_canonical(tree: Tree) -> None:
    data = canonical.encode(tree)
    assert canonical.canonical(canonical.parse(data, len(data))) == data
    assert canonical.decode(Tree, data) == tree


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"pair": [1, 2]}, "pair"),
        ({"perhaps": {"amount": -1, "label": 2, "text": ""}}, "perhaps.amount"),
        ({"many": [None, {"kind": "Leaf", "amount": 1, "label": 9, "text": ""}]}, "many[1].label"),
        (
            {"some": {"kind": "Other", "digests": ["0x"], "byName": {}, "byNumber": {}}},
            "some.digests[0]",
        ),
        ({"some": {"kind": "Twig"}}, "some"),
    ],
)
def test_a_refusal_names_the_field(change: dict[str, object], path: str) -> None:
    tree = canonical.to_json(Tree(OTHER, None, (LEAF,), (1, "")))
    with pytest.raises(Refused) as caught:
        canonical.from_json(Tree, {**tree, **change})
    assert caught.value.detail.startswith(f"{path}: expected")
