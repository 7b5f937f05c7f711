"""The expected cost of a job: from earlier runs of it, or from today's prices."""

from dataclasses import replace

from quorate.client.base.client_ledger import OrderRecord
from quorate.client.base.signed_requests import draft_order
from quorate.client.money.estimate import Estimate, estimate
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate_protocol.messages.views import PlanView
from quorate_protocol.units import ZERO_HASH, Address, Amount, Bps, Hash32, Label, Nonce, Price

JOB = Job(image="python@sha256:" + "0" * 64, command=("true",), max_price="9", max_duration="1h")
CLIENT, COORDINATOR = Address(b"\1" * 20), Address(b"\2" * 20)
PREMIUM = Bps(1000)


def view(rule: Label, cheapest: int | None = 600_000) -> PlanView:
    price = None if cheapest is None else Price(cheapest)
    return PlanView(
        ZERO_HASH, rule, 9, 3, price, price or Price(0), 2, Amount(10**7), Bps(200), "", ""
    )


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
