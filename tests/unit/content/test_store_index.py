"""Tests the store's index.

Kept sums equal recomputed sums. A full store unpins what its owners hold beyond their weight (their
share of the store).
"""

import random
import sqlite3
from pathlib import Path

import pytest

from quorate_content.dag.cid import raw_cid
from quorate_content.dag.disk_tree import Nodes
from quorate_content.store.index import OBJECT_BYTES_MIN, Index, Owner, PinNeed
from quorate_content.store.store_files import NODES_HELD_BYTES, NodeCache
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32
from support.clocks import SetClock

KIB, MIB = 1024, 1 << 20
QUOTA = 8 * MIB
OWNERS = ("a", "b", "c")


def name(number: int) -> str:
    return f"cid-{number:03d}"


def store(index: Index, number: int, size: int) -> None:
    """Adds an object as if its work had just been published."""
    index.add(name(number), number.to_bytes(32, "big"), size, size, f"work-{number}")


def slow_sums(path: Path, now: float) -> tuple[dict[str, int], int]:
    """Recomputes the sums by owner and of the whole store from the rows."""
    base = sqlite3.connect(path)
    owned: dict[str, int] = {}
    for owner, stored in base.execute(
        "select owner, stored from pin join object using(cid) where until > ?", (now,)
    ):
        owned[owner] = owned.get(owner, 0) + max(stored, OBJECT_BYTES_MIN)
    for owner, size in base.execute("select owner, bytes from reservation"):
        owned[owner] = owned.get(owner, 0) + size
    used = sum(
        row[0]
        for row in base.execute("select stored from object union all select bytes from reservation")
    )
    pinned = dict(
        base.execute(
            "select cid, count(*) from pin where until > ? group by cid", (now,)
        ).fetchall()
    )
    kept = dict(base.execute("select cid, pins from object where pins > 0").fetchall())
    assert kept == pinned
    base.close()
    return {owner: held for owner, held in owned.items() if held}, used


def one_step(index: Index, clock: SetClock, dice: random.Random) -> None:
    number, owner = dice.randrange(24), Owner(dice.choice(OWNERS), weight=dice.randrange(1, 9))
    match dice.randrange(9):
        case 0 | 1:
            store(
                index, number, (0, 10, 100 * KIB, 700 * KIB)[number % 4]
            )  # content under a CID never changes
        case 2 | 3:
            if index.find(name(number)) is not None:
                index.pin(
                    name(number),
                    owner,
                    dice.choice((None, clock.at + 5, clock.at + 50)),
                    QUOTA // 2,
                )
        case 4:
            index.unpin(name(number), owner.name)
        case 5:
            index.forget(name(number))
        case 6:
            index.reserve(
                f"work-{number}", owner, dice.choice((0, 1, 200 * KIB)), QUOTA, QUOTA // 2
            )
        case 7:
            index.release(f"work-{number}")
        case _:
            clock.at += dice.randrange(20)


@pytest.mark.parametrize("seed", range(4))
def test_kept_sums_equal_recomputed_sums(tmp_path: Path, seed: int) -> None:
    clock, dice, path = SetClock(1_000.0), random.Random(seed), tmp_path / "index.sqlite"
    index = Index(path, clock)
    for step in range(200):
        one_step(index, clock, dice)
        if step % 5 == 0:
            owned = {owner: held for owner, held in index.owned().items() if held}
            assert (owned, index.used()) == slow_sums(path, clock.at)
        if step % 60 == 59:
            index.close()
            base = sqlite3.connect(path)
            base.execute("update total set bytes = 7")  # as after damage
            base.execute("update owner set bytes = bytes + 1")
            base.commit()
            base.close()
            index = Index(path, clock)
    index.close()


def test_the_cost_of_a_pin_does_not_grow_with_the_number_of_pins(tmp_path: Path) -> None:
    """Counts SQLite's steps for one more pin, with ten and with three thousand pins."""
    index = Index(tmp_path / "index.sqlite", SetClock(1_000.0))
    owner, steps = Owner("a", 1 << 40), [0]

    def count() -> int:
        steps[0] += 1
        return 0

    def price(number: int) -> int:
        steps[0] = 0
        index._base.set_progress_handler(count, 1)
        store(index, number, 10)
        assert index.reserve("work", owner, 10, 1 << 40, 1 << 40) == 0
        index.release("work")
        assert index.pin(name(number), owner, None, 1 << 40)
        index._base.set_progress_handler(None, 1)
        return steps[0]

    for number in range(10):
        store(index, number, 10)
        index.pin(name(number), owner, None, 1 << 40)
    few = price(10)
    index._base.execute("begin")
    for number in range(11, 3_000):
        index._base.execute(
            "insert into object values(?, ?, 10, 10, 0, 0)",
            (name(number), number.to_bytes(32, "big")),
        )
        index._base.execute("insert into pin values(?, 'a', 9e18, 65536)", (name(number),))
    index._base.execute("commit")
    many = price(3_000)
    assert index.owned()["a"] == 3_001 * OBJECT_BYTES_MIN
    assert many <= 2 * few, (few, many)
    index.close()


