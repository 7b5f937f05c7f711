"""Results that agree within a tolerance: groups, rivals and the output of a group."""

from random import Random

import pytest

from quorate_protocol.messages import job_spec
from quorate_protocol.messages.job_spec import Compare
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import agreement, verdict
from quorate_protocol.rules.agreement import EXACT, Agreement
from quorate_protocol.rules.verdict import (
    Accepted,
    CannotVerify,
    Execution,
    Limit,
    More,
    Unresolved,
)
from quorate_protocol.units import Address, Comparator, Hash32, Label, Ppm, VerifyTier
from quorate_protocol.values import replace
from support.messages import a_spec


def result(number: int) -> Hash32:
    return Hash32(bytes([number + 1]) * 32)


def on_a_line(*places: int | None) -> tuple[Agreement, list[Hash32 | None]]:
    """Results at places of a line, whose distances are in ppb; None for one that has none."""
    found = {
        (result(i), result(j)): abs(one - other)
        for i, one in enumerate(places)
        for j, other in enumerate(places)
        if i < j and one is not None and other is not None
    }
    results = [None if place is None else result(i) for i, place in enumerate(places)]
    return Agreement(1, found), results


def decide(
    *places: int | None, cap: int = 7, is_exhausted: bool = False, label: Label = Label.QUORUM_2
) -> verdict.Decision:
    known, results = on_a_line(*places)
    runs = [
        Execution(result(i), Address(bytes([i]) * 20), found, 1_000)
        for i, found in enumerate(results)
    ]
    return verdict.decide(label, VerifyTier.LEAN, runs, cap, is_exhausted, agreement=known)


@pytest.mark.rule("5.159")
def test_in_a_group_each_pair_agrees() -> None:
    """Three honest results near 0, and attackers each 0.9 tolerances from the next."""
    known, results = on_a_line(0, 10, 20, 900, 1800, 2700)
    first, *others = agreement.groups(known, results)
    assert first == (0, 1, 2, 3) and (3, 4) in others and (4, 5) in others
    assert agreement.in_order(known, results, first) == (1, 0, 2, 3)
    assert agreement.rivals(known, results, first) == [(5,)], (
        "1,800 is less than two tolerances from 0"
    )


@pytest.mark.parametrize("seed", range(50))
def test_two_colluding_owners_move_an_output_by_a_tolerance_at_most(seed: int) -> None:
    random = Random(seed)
    honest = random.randint(0, 1000)
    others = random.sample(range(honest - 1000, honest + 1001), 2)
    decision = decide(*others, honest)
    assert isinstance(decision, Accepted)
    if 2 in decision.group:
        places = [*others, honest]
        assert abs(places[decision.group[0]] - honest) <= 1000


def test_of_equal_groups_the_one_whose_members_come_first_is_taken() -> None:
    known, results = on_a_line(0, 1500, 750)
    assert agreement.groups(known, results) == [(0, 2), (1, 2)]
    assert agreement.in_order(known, results, (0, 2)) == (0, 2)


def test_without_distances_equal_results_agree() -> None:
    results = [result(0), result(1), None, result(0)]
    assert agreement.groups(EXACT, results) == [(0, 3), (1,)]
    assert agreement.rivals(EXACT, results, (0, 3)) == [(1,)]
    assert agreement.different(EXACT, results) == 2
    assert agreement.in_order(EXACT, results, (0, 3)) == (0, 3)


def test_with_a_tolerance_of_zero_only_numbers_that_are_equal_agree() -> None:
    known = Agreement(0, {(result(0), result(1)): 0, (result(0), result(2)): 5})
    assert agreement.groups(known, [result(i) for i in range(3)]) == [(0, 1), (2,)]
    assert known.differs(result(0), result(2)) and known.differs(result(1), result(2))
    assert not known.differs(result(0), result(1))


