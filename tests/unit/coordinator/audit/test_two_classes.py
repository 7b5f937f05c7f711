"""Tests that other bits in another determinism class are never a fault (PROTOCOL §5 Faults)."""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.lease import class_of
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Accept
from quorate_protocol.refusals import Code
from quorate_protocol.rules import confirmation
from quorate_protocol.rules.confirmation import Repeat
from quorate_protocol.units import Amount, Hash32, Outcome, Seconds, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import DOMAIN, Market, Party
from support.offers import MACHINE
from support.receipts import failures
from support.refusals import refuses

OTHER = replace(MACHINE, level="v2")
NO_FEES = replace(DEVNET, strike_fees=Amount(0))
ONE, TWO, RIGHT, WRONG = (Hash32(bytes([number]) * 32) for number in range(1, 5))


def market_of(*parties: Party) -> Market:
    """One in which a fault counts from the first job on."""
    market = Market(*parties)
    market.core.rules = replace(market.core.rules, limits=NO_FEES)
    return market


@pytest.mark.rule("5.162", "5.54")
def test_who_is_alone_in_its_class_is_outvoted_and_at_no_fault() -> None:
    rare = Party(0, lies=True, host=OTHER)
    market = market_of(rare, *[Party(number) for number in range(1, 6)])
    for number in range(1, 4):
        job_id = market.order(0, number)
        market.until_decided(job_id)
        verdict = market.verdict(job_id)
        assert verdict.outcome is Outcome.ACCEPTED and not verdict.faulted
        assert not failures(market.receipt())
    assert not market.earned(rare.owner)
    (trust,) = market.core.state.trust[rare.owner].by_class.values()
    assert trust.passed == 0 and not trust.strikes
    (fault,) = market.core.state.faults[rare.owner]
    assert fault.is_in_no_case, "one of a client counts, and no court hears it"


@pytest.mark.rule("5.114")
def test_in_a_class_of_the_group_another_result_is_a_fault_by_two_repeats_there() -> None:
    liar, rare = Party(0, lies=True), Party(1, host=OTHER)
    market = market_of(liar, rare, *[Party(number) for number in range(2, 7)])
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    job, verdict = market.job(job_id), market.verdict(job_id)
    assert [market.core.state.leases[item].provider for item in verdict.faulted] == [liar.owner]
    repeats = [batch for batch in job.batches if batch.is_repeat]
    again = [market.core.state.leases[item] for batch in repeats for item in batch.members]
    accused = market.core.state.leases[verdict.faulted[0]]
    assert len(again) == 2 and {class_of(item) for item in again} == {class_of(accused)}
    assert not failures(market.receipt())


@pytest.mark.rule("5.114", "5.162")
def test_a_fault_that_one_of_its_class_confirms_stays_unconfirmed() -> None:
    """One owner that names another's class cannot make its honest result a fault."""
    honest, false = Party(0, lies=True, host=OTHER), Party(1, host=OTHER)
    market = market_of(honest, false, *[Party(number) for number in range(2, 5)])
    job_id = market.order(0, 1)
    market.until_decided(job_id, seconds=400)
    verdict = market.verdict(job_id)
    named = {market.core.state.leases[item].provider for item in verdict.faulted}
    assert honest.owner not in named
    assert not failures(market.receipt())


@pytest.mark.rule("2.23", "2.39")
def test_another_class_than_the_accepts_and_another_host_than_the_offers_are_refused() -> None:
    class Switching(Market):
        """Its providers accept on another machine than they offered, or commit to one."""

        def accept(self, party: Party, hashed: Hash32, time: int = 0) -> None:
            at = UnixSeconds(time or self.at)
            other = Accept(hashed, OTHER.digest(), Seconds(0), Seconds(1), Seconds(0), at)
            with refuses(Code.WRONG_CLASS, r"accept.host: your offer says x86_64-v3"):
                self.send(ev.AcceptReceived(seal(DOMAIN, other, party.key.sign), party.key.address))
            super().accept(party, hashed, time)
            party.host = OTHER

    market = Switching(*[Party(number) for number in range(3)])
    market.order(0, 1)
    with refuses(Code.WRONG_CLASS, "commit.classId: your Accept named another"):
        market.deliver()


def test_only_results_of_one_class_contradict_each_other() -> None:
    ran = [(RIGHT, ONE), (WRONG, TWO), (None, ONE)]
    assert confirmation.disputed(ran, RIGHT) == frozenset()
    assert confirmation.disputed([*ran, (WRONG, ONE)], RIGHT) == {ONE}
    repeats = [Repeat(ONE, RIGHT, RIGHT, ONE), Repeat(TWO, RIGHT, RIGHT, TWO)]
    assert [confirmation.missing(repeats, RIGHT, kind) for kind in (ONE, TWO)] == [1, 1]


def test_nobody_is_told_who_else_runs_the_job() -> None:
    """An Assignment says nothing of the classes that are present."""
    market = market_of(Party(0, lies=True, host=OTHER), *[Party(n) for n in range(1, 5)])
    market.until_decided(market.order(0, 1))
    sent = [
        effect.frame.assignment.message
        for effect in market.effects
        if isinstance(effect, Send) and isinstance(effect.frame, frames.AssignmentSent)
    ]
    assert len({item.pool for item in sent}) == 1 and len(sent) > 2