def test_the_owner_with_most_for_its_weight_loses_its_oldest_pins_first(tmp_path: Path) -> None:
    clock = SetClock(1_000.0)
    index = Index(tmp_path / "index.sqlite", clock)
    for number in range(8):
        store(index, number, MIB)
        rich = number < 4
        assert index.pin(
            name(number),
            Owner("rich", weight=100) if rich else Owner("poor", weight=1),
            clock.at + 100 + number,
            QUOTA,
        )
    nobody_uses = lambda cid: PinNeed.NONE  # noqa: E731
    assert index.reclaim_pins(Owner("asker", weight=50), 2 * MIB, QUOTA, nobody_uses) == 2 * MIB
    assert [entry.cid for entry in index.idle(9)] == [name(4), name(5)], (
        "of the one with little money, those that end first"
    )
    assert index.reclaim_pins(Owner("asker", weight=1), 2 * MIB, QUOTA, nobody_uses) == 0, (
        "who has as little takes nothing from it"
    )
    assert (
        index.reclaim_pins(Owner("asker", weight=1 << 39), 8 * MIB, QUOTA, nobody_uses) == 6 * MIB
    )
    assert index.owned() == {}
    index.close()


def test_content_in_use_is_unpinned_only_beyond_its_owners_share(tmp_path: Path) -> None:
    clock = SetClock(1_000.0)
    index = Index(tmp_path / "index.sqlite", clock)
    for number in range(8):
        store(index, number, MIB)
        assert index.pin(
            name(number),
            Owner("a" if number < 4 else "dust", weight=4 if number < 4 else 1),
            clock.at + 100,
            QUOTA,
        )
    uses_all = lambda cid: PinNeed.USED  # noqa: E731
    # Weights 4, 1 and 3 of 8 MiB: a may use 4, dust 1, the asker 3.
    assert index.reclaim_pins(Owner("asker", weight=3), 3 * MIB, QUOTA, uses_all) == 3 * MIB
    assert index.reclaim_pins(Owner("asker", weight=3), MIB, QUOTA, uses_all) == 0
    assert index.owned() == {"a": 4 * MIB, "dust": MIB}
    index.close()


def test_promised_content_is_never_unpinned(tmp_path: Path) -> None:
    clock = SetClock(1_000.0)
    index = Index(tmp_path / "index.sqlite", clock)
    for number in range(8):
        store(index, number, MIB)
        assert index.pin(name(number), Owner("dust"), clock.at + 100 + number, QUOTA)
    promised = lambda cid: PinNeed.PROMISED if cid in (name(0), name(1)) else PinNeed.USED  # noqa: E731
    assert index.reclaim_pins(Owner("asker", weight=1 << 39), 8 * MIB, QUOTA, promised) == 6 * MIB
    assert index.owned() == {"dust": 2 * MIB} and not {name(0), name(1)} & {
        entry.cid for entry in index.idle(9)
    }
    index.close()


def test_a_failing_database_is_unavailable(tmp_path: Path) -> None:
    """A full disk can show in any statement. The caller must get `Unavailable`, which is
    retried.
    """
    index = Index(tmp_path / "index.sqlite", SetClock(1_000.0))
    base = sqlite3.connect(tmp_path / "index.sqlite")
    for table in ("pin", "object", "reservation"):
        base.execute(f"drop table {table}")
    base.commit()
    base.close()
    for call in (
        lambda: index.touch("x"),
        lambda: index.find("x"),
        lambda: index.unpin("x", "a"),
        lambda: index.unpin_all("a"),
        lambda: index.release("x"),
        lambda: index.is_pinned("x"),
        lambda: index.pin("x", Owner("a"), None, 1),
    ):
        with pytest.raises(Unavailable, match="the store's index"):
            call()
    index.close()


def test_nodes_are_loaded_once_and_those_read_longest_ago_are_dropped() -> None:
    cache, loaded = NodeCache(), []
    large = {Hash32(bytes(32)): bytes(NODES_HELD_BYTES // 2)}

    def read(name: bytes, nodes: Nodes) -> None:
        def load() -> Nodes:
            loaded.append(name)
            return nodes

        assert cache.get(raw_cid(name), load) is not None

    for name in (b"a", b"b", b"a", b"b"):
        read(name, {Hash32(bytes(32)): name})
    assert loaded == [b"a", b"b"]
    for name in (b"c", b"a", b"d", b"a", b"c"):
        read(name, large)
    assert loaded == [b"a", b"b", b"c", b"d", b"c"], "two large ones do not fit"
