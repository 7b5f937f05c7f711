"""Tests what coordinators owe a provider, and which leases it accepts for that."""

import pytest

from quorate_node.core import events
from quorate_node.core.phases import Accepted, Declined, Revealed
from quorate_node.core.provider_core import ProviderCore
from quorate_protocol.limits import DAY, USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.rules import tabs
from quorate_protocol.units import Amount, DeclineReason, Hash32, Outcome, Sequence, UnixSeconds
from quorate_protocol.values import replace
from support.markets.provider_world import (
    COORDINATOR,
    DOMAIN,
    STATEMENT_KEY,
    Driver,
    make_spec,
    make_terms,
    verdict,
    voucher,
)

PAY = 41  # of 1.5 s at 0.10 USD an hour, rounded down
MOST = 833  # of the 30 s that the job may take
OTHER = Hash32(b"\x0a" * 32)


def owner(slots: int = 4, **policy: object) -> Driver:
    terms = make_terms(slots)
    return Driver(ProviderCore(replace(terms, policy=replace(terms.policy, **policy))))


def tab_seen(locked: int = 0, paid: int = 0, closes_at: int = 0) -> events.TabSeen:
    return events.TabSeen(COORDINATOR, Amount(locked), Amount(paid), UnixSeconds(closes_at))


def answer(driver: Driver, number: int) -> str:
    """Assigns a job; returns "" if it is accepted, else why not."""
    phase = driver.execution(driver.assign(number)).phase
    if isinstance(phase, Accepted):
        return ""
    assert isinstance(phase, Declined) and phase.decline.reason is DeclineReason.UNSECURED
    assert phase.decline.start_by == 0
    return phase.text


def finished(driver: Driver, number: int = 1) -> Hash32:
    lease = driver.assign(number)
    driver.advance(lease, Revealed)
    driver.do(verdict(lease))
    return lease


def owed(driver: Driver) -> tuple[int, int, int]:
    """Returns vouched, held and open."""
    found = driver.core.owed(COORDINATOR)
    return found.vouched, found.held, found.open


@pytest.mark.rule("6.83")
def test_work_is_taken_as_far_as_guarantee_and_trust_cover_it() -> None:
    driver = owner(trust=Amount(2 * MOST))
    assert (answer(driver, 1), answer(driver, 2)) == ("", "")
    assert owed(driver) == (0, 0, 2 * MOST)
    assert "--trust of 0.001666" in answer(driver, 3)
    driver.do(tab_seen(locked=1000, paid=1000 - MOST))
    assert answer(driver, 4) == "" and "cover 0.00 more" in answer(driver, 5)


@pytest.mark.rule("6.83")
def test_a_closing_tab_guarantees_nothing() -> None:
    driver = owner(trust=Amount(0))
    driver.do(tab_seen(locked=10 * MOST, closes_at=driver.now + DAY))
    assert answer(driver, 1)
    driver.do(tab_seen(locked=10 * MOST))
    assert answer(driver, 2) == ""


@pytest.mark.rule("6.84")
def test_no_work_is_taken_while_too_much_pay_is_held() -> None:
    driver = owner(max_held=Amount(PAY))
    finished(driver, 1)
    assert answer(driver, 2) == ""
    finished(driver, 3)
    assert "--max-held is 0.000041" in answer(driver, 4)
    driver.do(voucher(PAY))
    assert answer(driver, 5) == ""


@pytest.mark.rule("6.82")
def test_pay_is_held_from_its_verdict_to_its_voucher_and_owed_until_it_is_paid() -> None:
    driver = owner()
    lease = driver.assign()
    assert owed(driver) == (0, 0, MOST)
    driver.advance(lease, Revealed)
    assert owed(driver) == (0, 0, PAY), "its Commit names the run time"
    driver.do(verdict(lease))
    assert owed(driver) == (0, PAY, 0)
    driver.do(voucher(PAY))
    assert owed(driver) == (PAY, 0, 0)
    debt = driver.core.debt(COORDINATOR)
    assert tabs.exposure(debt.tab, driver.core.owed(COORDINATOR)) == PAY
    driver.do(tab_seen(locked=PAY, paid=PAY))
    debt = driver.core.debt(COORDINATOR)
    assert tabs.exposure(debt.tab, driver.core.owed(COORDINATOR)) == 0


