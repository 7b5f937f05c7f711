"""A quickened constructor makes what the dataclass's own made, and takes what that took."""

import copy
import dataclasses
from dataclasses import dataclass, field

import pytest

from quorate_protocol.codec.quick import quicken, with_changes
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import MESSAGE_TYPES
from quorate_protocol.units import Amount


@dataclass(frozen=True, slots=True)
class Inner:
    amount: Amount
    tags: tuple[str, ...] = ("a",)


@dataclass(frozen=True, slots=True)
class Checked:
    amount: int

    def __post_init__(self) -> None:
        assert self.amount > 0


@dataclass(slots=True)
class Loose:
    amount: int


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner | Checked
    loose: Loose
    many: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wide:
    """With enough fields to begin as a draft; their names are also those of what makes it."""

    kind: int
    draft: str
    make: Amount = Amount(3)
    many: list[int] = field(default_factory=list)


def test_a_value_of_many_fields_is_never_seen_as_a_draft() -> None:
    before = Wide(1, "a")
    quicken(Wide)
    after = Wide(1, draft="a")
    assert (
        type(after) is Wide
        and after == before
        and repr(after) == repr(before)
        and after.many is not before.many
    )
    changed = with_changes(after, {"make": Amount(9)})
    assert (
        type(changed) is Wide
        and changed == dataclasses.replace(before, make=Amount(9))
        and after.make == 3
    )
    assert copy.copy(after) == after
    for value in (after, changed):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.kind = 2  # type: ignore[misc]
        with pytest.raises((AttributeError, TypeError)):
            value.other = 2  # type: ignore[attr-defined]


def test_values_are_the_same_and_stay_frozen() -> None:
    before = Outer(Inner(Amount(1)), Loose(2))
    quicken(Outer)
    after = Outer(inner=Inner(Amount(1)), loose=Loose(2))
    assert before == after and repr(before) == repr(after)
    assert Outer.__init__.__name__ == Inner.__init__.__name__ == "quick_init"
    assert after.many is not Outer(Inner(Amount(1)), Loose(2)).many
    assert dataclasses.replace(after, many=[1]).many == [1] and hash(Inner(Amount(1))) == hash(
        before.inner
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.many = []  # type: ignore[misc]
    with pytest.raises(
        TypeError, match=r"Outer\.__init__\(\) missing 1 required positional argument: 'loose'"
    ):
        Outer(Inner(Amount(1)))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected"):
        Outer(Inner(Amount(1)), Loose(2), more=1)  # type: ignore[call-arg]


def test_a_changed_copy_is_as_of_dataclasses() -> None:
    value = Outer(Inner(Amount(1)), Loose(2), [3])
    assert with_changes(value, {}) == value and with_changes(value, {}) is not value
    assert with_changes(value, {"many": [], "loose": Loose(5)}) == dataclasses.replace(
        value, many=[], loose=Loose(5)
    )
    assert value.many == [3]
    with pytest.raises(KeyError):
        with_changes(value, {"more": 1})
    with pytest.raises(AssertionError):
        with_changes(Checked(1), {"amount": 0})


def test_what_checks_itself_and_what_is_not_frozen_are_left_alone() -> None:
    quicken(Outer)
    assert Checked.__init__.__name__ == Loose.__init__.__name__ == "__init__"
    with pytest.raises(AssertionError):
        Checked(0)


def test_messages_specs_and_envelopes_are_quick() -> None:
    quicken(frames.Frame)
    in_frames = {
        "Assignment",
        "CommitReceipt",
        "CommitSet",
        "Verdict",
        "Accept",
        "Commit",
        "Heartbeat",
    }
    assert {vars(MESSAGE_TYPES[name])["__init__"].__name__ for name in in_frames} == {"quick_init"}
    assert Envelope.__init__.__name__ == JobSpec.__init__.__name__ == "quick_init"
