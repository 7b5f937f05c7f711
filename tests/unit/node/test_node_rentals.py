"""Tests the provider's rentals: meters, restarts, what covers them, and how they end."""

import pytest

from quorate_node.cli.status import status_lines
from quorate_node.core import effects, events, machines, rental
from quorate_node.core.phases import Accepted, Declined, Fetching, Lapsed, Live, Over
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import reconcile
from quorate_node.core.terms import Terms
from quorate_node.market.announcements import named
from quorate_node.rentals.egress_proxy import Traffic
from quorate_node.status.job_lines import paid_line, taken_line
from quorate_node.status.status import OwnerFacts, status_of
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.ports import TaskState
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.refusals import Refused
from quorate_protocol.units import (
    Amount,
    DeclineReason,
    ExitStatus,
    Hash32,
    JobKind,
    Milliseconds,
    Price,
    WorkStage,
)
from quorate_protocol.values import replace
from support.markets.provider_world import (
    COORDINATOR,
    DOMAIN,
    POOL,
    PROVIDER,
    STATEMENT_KEY,
    Driver,
    make_assignment,
    make_spec,
    make_terms,
    stop,
    verdict,
)

SPEC = replace(make_spec("machine", 3_600), kind=JobKind.DEV_ENVIRONMENT)
SPOT = replace(SPEC, spot=True)
AHEAD, EVERY = DEVNET.rental_ahead, DEVNET.meter_every


def lessor(count: int = 1) -> Terms:
    terms = make_terms(count)
    kinds = (JobKind.TASK, JobKind.DEV_ENVIRONMENT)
    return replace(terms, policy=replace(terms.policy, kinds=kinds))


def rented(count: int = 1) -> tuple[Driver, Hash32]:
    """A driver whose rental has just started."""
    driver = Driver(ProviderCore(lessor(count)))
    return driver, begin(driver)


def begin(driver: Driver, number: int = 1, spec: JobSpec = SPEC) -> Hash32:
    lease = driver.assign(number, spec)
    driver.do(events.AcceptDelivered(lease))
    driver.do(events.InputsFetched(lease))
    driver.do(events.TaskStarted(lease))
    return lease


def phase(driver: Driver, lease: Hash32) -> Live:
    found = driver.execution(lease).phase
    assert isinstance(found, Live)
    return found


def over(driver: Driver, lease: Hash32) -> Over:
    found = driver.execution(lease).phase
    assert isinstance(found, Over)
    return found


def meters(due: tuple[effects.Effect, ...]) -> list[int]:
    return [effect.usage_ms for effect in due if isinstance(effect, effects.SendMeter)]


def vouch(driver: Driver, amount: int) -> None:
    voucher = seal(DOMAIN, Voucher(COORDINATOR, PROVIDER, Amount(amount)), STATEMENT_KEY.sign)
    driver.do(events.VoucherReceived(COORDINATOR, voucher, STATEMENT_KEY.address))


def answer(driver: Driver, lease: Hash32, seconds: int, refusal: str = "") -> None:
    driver.do(events.MeterAnswered(lease, Milliseconds(seconds * 1000), refusal))


@pytest.mark.rule("12.3")
def test_only_an_owner_that_allows_rentals_accepts_one() -> None:
    driver = Driver(ProviderCore(make_terms()))
    declined = driver.execution(driver.assign(1, SPEC)).phase
    assert isinstance(declined, Declined) and declined.decline.reason is DeclineReason.KIND
    driver = Driver(ProviderCore(lessor()))
    assert isinstance(driver.execution(driver.assign(1, SPEC)).phase, Accepted)


