"""Tests the appeal of a provider against a Verdict that faults it (PROTOCOL §5).

Money is conserved after each appeal.
"""

from dataclasses import dataclass, field

import pytest

from contracts.evm import refused
from contracts.market import BOSS, COORDINATOR, POSTER, Market, key, peopled
from contracts.trial import Trial, money, verdict_of
from quorate_contracts.bindings.cases import appeal_bond
from quorate_contracts.bindings.court import CaseId, CaseOutcome
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Reveal, Verdict

OWNER = key("owner0")
PAY = 20_000 * 2_000_000 // 3_600_000  # of the provider, by its usage
JURY_PAY = DEVNET.jury_pay_min
FEE = DEVNET.jury_gas_fee


@dataclass
class Appeal(Trial):
    """One appeal of `OWNER`; the steps are those of a case."""

    verdict: Envelope[Verdict] | None = field(default=None)

    @classmethod
    def of(cls, world: Market, **changes: object) -> "Appeal":
        """Returns an appeal over one execution, not opened yet."""
        made = world.execution(OWNER.address, key("client0"), b"an honest answer", **changes)
        appeal = cls(world, [made])
        appeal.verdict = verdict_of(world, made)
        return appeal

    def opened_at_court(self) -> "Appeal":
        """Opens the appeal."""
        self.market.evm.send(OWNER.address, self.call())
        self.case = CaseId(self.market.evm.ask(self.market.contracts.court.case_count()))
        return self

    def call(self):  # type: ignore[no-untyped-def]
        shown = self.evidence[0].shown
        assert self.verdict is not None
        return self.market.contracts.cases.open_appeal(shown.job, shown.run, self.verdict)

    def reveals(self) -> list[Reveal]:
        return [self.evidence[0].reveal]


def bond(world: Market) -> int:
    return world.evm.ask(world.contracts.stakes.bond_of(COORDINATOR.address))


@pytest.mark.rule("5.85", "5.86")
def test_a_provider_that_was_faulted_wrongly_wins_its_appeal() -> None:
    world = peopled()
    before = world.balance(OWNER.address)
    appeal = Appeal.of(world)
    shown = appeal.evidence[0].shown
    cost = appeal_bond(shown.job, shown.run, DEVNET)
    appeal.opened_at_court()
    assert world.balance(OWNER.address) == before - cost == before - 7 * (JURY_PAY + FEE)
    decided = appeal.judged([appeal.own()] * 7)
    assert decided.convicted and decided.accused == COORDINATOR.address and decided.burned == 0
    assert decided.slashed == 7 * (JURY_PAY + FEE) + FEE + PAY
    assert bond(world) == DEVNET.coordinator_bond - decided.slashed
    credit = world.evm.ask(world.contracts.court.credit_of(OWNER.address))
    assert credit == cost + FEE + PAY, "its bond, gas and pay"
    refused(world.evm, "named", OWNER.address, appeal.call())
    money(world)


@pytest.mark.rule("5.82", "5.86")
@pytest.mark.parametrize("for_it", [0, 4])
def test_an_appeal_that_fails_costs_its_provider_the_jury(for_it: int) -> None:
    world = peopled()
    appeal = Appeal.of(world).opened_at_court()
    other = (keccak256(b"what the jury found"),)
    decided = appeal.judged([appeal.own()] * for_it + [other] * (7 - for_it))
    assert decided.outcome == CaseOutcome.ACQUITTED and bond(world) == DEVNET.coordinator_bond
    assert world.evm.ask(world.contracts.court.credit_of(OWNER.address)) == 0
    if not for_it:
        refused(world.evm, "named", OWNER.address, appeal.call())
    money(world)


@pytest.mark.rule("5.126")
def test_a_coordinator_that_grants_an_appeal_pays_no_jury() -> None:
    world = peopled()
    court = world.contracts.court
    before = world.balance(OWNER.address)
    appeal = Appeal.of(world).opened_at_court()
    refused(world.evm, "liable", BOSS.address, court.concede(appeal.case))
    accusation = Trial.opened(world, key("owner3").address)
    refused(world.evm, "phase", POSTER.address, court.concede(accusation.case))
    world.fork().evm.send(COORDINATOR.address, court.concede(appeal.case))
    world.evm.send(POSTER.address, court.concede(appeal.case))
    assert appeal.now.outcome == CaseOutcome.CONVICTED
    assert bond(world) == DEVNET.coordinator_bond - FEE - PAY
    assert world.evm.ask(world.contracts.stakes.frozen(COORDINATOR.address)) == 0
    world.evm.send(BOSS.address, court.withdraw(OWNER.address))
    payout = world.balance(key("payout0").address)
    assert world.balance(OWNER.address) - before + payout == FEE + PAY
    refused(world.evm, "phase", POSTER.address, court.concede(appeal.case))
    late = Appeal.of(world).opened_at_court()
    late.draw()
    refused(world.evm, "phase", POSTER.address, court.concede(late.case))
    money(world)


@pytest.mark.rule("5.85")
def test_an_appeal_shows_a_verdict_of_its_coordinator_that_faults_it() -> None:
    world = peopled()
    appeal = Appeal.of(world)
    (each,) = appeal.evidence
    other = world.execution(OWNER.address, key("client1"))
    for wrong in (
        verdict_of(world, other),
        verdict_of(world, each, faulted=()),
        verdict_of(world, each, job_id=keccak256(b"another job")),
        verdict_of(world, each, key("stranger")),
        verdict_of(world, each, key("operator1")),
    ):
        appeal.verdict = wrong
        refused(world.evm, "verdict", OWNER.address, appeal.call())
    appeal.verdict = verdict_of(world, each)
    refused(world.evm, "provider", key("owner1").address, appeal.call())
    appeal.opened_at_court()
    refused(world.evm, "named", OWNER.address, appeal.call())
    Trial(world, [each, other]).open()
    assert world.evm.ask(world.contracts.stakes.frozen(COORDINATOR.address)) == 1


@pytest.mark.rule("5.85")
def test_an_appeal_draws_neither_the_provider_nor_its_coordinator() -> None:
    world = peopled(providers=8)
    appeal = Appeal.of(world).opened_at_court()
    appeal.draw()
    assert len(appeal.jurors) == 7 and OWNER.address not in appeal.jurors
    few = peopled(providers=3)
    refused(few.evm, "owners", OWNER.address, Appeal.of(few).call())
