"""Tests what the operator sees: sums of the state, how orders ended, and for how long gas lasts."""

from prometheus_client import CollectorRegistry

from quorate_contracts.money_texts import Currency
from quorate_coordinator.api.front_page import front_page, response
from quorate_coordinator.core.archived_run import archived
from quorate_coordinator.status.ending_counts import ENDINGS, EndingCounts, ending_of
from quorate_coordinator.status.operator_report import money_of, orders_of, providers_of
from quorate_coordinator.status.own_account import DAY_SECONDS, GasUse, gas_warning
from quorate_coordinator.status.rows import run_row
from quorate_coordinator.storage.archive import row_of
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.units import ZERO_ADDRESS, Address, Bps, Seconds, UnixSeconds
from support.markets.rented_market import Rentals
from support.markets.scripted_market import Market, Party
from support.virtual_clock import VirtualClock

NOW = 1_800_000_000
DEVNET = Currency(31337, ZERO_ADDRESS)


def test_orders_are_counted_once_by_how_they_end() -> None:
    market = Market(*(Party(number) for number in range(4)))
    market.until_decided(market.order(0, 1))  # before the start: not counted
    registry, state, clock = CollectorRegistry(), market.core.state, VirtualClock(market.at)
    counts = EndingCounts(state, clock, registry)
    clock.forward(60)
    market.until_decided(market.order(0, 2), gone := market.order(0, 3))
    with state.transaction():
        del state.jobs[gone]  # archived before anybody looked
    counts.refresh()
    counts.refresh()
    assert counts.counts == {"accepted": 2}
    found = {
        name: registry.get_sample_value("quorate_orders_total", {"ending": name})
        for name in ENDINGS
    }
    assert found == {**dict.fromkeys(ENDINGS, 0), "accepted": 2}
    times = registry.get_sample_value("quorate_order_seconds_count", {"stage": "decided"})
    assert times == 2 and counts.seconds_median("decided") > 0


def test_an_order_without_an_offer_is_unmet_demand() -> None:
    market = Market(*(Party(number) for number in range(4)))
    state = market.core.state
    job = market.order(0, 1)
    waiting = orders_of(state, UnixSeconds(state.jobs[job].created_at + 7))
    assert waiting.matching + waiting.running == 1
    market.until_decided(job)
    money = money_of(state)
    assert money.provider_final + money.provider_held > 0
    assert money.fee_final + money.fee_held > 0


def test_a_rental_is_under_way_while_it_runs_and_accepted_once_it_was_charged() -> None:
    market = Rentals()
    job_id = market.start()
    orders = orders_of(market.core.state, UnixSeconds(market.at))
    assert (orders.under_way, orders.rented) == (1, 1)
    market.meter(job_id, 1, exit_status=0)
    assert orders_of(market.core.state, UnixSeconds(market.at)).under_way == 0
    job = market.job(job_id)
    rows = run_row(job), row_of(archived(market.core.state, job))
    assert ending_of(job) == "accepted" and all(row["ending"] == "accepted" for row in rows)


def test_providers_count_as_registered_connected_and_on_offer() -> None:
    market = Market(*(Party(number) for number in range(3)))
    state, now = market.core.state, UnixSeconds(market.at)
    owners = list(state.providers)
    found = providers_of(state, {owners[0], Address(b"\x01" * 20)}, now)
    assert (found.registered, found.connected, found.on_offer) == (3, 1, 3)
    assert found.run_slots >= 3
    later = UnixSeconds(now + 100_000)
    assert providers_of(state, (), later).on_offer == 0


def test_gas_lasts_as_long_as_its_present_use_says() -> None:
    use = GasUse()
    use.add([], NOW)
    assert use.days_left(10**18, NOW) is None, "nothing is spent yet"
    use.add([("epoch-1", NOW - DAY_SECONDS, 10**17)], NOW)
    use.add([("epoch-2", NOW, 10**17)], NOW)
    assert use.days_left(10**18, NOW) == 5
    assert use.known == {"epoch-1", "epoch-2"}
    week = NOW + 8 * DAY_SECONDS
    use.add([], week)
    assert use.wei() == 0 and use.days_left(10**18, week) is None, "older use is forgotten"


def test_a_forecast_waits_for_a_day_of_data() -> None:
    use = GasUse()
    use.add([("register", NOW, 10**15)], NOW)
    assert use.days_left(10**18, NOW + DAY_SECONDS - 1) is None
    assert use.days_left(10**18, NOW + DAY_SECONDS) == 1000


def test_the_warning_comes_before_the_posting_key_is_empty() -> None:
    posting = Address(b"\x05" * 20)
    assert gas_warning(DEVNET, posting, 10**18, None, 10**9) == ""
    assert gas_warning(DEVNET, posting, 10**18, 7, 10**9) == ""
    told = gas_warning(DEVNET, posting, 10**18, 6, 10**9)
    assert "1 ETH" in told and "6 days" in told and "0x0505" in told
    assert "next payrolls" in gas_warning(DEVNET, posting, 10**15, None, 10**9)


def test_the_front_page_lists_pools_and_escapes_what_others_name() -> None:
    market = Market(*(Party(number) for number in range(3)))
    beacon = BeaconView("", b"\0" * 96, Seconds(2), 0)
    info = InfoView(
        coordinator=ZERO_ADDRESS,
        statement_key=ZERO_ADDRESS,
        chain_id=1,
        chain_url="",
        contracts={"<b>": ZERO_ADDRESS},
        beacon=beacon,
        fee_bps=Bps(200),
        limits="devnet",
        version="<script>",
    )
    page = front_page(market.core.state, UnixSeconds(market.at), info, "0" * 64)
    assert [(item.name, item.owners) for item in page.pools] == [("cpu", 3)]
    text = str(response(page, "text/html,*/*").text)
    assert "<script>" not in text and "&lt;script&gt;" in text and "&lt;b&gt;" in text
    assert response(page, "*/*").content_type == "application/json"