@pytest.mark.rule("12.4", "12.5")
def test_a_rental_sends_a_meter_in_each_interval_and_keeps_its_slot() -> None:
    driver, lease = rented()
    assert meters(machines.duties(driver.execution(lease))) == [0]
    assert driver.core.free_slots()[0].free == 0
    (progress,) = named(driver.core.live(), COORDINATOR)
    assert progress.stage is WorkStage.RUNNING
    assert driver.core.next_due() == driver.now + EVERY
    facts = OwnerFacts(egress={lease.hex(): Traffic(bytes_in=5_000_000)})
    tree = canonical.to_json(status_of(driver.core, PROVIDER, "", {}, facts=facts))
    shown = f"  rental 0x{lease.hex()[:16]} Live, egress 5.0 MB in, 0 B out"
    assert shown in status_lines(tree)
    assert meters(driver.do(events.Tick(), EVERY - 1)) == []
    assert meters(driver.do(events.Tick(), 1)) == [EVERY * 1000]
    assert meters(driver.do(events.Tick(), 5)) == [(EVERY + 5) * 1000]
    due = driver.do(events.TaskExited(lease, ExitStatus(3), Milliseconds(7_900)))
    (last,) = (effect for effect in due if isinstance(effect, effects.SendMeter))
    assert (last.usage_ms, last.exit_status) == (7_900, 3)
    assert driver.core.free_slots()[0].free == 1 and driver.core.is_idle()
    name = f"rental 0x{lease.hex()}"
    assert paid_line(driver.execution(lease)) == f"{name} was rented for 8 s: exit 3"
    told = taken_line(driver.execution(lease))
    assert told.startswith(f"{name} taken: ") and f"coordinator 0x{COORDINATOR.hex()}" in told
    assert not driver.do(verdict(lease)), "a rental has no verdict"
    driver.do(events.Tick(), 601)
    assert lease not in driver.core.executions and lease in driver.core.settled


@pytest.mark.rule("12.15")
def test_a_restart_goes_on_with_the_same_container_or_gives_the_rental_up() -> None:
    driver, lease = rented()
    driver.do(events.Tick(), EVERY)
    again = ProviderCore(lessor())
    again.restore(driver.core.snapshot())
    driver.core = again
    assert {type(effect) for effect in again.resume()} == {effects.WatchTask, effects.SendMeter}
    assert meters(driver.do(events.Tick(), 10)) == [(EVERY + 10) * 1000]
    name = driver.execution(lease).lease_id
    kept = reconcile(again.live(), (), {name: TaskState.RUNNING}, again.terms)
    assert not kept.failures and not kept.strays
    (gone,) = reconcile(again.live(), (), {}, again.terms).failures
    due = driver.do(gone)
    assert any(isinstance(effect, effects.SendDecline) for effect in due)
    decline = over(driver, lease).decline
    assert decline is not None and decline.reason is DeclineReason.GAVE_UP


@pytest.mark.rule("12.13", "12.14")
def test_a_stop_ends_the_container_and_sends_the_last_meter() -> None:
    driver, lease = rented()
    assert effects.StopTask(lease) in driver.do(stop(lease))
    assert not driver.do(stop(lease))
    driver.do(events.TaskExited(lease, ExitStatus(271), Milliseconds(100)))
    assert over(driver, lease).exit_status == 271
    lease = driver.assign(2, SPEC)
    driver.do(events.AcceptDelivered(lease))
    assert isinstance(driver.execution(lease).phase, Fetching)
    driver.do(stop(lease))
    assert isinstance(driver.execution(lease).phase, Lapsed), "as an execution"


@pytest.mark.rule("12.14")
def test_a_refused_meter_ends_the_rental() -> None:
    driver, lease = rented()
    answer(driver, lease, 0)
    due = driver.do(events.MeterAnswered(lease, Milliseconds(2_000), "no-voucher: sign more"))
    assert {type(effect) for effect in due} == {effects.StopTask, effects.RemoveTask}
    ended = over(driver, lease)
    assert ended.decline is None and ended.exit_status is None and "no-voucher" in ended.why


@pytest.mark.rule("12.12")
def test_a_rental_that_no_voucher_covers_is_ended_by_its_owner() -> None:
    driver, lease = rented(2)
    second = begin(driver, 2)
    for seconds in range(0, 10, EVERY):
        driver.do(events.Tick(), EVERY if seconds else 0)
        answer(driver, lease, seconds)
        answer(driver, second, seconds)
    one = 8_000 * 100_000 // 3_600_000
    earned = driver.core.debt(COORDINATOR).earned
    assert earned == driver.core.debt(COORDINATOR).rented == 2 * one
    vouch(driver, 2 * one - 1)
    assert phase(driver, lease).covered_ms == 0, "both must be covered"
    vouch(driver, 2 * one)
    assert phase(driver, lease).covered_ms == phase(driver, second).covered_ms == 8_000
    driver.do(events.Tick(), AHEAD)
    assert isinstance(driver.execution(lease).phase, Live)
    driver.do(events.Tick(), 1)
    decline = over(driver, lease).decline
    assert decline is not None and decline.reason is DeclineReason.UNSECURED
    assert not driver.core.live()


