"""Jobs whose results agree within a tolerance: what the coordinator compares, and its verdicts."""

import pytest

from quorate_coordinator.core import views
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import CompareOutputs, Effect
from quorate_coordinator.core.model.entities import Decided, Revealing
from quorate_coordinator.core.money import held_pay, ledger
from quorate_protocol.messages.job_spec import Compare
from quorate_protocol.messages.receipt import Distance, Receipt
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import orders
from quorate_protocol.rules.receipts.receipt_bill import paid_by_client
from quorate_protocol.units import (
    Address,
    Comparator,
    ExitStatus,
    Hash32,
    Outcome,
    Ppm,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.large_market import LargeMarket
from support.markets.noisy_market import NUMERIC, NoisyMarket
from support.markets.scripted_market import COORDINATOR, DOMAIN, STATEMENT, Market, Party
from support.receipts import failures, verdict_again


def owners(market: Market, names: tuple[Hash32, ...]) -> list[Address]:
    return [market.core.state.leases[name].provider for name in names]


def test_outputs_that_are_a_noise_apart_are_accepted_and_nobody_repeats() -> None:
    market = NoisyMarket(0, 400, 800, 300)
    job = market.decided()
    said = market.verdict(job.id)
    assert said.outcome is Outcome.ACCEPTED and len(said.group) == 2 and not said.faulted
    assert len(market.sent(CompareOutputs)) == 1 and not job.repeats
    assert not failures(market.receipt())
    found = market.receipt()
    assert len({item.reveal.output_digest for item in found.executions if item.reveal}) == 2
    assert found.compare == NUMERIC and not found.order.message.caseable


@pytest.mark.rule("5.161")
@pytest.mark.parametrize("far", [-1500, 1_000_000, None])
def test_who_lies_outside_the_tolerance_is_unpaid_and_not_at_fault(far: int | None) -> None:
    market = NoisyMarket(far, 0, 400, 800)
    odd = next(iter(market.places))
    for nonce in range(1, 8):
        job = market.decided(nonce)
        said = market.verdict(job.id)
        assert said.outcome is Outcome.ACCEPTED and not said.faulted and not job.repeats
        if odd in [market.core.state.leases[name].provider for name in job.leases]:
            break
    else:
        raise AssertionError("the cheapest provider is never asked")
    assert odd not in owners(market, said.group) and len(job.batches) > 1
    found = market.receipt()
    assert not failures(found)
    assert paid_by_client(found).keys() <= set(said.group)
    state = market.core.state
    assert not market.earned(odd)
    assert all(fault.is_in_no_case for fault in state.faults.get(odd) or ()), "at most outvoted"
    assert odd not in state.trust or not state.trust[odd].checked


@pytest.mark.rule("5.159")
def test_the_output_is_that_of_the_member_nearest_to_all_others() -> None:
    """Of three that no pair but one joins, the first two results differ, and the third decides."""
    market = NoisyMarket(0, 1800, 900, 850)
    job = market.decided()
    said = market.verdict(job.id)
    inside = [market.place(name) for name in said.group]
    totals = [sum(abs(a - b) for b in inside if b is not None) for a in inside if a is not None]
    assert totals[0] == min(totals)
    market.beat()  # its client pays
    seen = views.run_view(market.core.state, market.job(job.id), True)
    revealed = {item.assignment_hash: item.output_digest for item in seen.executions if item.agreed}
    assert seen.output is not None and seen.output.output_digest == revealed[said.group[0]]


@pytest.mark.rule("5.160")
def test_a_verdict_waits_for_all_comparisons_and_a_restart_loses_none() -> None:
    market = NoisyMarket(0, 5000, 200, 5100)
    market.answers = False
    job_id = market.order(0, 1, compare=NUMERIC)
    for _ in range(100):
        while market.asked:
            market.core = _restored(market)
            market.send(ev.Restarted())
            phase = market.job(job_id).phase
            market.beats(20)
            assert isinstance(phase, Revealing) and market.job(job_id).phase == phase, "it waits"
            effect = market.asked.pop(0)
            market.answer(effect)
            market.answer(effect)  # after a crash the shell reports twice
        if isinstance(market.job(job_id).phase, Decided):
            break
        market.beat()
    assert market.verdict(job_id).outcome is Outcome.ACCEPTED
    keys = [effect.key for effect in market.sent(CompareOutputs)]
    assert len(keys) == len(set(keys)) == len(market.job(job_id).comparisons) > 1
    assert not failures(market.receipt())


def _of_three() -> Receipt:
    """The receipt of a job whose first two results differed."""
    market = NoisyMarket(0, 5000, 200, 5100)
    for nonce in range(1, 9):
        market.decided(nonce)
        if len(market.receipt().distances) == 3:
            return market.receipt()
    raise AssertionError("the first two always agree")


def _restored(market: Market) -> CoordinatorCore:
    again = CoordinatorCore(market.core.rules, ledger.check)
    again.restore(market.core.snapshot())
    return again


def test_outputs_that_end_in_another_way_are_not_compared() -> None:
    market = NoisyMarket(0, 0, 0)
    failing = list(market.parties.values())[1]
    failing.status = ExitStatus(3)
    for nonce in range(1, 6):
        job = market.decided(nonce)
        told = [(it.one, it.other) for it in job.comparisons]
        odd = [n for n in job.leases if market.core.state.leases[n].provider == failing.owner]
        assert not any(name in pair for pair in told for name in odd)
        assert market.verdict(job.id).outcome is Outcome.ACCEPTED


def test_a_held_execution_is_compared_with_the_new_one() -> None:
    """Under the adaptive rule a job is accepted on one execution, and executed again later."""
    market = NoisyLargeMarket()
    for nonce in range(1, 20):
        job_id = market.order(0, nonce, compare=NUMERIC, accept_unwitnessed=True)
        market.trust_all(market.job(job_id))
        market.until_decided(job_id)
        phase = market.job(job_id).phase
        if isinstance(phase, Decided) and not phase.is_final:
            break
    assert job_id in market.core.state.held and not market.job(job_id).comparisons
    with market.core.state.transaction():
        owner = market.core.state.held[job_id].owner
        held_pay.reexecute_all(market.context(), owner)
    market.until_decided(job_id)
    assert len(market.job(job_id).comparisons) == 1 and len(market.verdict(job_id).group) == 2
    assert not failures(market.receipt())


class NoisyLargeMarket(LargeMarket):
    """As `NoisyMarket`, with owners whose outputs are a hundred ppb apart."""

    def __init__(self) -> None:
        super().__init__()
        for party in self.parties.values():
            party.lies, party.tale = True, party.number + 1

    def _perform(self, effect: Effect) -> None:
        super()._perform(effect)
        if isinstance(effect, CompareOutputs):
            self.send(ev.OutputsCompared(effect.job_id, effect.one, effect.other, 100))


# ---------------------------------------------------------------------------------------- receipts


def _again(body: Receipt) -> set[str]:
    return failures(verdict_again(body, DOMAIN, STATEMENT.sign))


@pytest.mark.rule("3.77")
def test_a_receipt_shows_each_two_results_that_differ_once() -> None:
    found = _of_three()
    assert len(found.distances) == 3 and not failures(found)
    first, second, third = found.distances
    for shown in (
        (first, second),
        (first, first, second, third),
        (second, first, third),
        (first, second, Distance(third.other, third.one, third.ppb)),
        (first, second, Distance(third.one, Small(9), third.ppb)),
        (*found.distances, Distance(Small(0), Small(0), 0)),
        (first, second, Distance(third.one, third.other, -1)),
        (),
    ):
        assert "distances" in _again(replace(found, distances=shown))
    assert "bounds" in _again(replace(found, distances=found.distances * 8))


def test_a_receipt_with_another_distance_or_tolerance_gives_another_verdict() -> None:
    found = _of_three()
    apart = tuple(replace(item, ppb=None) for item in found.distances)
    assert {"verdict:group", "verdict:enough"} <= _again(replace(found, distances=apart))
    near = tuple(replace(item, ppb=0) for item in found.distances)
    assert "verdict:enough" in _again(replace(found, distances=near)), "two were enough before"
    strict = replace(found.compare, tolerance_ppm=Ppm(0))
    assert "verdict:group" in _again(replace(found, compare=strict))
    assert "compare" in _again(replace(found, compare=Compare()))
    group = found.verdict.message.group
    other = verdict_again(found, DOMAIN, STATEMENT.sign, group=(*group[1:], group[0]))
    assert "verdict:group" in failures(other), "the first member has the output"
    blamed = verdict_again(found, DOMAIN, STATEMENT.sign, faulted=_outside(found))
    assert "verdict:confirmed" in failures(blamed), "nobody is at fault"


def _outside(body: Receipt) -> tuple[Hash32, ...]:
    names = (item.commit.message.assignment_hash for item in body.executions)
    return tuple(name for name in names if name not in body.verdict.message.group)


def test_a_receipt_of_an_exact_job_shows_no_distances() -> None:
    market = Market(*[Party(number) for number in range(4)])
    market.until_decided(market.order(0, 1))
    found = market.receipt()
    assert found.distances == () and found.compare == Compare()
    assert "distances" in _again(replace(found, distances=(Distance(Small(0), Small(1), 5),)))


@pytest.mark.rule("3.27")
def test_an_order_within_a_tolerance_is_in_no_court() -> None:
    market = NoisyMarket(0, 0, 0)

    def validate(**changes: object) -> None:
        asked = market.submission(0, 1, compare=NUMERIC, **changes)
        now, limits = UnixSeconds(market.at), market.core.rules.limits
        orders.validate(asked, DOMAIN, recover, COORDINATOR.address, now, limits)

    validate()
    with pytest.raises(Refused, match="caseable"):
        validate(caseable=True)
    with pytest.raises(Refused, match="comparator must be the spec's"):
        validate(comparator=Comparator.TEXT)
