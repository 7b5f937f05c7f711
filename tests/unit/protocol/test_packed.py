"""Tests that MessagePack gives back the packed value, with integers of any width."""

import msgspec
import pytest
from hypothesis import given
from msgspec import Struct

from quorate_coordinator.core.model import events as coordinator_events
from quorate_node.core import events as node_events
from quorate_protocol.codec import packed
from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, Hash32, Label, Nonce
from support.value_strategies import values_of


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
