"""Attacks by clients whose jobs are to count against the owners that get them (PROTOCOL 4.40)."""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model import market_index
from quorate_coordinator.core.model.entities import WorkWindow
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Accept, Assignment, Decline
from quorate_protocol.rules.reputation.rank import rank_ppm
from quorate_protocol.units import PPM_ONE, DeclineReason, Milliseconds, Seconds, UnixSeconds
from support.markets.scripted_market import CPUS, DOMAIN, Market, Party
from support.offers import MACHINE

BAITS = 5
HONEST = range(1, 5)


class BaitMarket(Market):
    """The first provider is the client's own. The others give up each bait, as honest ones must."""

    slots = 8
    is_bait = True

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if not self.is_bait or not party.number:
            super()._run(party, assignment, spec)
            return
        self.give_up(party, assignment)

    def give_up(self, party: Party, assignment: Assignment) -> None:
        hashed, at = digest(DOMAIN, assignment), UnixSeconds(self.at)
        accept = Accept(hashed, MACHINE.digest(), Seconds(0), Seconds(1), Seconds(0), at)
        self.send(ev.AcceptReceived(seal(DOMAIN, accept, party.key.sign), party.key.address))
        no = Decline(hashed, DeclineReason.INPUT_UNAVAILABLE, UnixSeconds(0), at)
        self.send(ev.DeclineReceived(seal(DOMAIN, no, party.key.sign), party.key.address))


def hurt_of(market: Market) -> int:
    """How many honest owners are away, rank lower, or may hold less."""
    state, hurt = market.core.state, 0
    for party in list(market.parties.values())[1:]:
        is_lower = rank_ppm(state.trust.get(party.owner), UnixSeconds(market.at), 0) > PPM_ONE
        window = market_index.work_window(state, party.owner, CPUS.id())
        is_away = not state.providers[party.owner].is_alive(UnixSeconds(market.at))
        hurt += is_lower or is_away or window < 8
    return hurt


@pytest.mark.rule("4.40", "4.46")
def test_five_baits_of_one_client_hurt_no_owner(attack) -> None:  # type: ignore[no-untyped-def]
    market = BaitMarket(Party(0), *[Party(number) for number in HONEST])
    market.ran_ms = Milliseconds(0)
    with market.core.state.transaction():
        for owner in market.parties:
            market.core.state.work_windows[owner] = (WorkWindow(CPUS.id(), 8),)
    for nonce in range(1, BAITS + 1):
        market.order(0, nonce)
    for _ in range(2 * DEVNET.heartbeat_alive + 60):
        market.beat()
    charged = market.core.state.clients[market.clients[0].address].charged
    hurt = hurt_of(market)
    attack(
        name="five orders that only the client's own owner can run, with charge 0",
        before="every other owner of the class off offer: 1 h, 2 h, 4 h",
        now=f"{hurt} of 4 owners away, ranked lower, or with fewer run slots",
        cost=f"{charged} micro-USD",
    )
    assert not hurt
    market.is_bait, market.ran_ms = False, Milliseconds(1000)
    market.until_decided(market.order(1, 100))


class PostponingMarket(Market):
    """All providers but the first postpone what they are drawn for, although they are free."""

    slots = 8

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        hashed, at = digest(DOMAIN, assignment), self.at
        if not self.core.state.leases[hashed].is_drawn:
            super()._run(party, assignment, spec)
            return
        later = Decline(hashed, DeclineReason.BUSY, UnixSeconds(at + 5), UnixSeconds(at))
        self.send(ev.DeclineReceived(seal(DOMAIN, later, party.key.sign), party.key.address))


@pytest.mark.rule("4.2", "4.40", "5.110")
def test_auditors_that_postpone_while_free_rank_lower_and_their_primary_is_paid(attack) -> None:  # type: ignore[no-untyped-def]
    market = PostponingMarket(Party(0, lies=True), *[Party(number) for number in HONEST])
    job_id = market.order(0, 1, accept_unverified=True)
    market.until_decided(job_id, seconds=300)
    first = next(iter(market.parties))  # a liar's price is the lowest
    declined = [
        lease
        for lease in (market.core.state.leases[it] for it in market.job(job_id).leases)
        if lease.phase == leases.Declined(UnixSeconds(0))
    ]
    assert {lease.provider for lease in declined} == set(market.parties) - {first}
    assert market.earned(first) == market.job(job_id).split.charged * 100 // 102 > 0
    attack(
        name="drawn owners that are free and postpone past patience",
        before="no answer that counts; the honest primary waits",
        now=f"{len(declined)} declines, and the primary is paid one execution",
        cost="the audits' pay",
    )
