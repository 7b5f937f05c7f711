"""Tests that rentals are metered, charged within vouchers, and ended."""

import pytest

from quorate_coordinator.core import views
from quorate_coordinator.core.matching import work_windows
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Send, SendPayroll
from quorate_coordinator.core.model.entities import Ended, Job, Matching, Rented
from quorate_coordinator.core.rentals.ends import said_of_exit
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Commit
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import orders
from quorate_protocol.rules.reputation import fold
from quorate_protocol.units import (
    ZERO_HASH,
    Amount,
    DeclineReason,
    ExecutionEnd,
    ExitStatus,
    JobKind,
    Label,
    Milliseconds,
    Round,
    Seconds,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.rented_market import AHEAD, PRICE, Rentals
from support.markets.scripted_market import COORDINATOR, DOMAIN, Market, Party
from support.refusals import refuses


def a_commit(market: Rentals, lease: leases.Lease) -> ev.CommitReceived:
    key = market.parties[lease.provider].key
    made = Commit(lease.assignment_hash, ZERO_HASH, ZERO_HASH, ZERO_HASH, Milliseconds(1), Round(1))
    return ev.CommitReceived(seal(DOMAIN, made, key.sign), key.address, is_stored=True)


def ended(job: Job) -> str:
    assert isinstance(job.phase, Ended)
    return job.phase.reason


@pytest.mark.rule("12.1")
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"verify_tier": VerifyTier.LEAN}, "verifyTier none"),
        ({"max_executions": 3}, "maxExecutions 1"),
        ({"caseable": True}, "caseable"),
    ],
)
def test_an_order_of_a_rental_that_wants_a_check_is_refused(change, what) -> None:  # type: ignore[no-untyped-def]
    market = Rentals()
    fields = {"verify_tier": VerifyTier.NONE, "max_executions": 1, "caseable": False}
    made = market.submission(
        0, 1, kind=JobKind.SERVICE, accept_unverified=True, **{**fields, **change}
    )
    with refuses(Code.UNSUPPORTED, what):
        orders.validate(made, DOMAIN, recover, COORDINATOR.address, UnixSeconds(market.at), DEVNET)
    taken = market.job(market.rent())
    assert taken.ack.message.rule is Label.NONE


@pytest.mark.rule("7.8", "12.2", "12.4", "12.5", "12.7", "12.8")
def test_a_rental_is_charged_by_its_meters_and_paid_at_once() -> None:
    market = Rentals()
    job_id = market.start()
    lease, client = market.lease(job_id), market.client()
    assert market.job(job_id).split.charged == client.charged == 2_040, "the first interval"
    assert lease.assignment_hash in market.core.state.leases_in_slots[lease.provider]
    assert market.payee(lease.provider).final == 2_000 and not market.payee(lease.provider).held
    market.at += 10
    market.meter(job_id, 10)
    market.send(ev.Tick())
    sent = [item.frame for item in market.sent(Send) if item.peer == lease.provider]
    vouchers = [frame for frame in sent if isinstance(frame, frames.VoucherSent)]
    assert vouchers[-1].voucher.message.cumulative == 10_000
    assert market.client().charged == 10_200 and market.core.state.own.fee == 200
    assert market.client().fees_paid == 0, "its fees give no credit"
    view = views.run_view(market.core.state, market.job(job_id), True)
    assert (view.phase, view.charged, view.executions[0].usage_ms) == ("rented", 10_200, 10_000)
    assert view.executions[0].provider == lease.provider
    with refuses(Code.WRONG_PHASE, "no result"):
        market.send(a_commit(market, lease))
    market.meter(job_id, 11, exit_status=3)
    assert ended(market.job(job_id)) == "exit 3" and market.client().charged == 11_220
    assert not market.core.state.leases_in_slots[lease.provider]
    assert not market.client().reserved and not market.client().under_way


