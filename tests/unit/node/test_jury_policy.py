"""Tests which jury duties a provider takes."""

import pytest

from quorate_node.core import effects, events, jury_duty
from quorate_node.core.jury_duty import Voting, Waiting
from quorate_node.core.provider_core import ProviderCore
from quorate_protocol.limits import DAY
from quorate_protocol.units import ZERO_HASH, Price
from quorate_protocol.values import replace
from support.markets.provider_world import (
    NOW,
    PROVIDER,
    Driver,
    case_names,
    case_opened,
    jury_drawn,
    make_spec,
    make_terms,
)

RUN = 36
PAY = 1_000  # for RUN: 0.10 USD an hour


def juror(slots: int = 1, **policy: object) -> Driver:
    terms = make_terms(slots)
    return Driver(ProviderCore(replace(terms, policy=replace(terms.policy, **policy))))


def drawn(driver: Driver, number: int = 1, seconds: int = 300) -> tuple[effects.Effect, ...]:
    """Opens a case and draws the provider as a juror, which must vote `seconds` later."""
    driver.do(case_opened(number, max_duration=RUN, pay=PAY))
    return driver.do(jury_drawn(PROVIDER, number=number, vote_by=driver.now + seconds))


def check_void(driver: Driver, due: tuple[effects.Effect, ...], number: int, why: str) -> None:
    """Checks that the juror votes void, says why, and can open its ballot."""
    execution, case = case_names(number)
    (vote,) = due
    duty = driver.core.jury[case]
    assert isinstance(duty.phase, Voting) and why in duty.declined
    assert duty.phase.digest == ZERO_HASH and duty.phase.salt != ZERO_HASH
    ballot = jury_duty.ballot(execution, PROVIDER, duty.phase.salt, ZERO_HASH)
    assert vote == effects.SendVote(case, execution, (PROVIDER,), ballot)


@pytest.mark.rule("5.147")
@pytest.mark.parametrize(("price", "is_taken"), [(100_000, True), (100_001, False)])
def test_a_juror_works_for_its_price_and_votes_void_below(price: int, is_taken: bool) -> None:
    driver = juror(jury_price=Price(price))
    due = drawn(driver)
    if is_taken:
        assert isinstance(due[0], effects.Reexecute)
        assert not driver.core.jury[case_names(1)[1]].declined
    else:
        check_void(driver, due, 1, "--jury-price")


@pytest.mark.rule("5.147")
def test_a_juror_judges_so_many_cases_a_day() -> None:
    driver = juror(slots=4, jury_slots=4, jury_cases=2)
    drawn(driver, 1)
    drawn(driver, 2)
    check_void(driver, drawn(driver, 3), 3, "--jury-cases")
    driver.do(events.Tick(), after=DAY)
    assert isinstance(drawn(driver, 4)[0], effects.Reexecute)


@pytest.mark.rule("5.147")
def test_juries_take_as_many_slots_as_the_owner_says() -> None:
    driver = juror(slots=3, jury_slots=1)
    assert len(drawn(driver, 1)) == 1 and drawn(driver, 2) == ()
    assert isinstance(driver.core.jury[case_names(2)[1]].phase, Waiting)
    assert driver.core.free_slots()[0].free == 2, "two slots are left to customers"
    none = juror(jury_slots=0)
    check_void(none, drawn(none), 1, "no room")


@pytest.mark.rule("5.147", "I2")
def test_jury_duty_ends_no_customers_lease_and_votes_void_in_time() -> None:
    """The only slot is a customer's until a part of the voting window is left to send the vote."""
    driver = juror()
    lease = driver.assign(spec=make_spec(max_duration=600))
    assert drawn(driver) == ()
    duty = driver.core.jury[case_names(1)[1]]
    assert isinstance(duty.phase, Waiting)
    window = driver.core.terms.limits.jury_window
    assert duty.begin_by == NOW + 300 - window // 4
    driver.do(events.AcceptDelivered(lease))
    driver.do(events.InputsFetched(lease))
    driver.do(events.TaskStarted(lease))
    due = driver.do(events.Tick(), after=duty.begin_by - driver.now)
    check_void(driver, due, 1, "no run slot")
    assert driver.execution(lease).occupies_slot