@pytest.mark.rule("7.15")
def test_a_receipt_says_the_pay_exactly() -> None:
    driver = owner()
    lease = finished(driver)
    driver.do(events.ReceiptChecked(lease, Sequence(2), Amount(7)))
    assert driver.core.debt(COORDINATOR).earned == PAY, "it is of another Verdict"
    driver.do(events.ReceiptChecked(lease, Sequence(1), Amount(30)))
    driver.do(verdict(lease))
    assert driver.core.debt(COORDINATOR).earned == 30, "the same Verdict again changes nothing"


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_later_verdict_takes_pay_back(is_forgotten: bool) -> None:
    driver = owner()
    lease = finished(driver)
    if is_forgotten:
        driver.do(events.Tick(), after=3600)
        assert lease not in driver.core.executions
    message = replace(verdict(lease, 2).verdict.message, group=(OTHER,), faulted=(lease,))
    sealed = seal(DOMAIN, message, STATEMENT_KEY.sign)
    driver.do(events.VerdictReceived(lease, sealed, STATEMENT_KEY.address))
    assert driver.core.debt(COORDINATOR).earned == 0
    driver.do(events.Tick(), after=8 * DAY)
    driver.do(events.Tick(), after=8 * DAY)
    assert not driver.core.pays


def test_a_verdict_that_pays_somebody_else_makes_no_debt() -> None:
    driver = owner()
    lease = driver.assign()
    driver.advance(lease, Revealed)
    message = replace(verdict(lease).verdict.message, outcome=Outcome.ACCEPTED, group=(OTHER,))
    sealed = seal(DOMAIN, message, STATEMENT_KEY.sign)
    driver.do(events.VerdictReceived(lease, sealed, STATEMENT_KEY.address))
    assert owed(driver) == (0, 0, 0)


def test_a_fresh_journal_counts_what_the_tab_paid_before() -> None:
    """Otherwise its coordinator could hold back as much as it paid."""
    driver = owner()
    driver.do(tab_seen(locked=USD, paid=USD))
    assert owed(driver) == (0, 0, 0), "the voucher may be lost too"
    driver.do(voucher(USD))
    assert owed(driver) == (USD, 0, 0)
    driver.do(tab_seen(locked=2 * USD, paid=2 * USD))
    assert driver.core.debt(COORDINATOR).earned == USD, "only the first look says so"


@pytest.mark.rule("6.87")
def test_a_payroll_that_pays_a_part_does_not_begin_the_wait_again() -> None:
    driver = owner()
    driver.do(voucher(100))
    first = driver.now
    driver.do(tab_seen(locked=200, paid=50), after=5)
    driver.do(voucher(150))
    held = driver.core.debt(COORDINATOR).waiting(UnixSeconds(0))
    assert (held.cumulative, held.since) == (150, first)
    driver.do(tab_seen(locked=200, paid=100), after=5)
    assert driver.core.debt(COORDINATOR).waiting(UnixSeconds(0)).since == driver.now
    driver.do(tab_seen(locked=200, paid=150), after=5)
    assert driver.core.debt(COORDINATOR).waits_for == 0


def test_the_debt_is_in_the_journal() -> None:
    driver = owner()
    finished(driver)
    driver.do(voucher(10))
    twin = ProviderCore(make_terms(4))
    twin.restore(driver.core.snapshot())
    assert twin.debt(COORDINATOR) == driver.core.debt(COORDINATOR) and twin.pays


def test_a_long_job_needs_more_trust_than_a_short_one() -> None:
    driver = owner(trust=Amount(MOST))
    long = driver.assign(1, make_spec(max_duration=31))
    assert isinstance(driver.execution(long).phase, Declined)
    assert answer(driver, 2) == ""