@pytest.mark.rule("12.6", "12.15")
def test_a_meter_counts_once_and_only_as_far_as_time_has_passed() -> None:
    market = Rentals()
    job_id = market.start()
    market.at += 4
    with refuses(Code.TOO_EARLY, "set the clock"):
        market.meter(job_id, 5.1)
    for _ in range(3):
        market.meter(job_id, 5)
    assert market.client().charged == 5_100
    market.meter(job_id, 4)
    assert market.client().charged == 5_100
    market.at += 30  # one of both was away
    market.send(ev.Restarted())
    market.meter(job_id, 30)
    assert market.client().charged == 30_600
    stranger = Party(9).owner
    with refuses(Code.UNKNOWN, "this provider"):
        lease = market.lease(job_id).assignment_hash
        market.send(ev.MeterReceived(lease, Milliseconds(35_000), None, stranger))


@pytest.mark.rule("12.9")
def test_a_rental_reserves_its_next_seconds_and_not_its_budget() -> None:
    market = Rentals()
    with refuses(Code.NO_VOUCHER, r"0\.0204 USD"):
        market.rent(ahead=AHEAD - 1)
    job_id = market.rent(ahead=AHEAD)
    assert market.client().reserved == AHEAD
    with refuses(Code.NO_VOUCHER, "voucher"):
        market.rent(ahead=0, nonce=2)
    assert market.job(job_id).order.budget == 10_000_000
    with refuses(Code.BAD_AMOUNT, "raise the budget"):
        market.rent(nonce=3, budget=Amount(AHEAD - 1))


@pytest.mark.rule("12.10", "12.11", "12.18", "I4", "I11")
def test_a_client_that_signs_no_more_ends_its_rental_and_owes_nothing() -> None:
    market = Rentals()
    job_id = market.start(ahead=AHEAD)
    owner = market.lease(job_id).provider
    for second in range(2, 20, 2):
        market.at += 2
        assert market.meter(job_id, second) is None
    market.at += 2
    refusal = market.meter(job_id, 20)
    assert isinstance(refusal, Refused) and refusal.code is Code.NO_VOUCHER
    assert "voucher does not cover" in ended(market.job(job_id))
    assert market.payee(owner).final == 20_000, "its owner is paid whole"
    assert market.client().charged == market.client().vouched == AHEAD
    with refuses(Code.WRONG_PHASE, "end its container"):
        market.meter(job_id, 20.5)


@pytest.mark.rule("12.10", "I4")
def test_a_late_meter_takes_nothing_that_other_orders_reserve() -> None:
    market = Rentals()
    job_id = market.start(ahead=2 * AHEAD + 2_040)
    other = market.rent(ahead=0, nonce=2)
    market.at += 40
    refusal = market.meter(job_id, 40)
    assert isinstance(refusal, Refused) and market.job(job_id).split.charged == AHEAD + 2_040
    client = market.client()
    assert client.vouched - client.charged == market.job(other).reserved == AHEAD


@pytest.mark.rule("12.7", "12.11")
def test_budget_and_duration_end_a_rental() -> None:
    market = Rentals()
    job_id = market.start(budget=Amount(30_600))
    market.at += 28
    assert market.meter(job_id, 28) is None
    market.at += 2
    assert isinstance(market.meter(job_id, 30), Refused)
    assert "budget" in ended(market.job(job_id)) and market.client().charged == 30_600
    market.limit = 25
    job_id = market.start(nonce=2)
    market.at += 26
    assert isinstance(market.meter(job_id, 26), Refused)
    assert "maxDuration" in ended(market.job(job_id))
    assert market.job(job_id).split.charged == 25_500


@pytest.mark.rule("12.13", "12.14")
def test_a_stop_waits_for_the_last_meter_and_pays_until_the_stop() -> None:
    market = Rentals()
    job_id = market.start()
    market.at += 9
    market.stop(job_id)
    stops = [item for item in market.sent(Send) if isinstance(item.frame, frames.StopSent)]
    assert len(stops) == 1 and isinstance(market.job(job_id).phase, Rented)
    market.at += 5
    market.meter(job_id, 14, exit_status=143)
    assert ended(market.job(job_id)) == "stopped by its client"
    assert market.job(job_id).split.charged == 10_200
    assert market.meter(job_id, 14, exit_status=143) is None, "it comes again"
    job_id = market.start(nonce=2)
    market.stop(job_id)
    market.at += 4
    assert isinstance(market.meter(job_id, 4), Refused), "each meter after a Stop is the last"
    assert market.job(job_id).split.charged == 2_040
    job_id = market.start(nonce=3)
    market.stop(job_id)
    market.at += DEVNET.commit_grace
    market.send(ev.Tick())
    assert "last meter did not come" in ended(market.job(job_id))
    assert market.job(job_id).split.charged == 2_040


