"""What `quorate check` says to write into a job: a comparator and its tolerance, or why none."""

from pathlib import Path

import pytest

from quorate.cli.check import Advice, advise
from quorate.programs.local_check import LocalCheck, LocalRun
from quorate_content.comparators.report import DIFFERENT, Difference, tolerance_ppm

PPM = 1000  # in ppb


def checked(second_cid: str = "bafyone", exit_status: int = 0, refusal: str = "") -> LocalCheck:
    first = LocalRun("bwrap", 0, Path("/1"), "bafyone", b"", 5)
    second = LocalRun("bwrap", exit_status, Path("/2"), second_cid, b"", 5, refusal)
    return LocalCheck(first, second, ())


def apart(*distances: int) -> tuple[Difference, ...]:
    return tuple(Difference(f"{place}.npy", "", ppb) for place, ppb in enumerate(distances))


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ((), 0),
        ((1,), 1),  # rounded up
        ((100 * PPM,), 150),
        ((10 * PPM, 100 * PPM), 150),
        ((*[100 * PPM] * 199, 120 * PPM), 150),  # the percentile is not the largest
        ((*[100 * PPM] * 199, 900 * PPM), 900),  # the two outputs agree nevertheless
    ],
)
def test_the_tolerance_is_half_as_much_again_as_the_99th_percentile(
    distances: tuple[int, ...], expected: int
) -> None:
    assert tolerance_ppm(distances) == expected


@pytest.mark.parametrize(
    ("found", "distances", "expected"),
    [
        (checked(), (), Advice("exact")),
        (checked("bafytwo"), apart(100 * PPM, 50 * PPM), Advice("numeric", 150)),
        (checked("bafytwo"), (), Advice("numeric", 0)),  # folders alone differ
    ],
)
def test_the_strictest_comparator_that_lets_both_agree_is_advised(
    found: LocalCheck, distances: tuple[Difference, ...], expected: Advice
) -> None:
    assert advise(found, distances) == expected


@pytest.mark.parametrize(
    ("found", "distances", "reason"),
    [
        (checked("bafytwo"), None, "their distance is not known"),
        (checked("bafytwo"), apart(DIFFERENT, PPM), "0.npy: more than its numbers differ"),
        (checked("bafytwo"), apart(90_000 * PPM), "135000 ppm would let wrong results agree"),
        (checked(exit_status=3), (), "exited with 3"),
        (checked(refusal="over 1 GB"), (), "its outputs were refused: over 1 GB"),
    ],
)
def test_no_comparator_is_advised_for_what_none_can_accept(
    found: LocalCheck, distances: tuple[Difference, ...] | None, reason: str
) -> None:
    advice = advise(found, distances)
    assert advice.compare == "" and advice.tolerance_ppm == 0 and reason in advice.reason