def test_seven_results_of_which_no_two_agree() -> None:
    known, results = on_a_line(*range(0, 7 * 1500, 1500))
    assert agreement.groups(known, results) == [(i,) for i in range(7)]
    assert agreement.different(known, results) == 7
    assert decide(*range(0, 7 * 1500, 1500)) == Unresolved(Limit.PROGRAM)
    assert isinstance(decide(0, 1500, 3000, 4500), More), "neighbours may be noise of one result"
    assert decide(0, 1500, 3000, 4500, 6000) == Unresolved(Limit.PROGRAM)
    assert decide(*range(0, 7000, 1000)) == Accepted((0, 1), ()), "each agrees with the next one"


def test_nobody_is_at_fault_for_another_result_and_silence_still_is() -> None:
    assert decide(0, 5000, 900, None) == Accepted((0, 2), (3,))


@pytest.mark.rule("5.158")
@pytest.mark.parametrize("label", [Label.QUORUM_2, Label.ADAPTIVE])
def test_between_one_and_two_tolerances_another_execution_decides(label: Label) -> None:
    assert decide(0, 1000, label=label) == Accepted((0, 1), ())
    for apart in (1001, 1999, 2000, 9000):
        assert isinstance(decide(0, apart, label=label), More)


def test_a_result_between_is_no_rival_and_one_beyond_is() -> None:
    """Under the adaptive rule a rival of the same trust keeps two that agree from winning."""
    assert decide(0, 100, 1999, label=Label.ADAPTIVE) == Accepted((0, 1), ())
    known, results = on_a_line(0, 100, 2200)
    runs = [Execution(result(i), Address(bytes([i]) * 20), results[i], 200_000) for i in range(3)]
    rule = Label.ADAPTIVE, VerifyTier.LEAN
    assert isinstance(verdict.decide(*rule, runs, 7, False, agreement=known), More)


def test_where_nobody_is_left_the_end_follows_from_how_many_agree() -> None:
    assert decide(0, 1500, is_exhausted=True) == Unresolved(Limit.MARKET)
    assert decide(0, 1500, 3000, is_exhausted=True) == Unresolved(Limit.PROGRAM)
    assert decide(0, None, is_exhausted=True) == CannotVerify()
    assert decide(0, 1500, cap=2) == Unresolved(Limit.CLIENT)


@pytest.mark.rule("3.76")
@pytest.mark.parametrize(
    "compare, field",
    [
        (Compare(Comparator.IMAGE), "compare.comparator"),
        (Compare(tolerance_ppm=Ppm(1)), "compare: exact"),
        (Compare(include=("*.npy",)), "compare: exact"),
        (Compare(Comparator.NUMERIC, tolerance_ppm=Ppm(100_001)), "compare.tolerancePpm"),
        (Compare(Comparator.NUMERIC, ()), "compare.include"),
        (Compare(Comparator.NUMERIC, tuple(f"{i}" for i in range(17))), "compare.include"),
        (Compare(Comparator.NUMERIC, ("a", "a")), "compare.include"),
        (Compare(Comparator.TEXT, ("",)), "compare.include"),
        (Compare(Comparator.TEXT, ("x" * 257,)), "compare.include"),
        (Compare(Comparator.TEXT, ("a\nb",)), "compare.include"),
    ],
)
def test_a_spec_with_another_way_of_comparing_is_refused(compare: Compare, field: str) -> None:
    with pytest.raises(Refused, match=field):
        job_spec.validate(replace(a_spec("plain"), compare=compare))


def test_outputs_that_are_opened_to_compare_them_are_bounded() -> None:
    compare = Compare(Comparator.NUMERIC, ("*.npy",), Ppm(100))
    spec = replace(a_spec("plain"), compare=compare)
    job_spec.validate(spec)
    large = replace(spec.resources, output_bytes=job_spec.COMPARED_BYTES_MAX + 1)
    with pytest.raises(Refused, match=r"resources\.outputBytes"):
        job_spec.validate(replace(spec, resources=large))