@pytest.mark.rule("4.40", "12.16")
def test_an_owner_rents_more_machines_once_one_has_run_for_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    market = Rentals(parties=1)
    job_id = market.start(max_duration=3_600)
    owner = market.lease(job_id).provider
    monkeypatch.setattr(work_windows, "_offered", lambda context, lease: 4)
    for minutes in (5, 9.9, 10, 15, 20):
        market.at += 300
        market.vouch(0, Amount(market.client().charged + 2_000_000))
        assert market.meter(job_id, 60 * minutes) is None
        windows = market.core.state.work_windows.get(owner) or ()
        assert [item.slots for item in windows] == ([] if minutes < 10 else [2])


@pytest.mark.rule("4.46", "12.16", "I11")
def test_a_client_leaves_its_window_by_rentals_that_it_pays_for() -> None:
    market = Rentals()
    windows = market.core.state.client_windows
    client = market.client().account
    with market.core.state.transaction():
        windows[client] = 1
    job_id = market.start()
    assert windows[client] == 2, "its first interval is paid"
    market.at += 10
    market.meter(job_id, 10)
    market.meter(job_id, 10, exit_status=0)
    assert windows[client] == 2, "once"
    market.start(nonce=2)
    assert windows[client] == 3


@pytest.mark.rule("4.46")
def test_a_run_that_waits_for_its_clients_window_says_so() -> None:
    market = Rentals()
    first = market.start()
    with market.core.state.transaction():
        market.core.state.client_windows[market.client().account] = 1
    second = market.job(market.rent(nonce=2))
    events = market.core.state.events[second.id]
    notes = [event.text for event in events if event.name == "waits"]
    view = views.run_view(market.core.state, second, is_client=True)
    assert "your window is 1" in view.waits and notes == [view.waits]
    assert not views.run_view(market.core.state, second, is_client=False).waits
    market.meter(first, 1, exit_status=0)
    assert not views.run_view(market.core.state, market.job(second.id), is_client=True).waits


@pytest.mark.rule("12.14")
@pytest.mark.parametrize("exit_status", [None, 0])
def test_a_rental_that_was_stopped_before_its_first_meter_costs_the_least(
    exit_status: int | None,
) -> None:
    market = Rentals()
    job_id = market.rent()
    market.deliver()
    market.stop(job_id)
    market.at += 9
    refusal = market.meter(job_id, 9, exit_status)
    assert isinstance(refusal, Refused) is (exit_status is None)
    assert "stopped" in ended(market.job(job_id)) and market.client().charged == 2_040


@pytest.mark.rule("12.13", "12.15", "12.16", "12.17")
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_provider_that_ends_a_rental_early_has_given_no_result(is_silent: bool) -> None:
    market = Rentals()
    job_id = market.start()
    lease = market.lease(job_id)
    if is_silent:
        market.at += DEVNET.rental_ahead
        market.send(ev.Tick())
        assert isinstance(market.job(job_id).phase, Rented)
        market.send(ev.Restarted())
        market.at += DEVNET.rental_ahead
        market.send(ev.Tick())
        assert isinstance(market.job(job_id).phase, Rented), "this coordinator was away"
        market.at += 1
        market.send(ev.Tick())
    else:
        market.decline(market.parties[lease.provider], lease.assignment_hash, DeclineReason.GAVE_UP)
    end = ExecutionEnd.LAPSED if is_silent else ExecutionEnd.GAVE_UP
    assert [item.end for item in market.lines()[-1].executions] == [end]
    assert isinstance(market.job(job_id).phase, Ended) and market.client().charged == 2_040
    trusts = market.core.state.trust[lease.provider]
    assert trusts.availability() == (0, 1)
    assert lease.provider not in market.core.state.work_windows
    later = market.start(nonce=2)
    owner = market.lease(later).provider
    for _ in range(61):
        market.at += 10
        market.meter(later, market.at - market.job(later).phase.started_at)  # type: ignore[union-attr]
    market.decline(market.parties[owner], market.lease(later).assignment_hash, DeclineReason.BUSY)
    assert market.lines()[-1].executions[0].end is ExecutionEnd.RENTED
    assert (market.core.state.trust.get(owner) or fold.Trusts()).availability()[1] <= 1


