"""The simulator's ledger of what parties spend, and what others lose by them (I11)."""

import pytest

from sim.i11 import FLOOR, Ledger, Lost, Paid, Slots, score, summary, violation

ALONE, PAIR = frozenset({"client"}), frozenset({"client", "owner"})


@pytest.mark.rule("I11")
def test_what_a_coalition_pays_inside_is_not_spent() -> None:
    ledger = Ledger([Paid("client", "owner", 900), Paid("client", "coordinator", 100)])
    assert (ledger.cost(ALONE, 0), ledger.cost(PAIR, 0)) == (1000, 100)


def test_what_is_burned_is_spent() -> None:
    assert Ledger([Paid("owner", "", 500)]).cost(PAIR, 0) == 500


def test_gas_counts_at_its_price() -> None:
    ledger = Ledger()
    ledger.transactions["client"] += 2
    assert (ledger.cost(ALONE, 0), ledger.cost(ALONE, 5)) == (0, 2_500_000)


def test_a_member_is_no_victim_and_a_gain_makes_nothing_good() -> None:
    lost = [Lost("owner", "pay", 300), Lost("other", "pay", 400), Lost("third", "pay", -400)]
    ledger = Ledger(lost=lost)
    assert ledger.losses(PAIR).total() == 400


@pytest.mark.parametrize(
    ("loss", "paid", "ratio"), [(FLOOR - 1, 0, 0.0), (FLOOR, 0, FLOOR), (600, 400, 1.5)]
)
def test_the_ratio_begins_at_the_floor(loss: int, paid: int, ratio: float) -> None:
    ledger = Ledger([Paid("client", "other", paid)], [Lost("other", "off offer", loss)])
    assert ledger.ratio(ALONE, 0) == ratio


def test_slots_lose_pay_blocked_time_and_time_off_offer() -> None:
    slots = Slots()
    slots.committed("owner", b"a", 3_600, 10_000)
    slots.occupied("owner", b"a", 3_600, 9)  # it ended with a result, so it was not for nothing
    slots.occupied("owner", b"b", 3_600, 5)
    slots.off_offer("owner", 3_600, 2, 20)
    lost = {item.what: item.amount for item in slots.losses({"owner": 4})}
    assert lost == {"off offer": 40, "pay": 6, "blocked slots": 5}


def test_pay_for_an_uncharged_lease_makes_its_slot_good() -> None:
    slots = Slots()
    slots.occupied("owner", b"b", 3_600, 5)
    assert [item.amount for item in slots.losses({"owner": 5})] == [0, 0]


@pytest.mark.rule("I11")
def test_an_admitted_party_has_a_bound() -> None:
    ledger = Ledger(lost=[Lost("other", "pay", 700)])
    found = score(ledger, "bait", 1, ALONE)
    assert violation(found, {}) is not None
    assert violation(found, {"bait": (700, "why")}) is None
    assert violation(found, {"bait": (699, "why")}) is not None
    assert summary([found], {})["worst_ratio"] == 700
    assert summary([found], {"bait": (700, "why")})["worst_ratio"] == 0.0
