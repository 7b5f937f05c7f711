"""Followers of a table: who is told of which rows."""

from quorate_protocol.tables import Table, Tables


class _State(Tables):
    def __init__(self) -> None:
        self.rows: Table[str, int] = Table(str, int)


def _is_other_decade(before: int, after: int) -> bool:
    return before // 10 != after // 10


def test_a_choosy_follower_hears_what_matters_to_it() -> None:
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
    assert every == {"a", "b"} and some == {"b"}, "it changed and changed back: whoever looked in between must look again"
    some.clear()
    with state.transaction():
        del state.rows["a"]
    assert some == {"a"}, "a row that is gone"


def test_what_is_rolled_back_or_loaded_matters_always() -> None:
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