@pytest.mark.rule("12.3")
def test_a_rental_that_is_given_up_before_it_runs_goes_to_another_owner() -> None:
    market = Rentals()
    job_id = market.rent()
    market.deliver()
    first = market.lease(job_id)
    market.decline(market.parties[first.provider], first.assignment_hash, DeclineReason.GAVE_UP)
    market.beats(2)
    assert market.lease(job_id).provider != first.provider and not market.client().charged
    market.stop(job_id)
    last = market.lease(job_id)
    market.decline(market.parties[last.provider], last.assignment_hash, DeclineReason.GAVE_UP)
    assert "stopped" in ended(market.job(job_id)) and not market.client().reserved
    only_tasks = Market(*[Party(number) for number in range(3)])
    spec = replace(market.job(job_id).submission.spec, kind=JobKind.SERVICE)
    assert only_tasks.plan(spec, PRICE).offers == 0
    assert market.plan(spec, PRICE).executions_priced == 1


@pytest.mark.rule("12.37", "12.38")
def test_spot_rentals_go_to_spot_slots_and_may_give_way() -> None:
    market = Rentals(is_spot=True)
    with refuses(Code.NO_OFFER, "at spot only"):
        market.rent()
    job_id = market.start(nonce=2, spot=True)
    spec = market.job(job_id).submission.spec
    assert market.plan(spec, PRICE).offers == 3
    assert market.plan(replace(spec, spot=False), PRICE).offers == 0
    lease = market.lease(job_id)
    party = market.parties[lease.provider]
    market.decline(party, lease.assignment_hash, DeclineReason.PREEMPTED)
    assert "preempted" in ended(market.job(job_id)) and market.client().charged == 2_040
    assert market.lines()[-1].executions[0].end is ExecutionEnd.GAVE_UP


