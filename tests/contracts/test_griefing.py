"""I11: no act costs honest accounts more than its authors, but for those that are admitted."""

import pytest

from contracts import griefing_jobs, griefing_money
from contracts.griefing import GWEI
from quorate_protocol.limits import USD

ACTS = griefing_money.ACTS | griefing_jobs.ACTS
ADMITTED = griefing_money.ADMITTED | griefing_jobs.ADMITTED


@pytest.mark.rule("5.140")
@pytest.mark.parametrize("name", ACTS)
def test_no_act_on_money_costs_the_honest_more_than_its_author(name: str) -> None:
    act = ACTS[name]()
    assert max(act.ratio(gwei) for gwei in GWEI) <= 1


@pytest.mark.parametrize("name", ADMITTED)
def test_what_is_admitted_is_bounded(name: str) -> None:
    bound, play = ADMITTED[name]
    assert 0 < play().loss(0) <= bound / USD