@pytest.mark.rule("12.12", "6.83")
def test_trust_must_cover_the_next_seconds_of_a_rental_and_not_all() -> None:
    ahead = AHEAD * 100_000 // 3_600
    for trust, taken in ((ahead, True), (ahead - 1, False)):
        terms = lessor(2)
        terms = replace(terms, policy=replace(terms.policy, trust=Amount(trust)))
        driver = Driver(ProviderCore(terms))
        assert isinstance(driver.execution(driver.assign(1, SPEC)).phase, Accepted) is taken
        second = driver.execution(driver.assign(2, SPEC)).phase
        assert isinstance(second, Declined) and second.decline.reason is DeclineReason.UNSECURED


def test_a_rental_whose_gpu_is_gone_is_given_up() -> None:
    driver, lease = rented()
    moved, due = machines.lose_gpus(driver.execution(lease), ("GPU-1",), driver.now)
    assert isinstance(moved.phase, Over) and "GPU-1" in moved.phase.why and due
    with pytest.raises(Refused):
        driver.do(replace(stop(lease), coordinator=PROVIDER))
    assert driver.core.terms.slot(POOL) is not None


def spot_lessor() -> Terms:
    terms = lessor()
    [slots] = terms.classes
    offer = replace(slots.offer, spot=slots.offer.on_demand, on_demand=Price(0))
    return replace(terms, classes=(replace(slots, offer=offer),))


@pytest.mark.rule("12.37")
def test_only_a_rental_that_asks_for_spot_goes_to_a_spot_slot() -> None:
    driver = Driver(ProviderCore(spot_lessor()))
    declined = driver.execution(driver.assign(1, SPEC)).phase
    assert isinstance(declined, Declined) and "spot" in declined.text
    assert isinstance(driver.execution(driver.assign(2, SPOT)).phase, Accepted)


@pytest.mark.rule("12.38")
def test_a_spot_rental_ends_soon_after_the_schedule_closes_and_another_goes_on() -> None:
    driver = Driver(ProviderCore(spot_lessor()))
    lease = begin(driver, spec=SPOT)
    driver.do(events.ScheduleRead(is_open=False))
    assert phase(driver, lease).gives_way_at == driver.now + rental.NOTICE_SECONDS
    due = driver.do(events.Tick(), after=rental.NOTICE_SECONDS)
    assert over(driver, lease).why == "its owner's schedule closes"
    [declined] = [item.decline for item in due if isinstance(item, effects.SendDecline)]
    assert declined.reason is DeclineReason.PREEMPTED

    other, lease = rented()
    other.do(events.ScheduleRead(is_open=False))
    assert phase(other, lease).gives_way_at == 0


@pytest.mark.rule("12.38")
def test_a_spot_rental_that_is_not_started_ends_at_once() -> None:
    driver = Driver(ProviderCore(spot_lessor()))
    lease = driver.assign(1, SPOT)
    driver.do(events.ScheduleRead(is_open=False))
    assert isinstance(driver.execution(lease).phase, Lapsed)


def two_prices(count: int = 1) -> Driver:
    """A driver whose run slots have spot rentals, the first of which runs."""
    terms = lessor(count)
    [slots] = terms.classes
    offer = replace(slots.offer, spot=Price(60_000))
    driver = Driver(ProviderCore(replace(terms, classes=(replace(slots, offer=offer),))))
    begin(driver, spec=SPOT)
    return driver


