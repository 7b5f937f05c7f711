"""Tests proofs of the eligible list: each index has a proof of its entry, and of no other entry."""

from itertools import combinations

import pytest

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.codec.merkle import FullLog, Log, is_included
from quorate_protocol.messages.eligible_list import EligibleList, ShownSlot, joined, place_in
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.units import ZERO_HASH, Address, BlockNumber, Hash32
from quorate_protocol.values import replace


def slot(index: int, owner: int = 0) -> StakeSlot:
    party = Address(bytes([owner + 1]) * 20)
    return StakeSlot(index, party, party, party, hash_tuple("network", owner), BlockNumber(1))


@pytest.mark.rule("2.22", "3.11")
@pytest.mark.parametrize("length", range(1, 8))
def test_every_index_of_every_small_list_is_proven(length: int) -> None:
    whole = [slot(index) for index in range(length)]
    roots = set()
    for count in range(length + 1):
        for chosen in combinations(whole, count):
            made = EligibleList(chosen, length)
            roots.add(made.root)
            shown = made.show(range(length))
            assert [item.slot for item in shown] == [
                item if item in chosen else None for item in whole
            ]
            assert all(item.is_under(made.root) for item in shown)
            for item in shown:
                other = None if item.slot is not None else whole[item.proof.index]
                assert not ShownSlot(other, item.proof).is_under(made.root), (
                    "an index is what it is, and nothing else"
                )
    assert len(roots) == 2**length, "another list, another root"


@pytest.mark.rule("5.16")
def test_the_lists_of_several_pools_are_one_list_whose_indices_go_on() -> None:
    lists = [
        tuple(slot(index, owner) for index in range(length))
        for owner, length in ((3, 2), (5, 0), (7, 3))
    ]
    whole = joined(lists)
    assert [item.index for item in whole] == list(range(5))
    assert joined(lists[:1]) is lists[0], "one list stays as it is"
    lengths = [len(listed) for listed in lists]
    for item in whole:
        number, place = place_in(lengths, item.index)
        assert replace(item, index=place) == lists[number][place]
    with pytest.raises(IndexError):
        place_in(lengths, 5)


@pytest.mark.rule("5.16")
def test_a_proof_holds_for_its_index_entry_and_list_only() -> None:
    made = EligibleList([slot(index) for index in range(11) if index % 3], 11)
    for item in made.show(range(11)):
        proof = item.proof
        assert not replace(item, proof=replace(proof, index=proof.index + 1)).is_under(made.root)
        assert not replace(item, proof=replace(proof, count=12)).is_under(made.root)
        assert not item.is_under(EligibleList(made.slots, 12).root), (
            "the root fixes the list's length"
        )
        for number in range(len(proof.siblings)):
            siblings = (*proof.siblings[:number], ZERO_HASH, *proof.siblings[number + 1 :])
            assert siblings == proof.siblings or not replace(
                item, proof=replace(proof, siblings=siblings)
            ).is_under(made.root)
    (shown,) = made.show([4])
    assert shown.slot is not None
    changes = (
        {"index": 5},
        {"owner": Address(b"\x09" * 20)},
        {"operator_key": Address(b"\x09" * 20)},
        {"payout": Address(b"\x09" * 20)},
        {"network": Hash32(b"\x09" * 32)},
        {"active_from": BlockNumber(2)},
        {"active_until": BlockNumber(9)},
    )
    for change in changes:
        assert not replace(shown, slot=replace(shown.slot, **change)).is_under(made.root), (
            f"{change} is not bound"
        )  # type: ignore[arg-type]


def test_a_list_made_from_another_is_the_same() -> None:
    before = EligibleList([slot(index) for index in range(13) if index != 5], 13)
    for gone in range(13):
        slots = [slot(index, owner=1 if index == 7 else 0) for index in range(13) if index != gone]
        after = EligibleList(slots, 13, before)
        assert after.root == EligibleList(slots, 13).root
        assert all(item.is_under(after.root) for item in after.show(range(13)))
    assert all(item.is_under(before.root) for item in before.show(range(13))), (
        "what it was made from is as it was"
    )
    assert EligibleList((), 0).root == ZERO_HASH and EligibleList((), 0).show(()) == ()


def test_a_log_that_keeps_all_entries_has_the_same_root() -> None:
    entries = [hash_tuple("entry", number) for number in range(33)]
    log = Log()
    for count in range(1, 34):
        log = log.append(entries[count - 1])
        full = FullLog(entries[:count])
        assert full.root() == log.root() and len(full) == count
        for index in {0, count // 2, count - 1}:
            assert is_included(log.root(), entries[index], full.prove(index))
            other = [*entries[:index], ZERO_HASH, *entries[index + 1 : count]]
            assert full.changed({index: ZERO_HASH}).root() == FullLog(other).root()


def test_slots_are_counted_by_owner() -> None:
    made = EligibleList([slot(index, owner=index % 2) for index in range(5)], 6)
    assert [made.count_of(Address(bytes([owner + 1]) * 20)) for owner in range(3)] == [3, 2, 0]
    assert made.get(5) is None and made.get(4) == slot(4)
