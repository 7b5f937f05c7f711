"""Tests that a key that is rotated during a job still answers for what it signed.

The receipt of that job stays valid (PROTOCOL §2).
"""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, PastKey, Provider
from quorate_coordinator.core.model.lease import Committed
from quorate_protocol.messages.envelope import seal
from quorate_protocol.refusals import Code
from quorate_protocol.units import ZERO_HASH, Address, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.scripted_market import DOMAIN, Market, Party
from support.receipts import failures
from support.refusals import refuses

A, B, C = (Address(bytes([number]) * 20) for number in (1, 2, 3))


@pytest.mark.rule("2.11")
def test_key_at_a_moment_follows_the_rotations() -> None:
    provider = Provider(
        A,
        1,
        C,
        A,
        ZERO_HASH,
        past_keys=(PastKey(A, UnixSeconds(100)), PastKey(B, UnixSeconds(200))),
    )
    valid = {
        at: {key for key in (A, B, C) if provider.has_key(key, UnixSeconds(at))}
        for at in (1, 99, 100, 101, 199, 200, 201)
    }
    assert valid == {1: {A}, 99: {A}, 100: {A, B}, 101: {B}, 199: {B}, 200: {B, C}, 201: {C}}, (
        "inclusive at both ends"
    )


@pytest.mark.rule("2.2", "2.11")
def test_a_key_rotated_during_a_job() -> None:
    market = Market(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    market.until(job_id, AwaitingRound)
    (lease,) = market.core.state.leases.values()
    assert isinstance(lease.phase, Committed)
    party, old = market.parties[lease.provider], market.parties[lease.provider].key
    market.at = max(market.at, lease.assignment.message.accept_by + 1)
    new = KeySigner(b"\x77" * 32)
    rotated = ev.ChainKeyRotated(party.owner, new.address, UnixSeconds(market.at))
    for _ in range(2):  # the follower reports it twice, as after a reorganisation
        market.chain_says(rotated)
    party.key = new
    assert len(market.core.state.providers[party.owner].past_keys) == 1
    message = lease.phase.commit.message
    market.send(ev.CommitReceived(seal(DOMAIN, message, old.sign), old.address, is_stored=True))
    with refuses(Code.WRONG_SIGNER):
        market.send(
            ev.CommitReceived(
                seal(DOMAIN, replace(message, usage_ms=1), new.sign), new.address, is_stored=True
            )
        )  # type: ignore[arg-type]
    market.until_decided(job_id)
    (_,), body = market.receipts, market.receipt()
    assert not failures(body)
    assert (
        body.executions[0].operator_key
        == old.address
        == body.taken_from_chain.parties[0].operator_key
    )


def test_repeated_registration_does_not_restore_the_first_key() -> None:
    market = Market(*[Party(number) for number in range(3)])
    owner, first = next(iter(market.parties)), next(iter(market.parties.values())).key.address
    rotated = ev.ChainKeyRotated(owner, A, UnixSeconds(market.at))
    market.chain_says(rotated)
    market.chain_says(ev.ChainProviderRegistered(owner, first, owner, ZERO_HASH), rotated)
    provider = market.core.state.providers[owner]
    assert provider.operator_key == A and provider.past_keys == (
        PastKey(first, UnixSeconds(market.at)),
    )
