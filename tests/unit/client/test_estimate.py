"""The expected cost of a job: from earlier runs of it, or from today's prices."""

from dataclasses import replace

from quorate.cli.rendering import offers_text
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.base.signed_requests import draft_order
from quorate.client.money.estimate import Estimate, estimate, estimate_of_rental
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate_protocol.messages.views import PlanView
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Hash32,
    Label,
    Nonce,
    Price,
    Seconds,
)
from quorate_protocol.values import replace as struct_replace

JOB = Job(image="python@sha256:" + "0" * 64, command=("true",), max_price="9", max_duration="1h")
CLIENT, COORDINATOR = Address(b"\1" * 20), Address(b"\2" * 20)
PREMIUM = Bps(1000)


def view(rule: Label, cheapest: int | None = 600_000) -> PlanView:
    price = None if cheapest is None else Price(cheapest)
    return PlanView(
        ZERO_HASH, rule, 9, 3, price, price or Price(0), 2, Amount(10**7), Bps(200), "", ""
    )


def replace_price(found: PlanView, auditor: int) -> PlanView:
    return struct_replace(found, auditor_price=Price(auditor))


def earlier(job: Job, number: int, charged: int | None) -> OrderRecord:
    spec = pack(job, {}).spec
    order = draft_order(job, spec, CLIENT, COORDINATOR, Bps(200)).stamped(Nonce(number), 1)
    paid = None if charged is None else Amount(charged)
    job_id = Hash32(bytes([number]) * 32)
    return OrderRecord(job_id, job.name, order, spec.encode(), b"", number, paid, None)


def test_cost_at_the_cheapest_offer_is_for_the_executions_that_are_paid() -> None:
    spec = pack(JOB, {}).spec
    twice = estimate(view(Label.QUORUM_2), JOB.name, spec, PREMIUM, ())
    once = estimate(view(Label.ADAPTIVE), JOB.name, spec, PREMIUM, ())
    # 0.60 USD an hour: twice plus 2 % fee; once plus 2 % fee and 10 % premium.
    assert twice == Estimate(Amount(1_224_000), Amount(20_400), 3600, 0)
    assert once == Estimate(Amount(672_000), Amount(11_200), 3600, 0)
    assert twice.text() == ("0.0204 USD a minute at today's prices; 1.224 USD if it runs for 1h")
    assert estimate(view(Label.QUORUM_2, None), JOB.name, spec, PREMIUM, ()) is None


def test_cost_is_that_of_earlier_runs_of_the_same_job() -> None:
    spec = pack(JOB, {}).spec
    other = replace(JOB, command=("false",))
    records = [
        earlier(JOB, 1, 300),
        earlier(other, 2, 9_000),
        earlier(JOB, 3, None),
        earlier(JOB, 4, 0),
        earlier(JOB, 5, 501),
    ]
    found = estimate(view(Label.QUORUM_2), JOB.name, spec, PREMIUM, records)
    assert found is not None and (found.expected, found.runs) == (401, 2)
    assert found.text() == "0.000401 USD, as 2 earlier runs"
    assert found.short() == "about 0.000401 USD"


def test_time_is_that_of_earlier_runs_with_and_without_speed_fast() -> None:
    spec = pack(JOB, {}).spec
    records, times = [earlier(JOB, 1, 300), earlier(JOB, 2, 300)], {b"\1" * 32: 40, b"\2" * 32: 41}
    found = estimate(
        view(Label.QUORUM_2), JOB.name, spec, PREMIUM, records, took=lambda job_id: times[job_id]
    )
    assert found is not None and found.run_seconds == 41
    usual = found.time_text(Label.QUORUM_2, False, 2)
    assert usual == "about 1m28s, as earlier runs; 47s with speed: fast"
    fast = found.time_text(Label.QUORUM_2, True, 2)
    assert fast == "about 47s, as earlier runs; 1m28s without speed: fast"
    assert found.time_text(Label.UNVERIFIED, False, 2) == "about 41s, as earlier runs"
    assert "1m28s if it is audited" in found.time_text(Label.ADAPTIVE, False, 2)
    unknown = estimate(view(Label.QUORUM_2), JOB.name, spec, PREMIUM, ())
    assert unknown is not None
    longest = unknown.time_text(Label.QUORUM_2, False, 3)
    assert longest == "at most about 2h9s, if it runs for 1h; 1h9s with speed: fast"


def test_all_executions_of_a_fast_job_are_drawn_at_the_price_of_an_auditor() -> None:
    spec, offers = pack(JOB, {}).spec, replace_price(view(Label.QUORUM_2), 900_000)
    usual = estimate(offers, JOB.name, spec, PREMIUM, ())
    fast = estimate(offers, JOB.name, spec, PREMIUM, (), is_fast=True)
    assert usual is not None and fast is not None
    assert (usual.expected, fast.expected) == (1_530_000, 1_836_000)


def test_a_rental_is_priced_by_the_cheapest_free_machine() -> None:
    taken = view(Label.NONE)
    free = struct_replace(taken, free=2, cheapest_free=Price(3_600_000))
    none = struct_replace(taken, free=0)
    prices = [estimate_of_rental(one, Seconds(60)) for one in (taken, free, none)]
    assert [one and one.expected for one in prices] == [10_200, 61_200, 10_200]
    assert offers_text(taken) == "3, cheapest 0.60 USD an hour"
    assert offers_text(free) == "3, cheapest 0.60 USD an hour; 2 free now, from 3.60 USD an hour"
    assert offers_text(none) == "3, cheapest 0.60 USD an hour; 0 free now"
