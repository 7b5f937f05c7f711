"""Tests append-only logs of credits: each entry has a proof, and nothing else has.

To append costs the same after a million entries.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.codec.merkle import Inclusion, Log, is_included, prove
from quorate_protocol.units import ZERO_HASH, Hash32
from quorate_protocol.values import replace


def entries_of(count: int) -> list[Hash32]:
    return [hash_tuple("entry", number) for number in range(count)]


def log_of(entries: list[Hash32]) -> Log:
    log = Log()
    for entry in entries:
        log = log.append(entry)
    return log


@pytest.mark.rule("0.8")
@given(st.integers(1, 70), st.data())
def test_every_entry_is_shown_and_no_other(count: int, data: st.DataObject) -> None:
    entries = entries_of(count)
    root = log_of(entries).root()
    index = data.draw(st.integers(0, count - 1))
    shown = prove(entries, index)
    assert is_included(root, entries[index], shown)
    assert not is_included(root, hash_tuple("other"), shown)
    assert not is_included(hash_tuple("root"), entries[index], shown)
    for wrong in spoiled(shown):
        assert not is_included(root, entries[index], wrong), wrong


def spoiled(shown: Inclusion) -> list[Inclusion]:
    """Returns wrong proofs: for other positions and counts near by, and with a hash more, less
    or changed.
    """
    found = [
        replace(shown, index=index) for index in range(-1, shown.count + 2) if index != shown.index
    ]
    found += [
        replace(shown, count=count)
        for count in range(-1, 2 * shown.count + 2)
        if count != shown.count
    ]
    found += [
        replace(shown, siblings=(*shown.siblings, ZERO_HASH)),
        replace(shown, other_peaks=(*shown.other_peaks, ZERO_HASH)),
    ]
    found += [replace(shown, siblings=shown.siblings[1:])] if shown.siblings else []
    found += (
        [replace(shown, other_peaks=(ZERO_HASH, *shown.other_peaks[1:]))]
        if shown.other_peaks
        else []
    )
    return found


def test_roots_of_different_logs_differ() -> None:
    entries = entries_of(12)
    roots = [log_of(entries[:count]).root() for count in range(13)]
    roots += [
        log_of(entries[::-1]).root(),
        log_of([*entries, entries[0]]).root(),
        log_of([entries[1], entries[0]]).root(),
    ]
    assert len(set(roots)) == len(roots) and roots[0] == ZERO_HASH


def test_a_log_stays_small() -> None:
    log = log_of(entries_of(5_000))
    assert log.count == 5_000 and len(log.peaks) == (5_000).bit_count()
