"""Tests which jury duties a provider takes."""

import pytest

from quorate_node.core import effects, events
from quorate_node.core.juries import jury_duty
from quorate_node.core.juries.jury_duty import Repeating, Voting, Waiting
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import Policy
from quorate_protocol.limits import DAY
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Hash32,
    Nonce,
    Price,
    Seconds,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.provider_world import HOST, NOW, PROVIDER, Driver, make_spec, make_terms

ACCUSED = Address(b"\x99" * 20)
SPECS = (Hash32(b"\x01" * 32), Hash32(b"\x02" * 32))
RUN = Seconds(36)
PAY = Amount(1_000)  # for RUN: 0.10 USD an hour


def juror(slots: int = 1, **policy: object) -> Driver:
    """Returns a provider with this policy of its owner."""
    terms = make_terms(slots)
    return Driver(ProviderCore(replace(terms, policy=replace(terms.policy, **policy))))


def drawn(driver: Driver, number: int = 1, seconds: int = 300) -> tuple[effects.Effect, ...]:
    """Opens a case and draws the provider as a juror, which must vote `seconds` later."""
    named = tuple(events.CaseExecution(spec, HOST.id(), RUN, PAY) for spec in SPECS)
    driver.do(events.ChainCaseOpened(Nonce(number), ACCUSED, named))
    vote_by = UnixSeconds(driver.now + seconds)
    return driver.do(events.ChainJuryDrawn(Nonce(number), (PROVIDER,), vote_by))


def check_void(driver: Driver, due: tuple[effects.Effect, ...], number: int, why: str) -> None:
    """Checks that the juror votes void on the whole case, says why, and can open its ballot."""
    case = Nonce(number)
    (vote,) = due
    duty = driver.core.jury[case]
    assert isinstance(duty.phase, Voting) and why in duty.declined
    assert duty.phase.digests == (ZERO_HASH, ZERO_HASH) and duty.phase.salt != ZERO_HASH
    assert vote == effects.SendVote(
        case, jury_duty.ballot(case, PROVIDER, duty.phase.salt, duty.phase.digests)
    )


@pytest.mark.rule("5.125")
@pytest.mark.parametrize(("price", "is_taken"), [(100_000, True), (100_001, False)])
def test_a_juror_works_for_its_price_and_votes_void_below(price: int, is_taken: bool) -> None:
    driver = juror(jury_price=Price(price))
    due = drawn(driver)
    if is_taken:
        assert isinstance(due[0], effects.Reexecute) and not driver.core.jury[Nonce(1)].declined
    else:
        check_void(driver, due, 1, "--jury-price")


@pytest.mark.rule("5.125")
def test_a_juror_judges_so_many_cases_a_day() -> None:
    driver = juror(slots=4, jury_slots=4, jury_cases=2)
    drawn(driver, 1)
    drawn(driver, 2)
    check_void(driver, drawn(driver, 3), 3, "--jury-cases")
    driver.do(events.Tick(), after=DAY)
    assert isinstance(drawn(driver, 4)[0], effects.Reexecute)


@pytest.mark.rule("5.125")
def test_juries_take_as_many_slots_as_the_owner_says() -> None:
    driver = juror(slots=3, jury_slots=1)
    assert len(drawn(driver, 1)) == 1 and drawn(driver, 2) == ()
    assert isinstance(driver.core.jury[Nonce(2)].phase, Waiting)
    assert driver.core.free_slots()[0].free == 2, "two slots are left to customers"
    none = juror(jury_slots=0)
    check_void(none, drawn(none), 1, "no room")


@pytest.mark.rule("5.125", "I2")
def test_jury_duty_ends_no_customers_lease_and_votes_void_in_time() -> None:
    """The only slot is a customer's until a part of the voting window is left to send the vote."""
    driver = juror()
    lease = driver.assign(spec=make_spec(max_duration=600))
    assert drawn(driver) == ()
    duty = driver.core.jury[Nonce(1)]
    assert isinstance(duty.phase, Waiting)
    window = driver.core.terms.limits.jury_window
    assert duty.begin_by == NOW + 300 - window // 4
    driver.do(events.AcceptDelivered(lease))
    driver.do(events.InputsFetched(lease))
    driver.do(events.TaskStarted(lease))
    due = driver.do(events.Tick(), after=duty.begin_by - driver.now)
    check_void(driver, due, 1, "no run slot")
    assert driver.execution(lease).occupies_slot


def test_a_policy_of_an_old_journal_takes_cases() -> None:
    assert Policy(Price(0), (), ()).jury_cases > 0
    driver = juror()
    named = (events.CaseExecution(SPECS[0], HOST.id()),) * 2
    driver.do(events.ChainCaseOpened(Nonce(1), ACCUSED, named))
    driver.do(events.ChainJuryDrawn(Nonce(1), (PROVIDER,), UnixSeconds(NOW + 60)))
    assert isinstance(driver.core.jury[Nonce(1)].phase, Repeating)
