"""Tests that a provider answers demands for its reveals."""

import pytest

from quorate_contracts.bindings import events as chain_events
from quorate_contracts.bindings.faults import FaultKind
from quorate_node.chain.court_follower import translate
from quorate_node.core import effects, events
from quorate_node.core.execution import KEEP_SECONDS
from quorate_node.core.phases import Committed, Lapsed, Revealed
from quorate_node.core.provider_core import ProviderCore
from quorate_protocol.limits import DAY, DEVNET, MAINNET
from quorate_protocol.units import Address, Hash32, UnixSeconds
from support.markets.provider_world import NOW, PROVIDER, Driver, make_terms

STRANGER = Address(b"\x98" * 20)


def demanded(lease: Hash32, liable: Address = PROVIDER) -> events.ChainRevealDemanded:
    return events.ChainRevealDemanded(lease, liable, UnixSeconds(NOW + 30 * DAY))


@pytest.mark.rule("5.63", "5.132")
def test_a_demanded_reveal_is_answered_while_the_job_runs_and_after_it_lapsed() -> None:
    """A coordinator that never showed its CommitSet may not fine the provider for silence."""
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    assert driver.do(demanded(lease)) == (), "nothing is committed"
    phase = driver.advance(lease, Committed).phase
    assert isinstance(phase, Committed)
    expected = (effects.AnswerDemand(lease, phase.reveal, UnixSeconds(NOW + 30 * DAY)),)
    assert driver.do(demanded(lease)) == expected
    driver.do(events.Tick(), after=8 * DAY)
    assert isinstance(driver.execution(lease).phase, Lapsed)
    assert driver.do(demanded(lease)) == expected
    twin = Driver(ProviderCore(make_terms()), driver.now, 900)
    twin.core.restore(driver.core.snapshot())
    assert twin.do(demanded(lease)) == expected


@pytest.mark.rule("5.132")
def test_a_reveal_is_kept_as_long_as_evidence_counts_and_then_forgotten() -> None:
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    driver.advance(lease, Revealed)
    assert max(MAINNET.case_evidence_age, DEVNET.case_evidence_age) <= KEEP_SECONDS
    for _ in range(3):
        driver.do(events.Tick(), after=KEEP_SECONDS // 2)
    driver.do(events.Tick(), after=2 * KEEP_SECONDS)
    driver.do(events.Tick(), after=2 * KEEP_SECONDS)
    assert not driver.core.executions and not driver.core.settled and not driver.core.reveals


def test_demands_to_others_for_secrets_and_that_ended_are_not_answered() -> None:
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    driver.advance(lease, Committed)
    assert driver.do(demanded(lease, STRANGER)) == ()
    assert driver.do(events.ChainRevealDemanded(lease, PROVIDER, UnixSeconds(NOW - 1))) == ()
    opened = chain_events.DemandOpened(lease, PROVIDER, int(FaultKind.UNREVEALED), UnixSeconds(NOW))
    assert translate(opened) == events.ChainRevealDemanded(lease, PROVIDER, UnixSeconds(NOW))
    secret = chain_events.DemandOpened(
        lease, PROVIDER, int(FaultKind.UNOPENED_SECRET), UnixSeconds(NOW)
    )
    assert translate(secret) is None
