"""Tests followers of a table: which changed rows each follower is told about."""

import pytest

from quorate_protocol.codec.tables import Table, Tables


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