@pytest.mark.rule("12.7", "12.41", "12.42", "12.45")
def test_rentals_on_demand_displace_spot_rentals_where_nothing_else_is_free() -> None:
    market = Rentals(2, spot=PRICE // 2)
    spot = [market.start(nonce=nonce, spot=True) for nonce in (1, 2)]
    spec = market.job(spot[0]).submission.spec
    prices = {market.lease(job_id).assignment.message.price_per_hour for job_id in spot}
    assert prices == {PRICE // 2} == {market.plan(spec, PRICE).cheapest}
    assert market.plan(replace(spec, spot=False), PRICE).cheapest == PRICE
    with refuses(Code.BAD_AMOUNT, "at least 2 s"):
        market.rent(nonce=3, max_duration=1)
    jobs = [market.rent(nonce=nonce, spot=nonce == 6) for nonce in (4, 5, 6)]
    market.stop(jobs.pop())
    jobs.append(market.rent(nonce=7))
    market.deliver()
    taken = [market.lease(job_id) for job_id in jobs[:2]]
    assert len({lease.provider for lease in taken}) == 2
    assert isinstance(market.job(jobs[2]).phase, Matching), "one for each spot rental"
    assert {lease.assignment.message.price_per_hour for lease in taken} == {PRICE}
    lease = market.lease(spot[0])
    party = market.parties[lease.provider]
    market.decline(party, lease.assignment_hash, DeclineReason.PREEMPTED)
    assert "preempted" in ended(market.job(spot[0])) and market.job(spot[0]).split.charged == 1_020
    assert market.lines()[-1].executions[0].end is ExecutionEnd.RENTED, "not the owner's act"


@pytest.mark.rule("12.17", "6.73")
def test_each_payroll_names_a_log_that_has_what_it_pays() -> None:
    market = Rentals()
    job_id = market.start()
    owner = market.lease(job_id).provider
    for second in range(1, 40):
        market.at += 1
        market.meter(job_id, second)
        market.send(ev.Tick())
        market.confirm()
    paid = [pay.cumulative for item in market.sent(SendPayroll) for pay in item.pays]
    logged = [sum(one.pay for one in line.executions) for line in market.lines()]
    assert len(paid) > 1 and paid[-1] <= sum(logged) == market.job(job_id).phase.logged  # type: ignore[union-attr]
    market.meter(job_id, 40, exit_status=0)
    lines = market.lines()
    assert sum(item.executions[0].pay for item in lines) == market.payee(owner).final == 40_000
    assert sum(item.executions[0].usage_ms for item in lines) == 40_000
    assert market.core.state.own.log.count == len(lines)


@pytest.mark.rule("12.28")
def test_a_rental_costs_no_more_than_its_client_allows() -> None:
    market = Rentals()
    first, second = market.start(), market.start(nonce=2)
    account = market.client().account
    market.at += 30
    market.send(ev.AllowanceNamed(first, account, Amount(30_600)))
    assert market.meter(first, 20) is None
    market.send(ev.AllowanceNamed(first, account, Amount(20_400)))  # late: it only rises
    assert isinstance(answer := market.meter(first, 29), Refused) and answer.code is Code.NO_VOUCHER
    assert "lets it cost" in ended(market.job(first))
    assert market.job(first).split.charged == 29_580  # the other's money is not touched
    assert market.meter(second, 29) is None
    with refuses(Code.UNKNOWN, "this account"):
        market.send(ev.AllowanceNamed(second, market.clients[1].address, Amount(1)))
    market.send(ev.AllowanceNamed(first, account, Amount(10**9)))  # it is over


@pytest.mark.rule("12.28")
def test_the_first_allowance_covers_what_was_charged_and_reserved() -> None:
    market = Rentals()
    job_id = market.start()
    market.at += 20
    assert market.meter(job_id, 20) is None
    job = market.job(job_id)
    promised = job.split.charged + job.reserved
    market.send(ev.AllowanceNamed(job_id, market.client().account, Amount(1)))
    for usage in range(22, 60, 2):
        market.at += 2
        if market.meter(job_id, usage) is not None:
            break
    assert "lets it cost" in ended(market.job(job_id))
    next_meter = 2 * 1_020
    assert promised - next_meter < market.job(job_id).split.charged <= promised
    assert market.client().reserved == 0


@pytest.mark.rule("12.23")
@pytest.mark.parametrize(
    ("status", "seconds", "words"),
    [
        (271, 60, "stopped after 1m without use (idleStop)"),
        (265, 90, "stopped after 1m without use (idleStop)"),
        (271, 59, "its program was ended by SIGTERM"),
        (267, 90, "its program was ended by SIGSEGV"),
        (513, 90, "it used more memory than it asked for"),
        (400, 90, "exit 400"),
    ],
)
def test_the_end_of_an_idle_rental_says_so(status: int, seconds: int, words: str) -> None:
    market = Rentals()
    job = market.job(market.start())
    spec = replace(job.submission.spec, idle_stop=Seconds(60))
    job = replace(job, submission=replace(job.submission, spec=spec))
    assert said_of_exit(job, ExitStatus(status), Milliseconds(seconds * 1000)) == words


@pytest.mark.rule("12.28")
def test_a_first_allowance_counts_what_is_reserved_at_the_rentals_own_price() -> None:
    market = Rentals()
    job_id = market.start(max_price_per_hour=10 * PRICE)
    market.send(ev.AllowanceNamed(job_id, market.client().account, Amount(1)))
    job = market.job(job_id)
    assert job.allowed == job.split.charged + AHEAD < job.reserved


@pytest.mark.rule("12.9", "12.28")
def test_a_rental_reserves_what_is_left_of_its_allowance() -> None:
    market = Rentals()
    job_id = market.start()
    account = market.client().account
    market.send(ev.AllowanceNamed(job_id, account, Amount(1)))
    market.at += 10
    market.meter(job_id, 10)
    assert market.client().reserved == 2_040 + AHEAD - 10_200  # it was metered at its start
    market.send(ev.AllowanceNamed(job_id, account, Amount(100_000)))
    assert market.client().reserved == AHEAD
