"""Tests that tables behave like dicts whose uncommitted writes can be dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from quorate_protocol.codec.tables import Table, Tables
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Amount, Hash32


class Open(Struct, frozen=True, tag=True):
    amount: Amount


class Shut(Struct, frozen=True, tag=True):
    reason: str | None


class State(Tables):
    def __init__(self) -> None:
        self.accounts: Table[Hash32, Open | Shut] = Table(Hash32, Open | Shut)
        self.names: Table[int, str | None] = Table(int, str | None)
        self.counter: Table[str, int] = Table(str, int)


steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "del", "pop", "commit", "rollback"]),
        st.integers(0, 6),
        st.integers(0, 99),
    ),
    max_size=60,
)


@given(steps)
def test_table_is_a_dict_whose_uncommitted_writes_can_be_dropped(
    script: list[tuple[str, int, int]],
) -> None:
    table: Table[int, int] = Table(int, int)
    now: dict[int, int] = {}
    committed: dict[int, int] = {}
    for what, key, value in script:
        match what:
            case "set":
                table[key] = value
                now[key] = value
            case "del" if key in now:
                del table[key]
                del now[key]
            case "pop":
                assert table.pop(key, None) == now.pop(key, None)
            case "commit":
                table.commit()
                committed = dict(now)
            case "rollback":
                table.rollback()
                now = dict(committed)
            case _:
                pass  # deletes a key that is not there
        assert list(table.items()) == list(now.items())
        assert len(table) == len(now)
        assert [table.get(k) for k in range(7)] == [now.get(k) for k in range(7)]
        assert [k in table for k in range(7)] == [k in now for k in range(7)]
    table.rollback()
    assert list(table.items()) == list(committed.items()) and table.is_clean()


def test_a_refused_transaction_changes_nothing_even_in_order() -> None:
    state = State()
    with state.transaction():
        state.names[1], state.names[2], state.counter["n"] = "a", None, 5
    before = state.snapshot()
    with pytest.raises(KeyError), state.transaction():
        del state.names[1]
        state.names[1] = "moved to the end"
        state.counter["n"] += 1
        state.names.pop(77)
    assert state.snapshot() == before
    assert list(state.names) == [1, 2] and state.counter["n"] == 5


def test_none_is_stored_like_any_value() -> None:
    state = State()
    with state.transaction():
        state.names[3] = None
        assert 3 in state.names and state.names[3] is None and state.names.get(3, "x") is None
    assert 3 in state.names and state.names[3] is None


def test_snapshot_restores_values_unions_and_order() -> None:
    state, other = State(), State()
    with state.transaction():
        for index in (9, 1, 5):
            state.accounts[Hash32(bytes([index]) * 32)] = (
                Open(Amount(2**100)) if index != 1 else Shut(None)
            )
        state.names[10], state.names[2] = "ten", "two"
        state.counter["n"] = -3
    other.restore(state.snapshot())
    assert list(other.accounts.items()) == list(state.accounts.items())
    assert list(other.names) == [10, 2] and other.counter["n"] == -3
    assert other.snapshot() == state.snapshot()


def test_a_snapshot_with_uncommitted_writes_is_a_bug_and_a_foreign_one_is_refused() -> None:
    state = State()
    state.counter["n"] = 1
    with pytest.raises(AssertionError):
        state.snapshot()
    for text in (
        b"{}",
        b"[]",
        b'{"accounts":{},"counter":[],"names":[]}',
        b'{"accounts":[{"key":1}],"counter":[],"names":[]}',
    ):
        with pytest.raises(Refused):
            state.restore(text)


def test_commit_costs_changes_and_not_rows() -> None:
    table: Table[int, int] = Table(int, int)
    for key in range(50_000):
        table[key] = key
    table.commit()
    rows = table._rows
    table[7] = 8
    del table[9]
    table.commit()
    assert table._rows is rows and len(table) == 49_999  # written in place, without a copy


class _State(Tables):
    def __init__(self) -> None:
        self.rows: Table[str, int] = Table(str, int)


def _is_other_decade(before: int, after: int) -> bool:
    return before // 10 != after // 10


def test_a_follower_with_a_filter_is_told_only_of_matching_changes() -> None:
    state = _State()
    every, some = state.rows.follow(), state.rows.follow(_is_other_decade)
    with state.transaction():
        state.rows["a"], state.rows["b"] = 1, 2
    assert every == some == {"a", "b"}, "rows that are new"
    for follower in (every, some):
        follower.clear()
    with state.transaction():
        state.rows["a"], state.rows["b"] = 5, 15
        state.rows["b"] = 3
    assert every == {"a", "b"} and some == {"b"}, (
        "it changed and changed back: a follower that looked in between must look again"
    )
    some.clear()
    with state.transaction():
        del state.rows["a"]
    assert some == {"a"}, "a row that is gone"


def test_a_row_that_is_added_deleted_and_added_again_commits_and_rolls_back() -> None:
    state = _State()
    state.begin()
    state.rows["a"] = 1
    del state.rows["a"]
    state.rows["a"] = 2
    state.commit()
    assert dict(state.rows) == {"a": 2}
    state.begin()
    del state.rows["a"]
    state.rows["a"] = 3
    state.rollback()
    state.begin()
    assert dict(state.rows) == {"a": 2}


def test_a_write_outside_a_transaction_is_noticed() -> None:
    state = _State()
    state.rows["a"] = 1
    with pytest.raises(AssertionError, match="neither committed nor rolled back"):
        state.begin()
    state.rollback()
    state.begin()
    assert not state.rows


def test_a_filter_does_not_apply_to_rollback_and_load() -> None:
    state = _State()
    with state.transaction():
        state.rows["a"] = 1
    some = state.rows.follow(_is_other_decade)
    some.clear()
    state.begin()
    state.rows["a"] = 2
    state.rollback()
    assert some == {"a"}
    some.clear()
    state.restore(state.snapshot())
    assert some == {"a"}