@pytest.mark.rule("12.41")
def test_a_slot_with_two_prices_takes_spot_rentals_at_the_lower_one() -> None:
    driver = two_prices(3)
    for spec, price in ((SPOT, 60_000), (SPOT, 59_999), (SPEC, 99_999)):
        asked = make_assignment(spec, price, driver.now, price)
        signed = seal(DOMAIN, asked, STATEMENT_KEY.sign)
        driver.do(events.AssignmentReceived(signed, spec, (), STATEMENT_KEY.address))
        found = driver.execution(signed.digest(DOMAIN)).phase
        assert isinstance(found, Accepted) is (price == 60_000)


@pytest.mark.rule("12.42", "12.43", "I2")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_spot_rental_gives_way_once_the_one_on_demand_can_start(is_stopped: bool) -> None:
    driver = two_prices()
    spot, task = driver.core.live()[0].assignment_hash, make_spec("task", 60)
    lease = driver.assign(2, SPEC)
    assert isinstance(driver.execution(lease).phase, Accepted)
    for number, other in ((3, SPEC), (4, SPOT), (5, task)):
        assert isinstance(driver.execution(driver.assign(number, other)).phase, Declined)
    driver.do(events.AcceptDelivered(lease))
    assert len(named(driver.core.live(), COORDINATOR)) == 2
    assert phase(driver, spot).gives_way_at == 0, "it fetches, and displaces nobody"
    due = driver.do(events.InputsFetched(lease))
    assert not due and phase(driver, spot).gives_way_at == driver.now + rental.NOTICE_SECONDS
    if is_stopped:
        driver.do(stop(lease))
    again = ProviderCore(driver.core.terms)
    again.restore(driver.core.snapshot())
    driver.core = again
    due = driver.do(events.Tick(), after=rental.NOTICE_SECONDS)
    assert over(driver, spot).why == rental.ON_DEMAND
    assert [type(item) for item in due if item.assignment_hash == lease] == [effects.StartTask]  # type: ignore[union-attr]
    driver.do(events.TaskStarted(lease))
    assert phase(driver, lease).is_stopping is is_stopped, "it runs, so it is charged"
    assert driver.core.free_slots()[0].free == 0


@pytest.mark.rule("12.42", "12.43", "12.44")
def test_a_rental_that_waits_takes_any_free_slot_and_gives_up_without_one() -> None:
    driver = two_prices()
    spot, lease = driver.core.live()[0].assignment_hash, driver.assign(2, SPEC)
    driver.do(events.TaskExited(spot, ExitStatus(0), Milliseconds(9_000)))
    assert driver.execution(lease).occupies_slot
    driver = two_prices()
    driver.do(stop(driver.assign(2, SPEC)))
    lease = driver.assign(3, SPEC)
    assert phase(driver, spot).gives_way_at == 0, "the other was stopped before it could start"
    driver.do(events.AcceptDelivered(lease))
    driver.do(events.InputsFetched(lease))
    terms, at = driver.core.terms, rental.next_due(driver.execution(lease), driver.core.terms)
    change = rental.change_places(terms, driver.core.live(), (), frozenset(), at)
    assert at == driver.now + rental.WAIT_SECONDS + 1
    assert change is not None and isinstance(change[0].phase, Lapsed)


@pytest.mark.rule("12.39")
def test_an_owner_ends_any_rental_and_only_rentals() -> None:
    driver, lease = rented()
    driver.do(events.EvictRequested(lease, "its owner ends it: spam"))
    driver.do(events.Tick())
    assert isinstance(driver.core.executions[lease].phase, Live), "its terminals show why first"
    driver.do(events.Tick(), rental.EVICT_SECONDS)
    assert over(driver, lease).why == "its owner ends it: spam"
    task = driver.assign(9, make_spec("task", 60))
    for unknown in (lease, task, Hash32(bytes(32))):
        with pytest.raises(Refused, match="no such rental"):
            driver.do(events.EvictRequested(unknown, ""))


def test_an_image_that_the_owner_refuses_is_declined() -> None:
    terms = lessor()
    policy = replace(terms.policy, refused_images=(SPEC.image,))
    driver = Driver(ProviderCore(replace(terms, policy=policy)))
    declined = driver.execution(driver.assign(1, SPEC)).phase
    assert isinstance(declined, Declined) and declined.decline.reason is DeclineReason.IMAGE
