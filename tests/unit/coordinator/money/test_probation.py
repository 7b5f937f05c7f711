"""An owner without stake works in one run slot, and its pay is held until it has a stake slot."""

import pytest

from quorate_coordinator.core import views
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Send
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, Hash32, UnixSeconds
from quorate_protocol.values import replace
from support.markets.scripted_market import CPUS, Market, Party
from support.offers import a_slot, an_offer
from support.refusals import refuses


class Newcomers(Market):
    """A market with owners that have a stake slot each, and one newcomer without any."""

    def __init__(self, *staked: Party, slot_stake: Amount = DEVNET.slot_stake) -> None:
        super().__init__(*staked)
        limits = replace(DEVNET, slot_stake=slot_stake)
        self.core.rules = replace(self.core.rules, limits=limits)
        self.newcomer = self.enter(Party(30))

    def enter(self, party: Party, network: Hash32 | None = None) -> Party:
        """Registers an owner that has no stake."""
        index = 100 + party.number
        place = hash_tuple("net", index) if network is None else network
        note = ev.ChainProviderRegistered(party.owner, party.key.address, party.owner, place)
        self.parties[party.owner] = party
        self.chain_says(note)
        return party

    def offers(self, party: Party, slots: int = 1, seq: int = 1, price: int = 50_000) -> None:
        """The owner offers run slots, cheaper than the others, and says that they are free."""
        offer = an_offer(party.owner, seq, self.at + 900, (a_slot(CPUS, price, slots),))
        self.send_offer(party, offer)
        self._send_heartbeats(is_first=True)

    def stakes(self, party: Party, place: int = 20) -> None:
        """The owner opens a stake slot."""
        self.chain_says(ev.ChainSlotOpened(CPUS.id(), place, party.owner, self.next_block))

    def works(self, nonce: int) -> None:
        """A client orders a job, and accepts that its result is unverified."""
        self.until_decided(self.order(0, nonce, accept_unverified=True))
        self.beats(3)

    def shown(self) -> tuple[int, int]:
        """The newcomer's final and held pay, as the coordinator shows it."""
        at = UnixSeconds(self.at)
        found = views.provider_view(self.core.state, self.newcomer.owner, at)
        return found.final, found.held

    def vouched(self) -> int:
        """The newest voucher that the newcomer was sent."""
        frames_sent = [item.frame for item in self.sent(Send) if item.peer == self.newcomer.owner]
        vouchers = [item.voucher for item in frames_sent if isinstance(item, frames.VoucherSent)]
        return vouchers[-1].message.cumulative if vouchers else 0


@pytest.mark.rule("5.92")
def test_the_pay_of_a_newcomer_is_held_until_it_has_a_stake_slot() -> None:
    market = Newcomers()
    market.offers(market.newcomer)
    market.works(1)
    final, earned = market.shown()
    assert earned > 0 == final == market.vouched()
    market.stakes(market.newcomer)
    market.beat()
    assert market.shown() == (earned, 0) and market.vouched() == earned


@pytest.mark.rule("5.92")
def test_pay_that_reaches_the_stake_of_a_slot_is_final_and_ends_the_offer() -> None:
    market = Newcomers(slot_stake=Amount(600))
    market.offers(market.newcomer)
    market.works(1)
    assert market.shown()[0] == market.vouched() == 0 < market.shown()[1] < 600
    market.works(2)
    assert market.shown() == (market.vouched(), 0) and market.vouched() >= 600
    with refuses(Code.OVER_STAKE, "0 active stake slots; open more"):
        market.offers(market.newcomer, seq=2)
    market.stakes(market.newcomer)
    market.beat()
    market.beat()
    market.offers(market.newcomer, seq=2)


@pytest.mark.rule("5.92")
def test_final_pay_does_not_fall_when_the_stake_goes() -> None:
    market = Newcomers()
    market.offers(market.newcomer)
    market.stakes(market.newcomer)
    market.works(1)
    final = market.vouched()
    market.chain_says(ev.ChainSlotClosed(CPUS.id(), 20, market.next_block))
    market.works(2)
    assert market.vouched() >= final > 0
    provider = market.core.state.providers[market.newcomer.owner]
    assert not provider.is_on_probation


@pytest.mark.rule("5.92")
@pytest.mark.parametrize(("staked", "is_unverified"), [(3, False), (1, True)])
def test_a_newcomer_gets_no_verified_job_and_none_that_an_owner_with_stake_can_run(
    staked: int, is_unverified: bool
) -> None:
    market = Newcomers(*(Party(number) for number in range(staked)))
    market.offers(market.newcomer)
    job = market.order(0, 1, accept_unverified=is_unverified)
    market.until_decided(job)
    ran = {market.core.state.leases[lease].provider for lease in market.job(job).leases}
    assert ran and market.newcomer.owner not in ran


@pytest.mark.rule("5.92")
def test_one_run_slot_and_one_newcomer_of_a_network() -> None:
    market = Newcomers()
    with pytest.raises(Refused, match="2 run slots .* has 0 active stake slots"):
        market.offers(market.newcomer, slots=2)
    market.offers(market.newcomer)
    network = market.core.state.providers[market.newcomer.owner].network
    neighbour = market.enter(Party(31), network)
    with refuses(Code.OVER_STAKE, "another owner on probation"):
        market.offers(neighbour)
    market.offers(market.enter(Party(32)))


@pytest.mark.rule("5.92")
def test_owners_that_had_stake_before_are_no_newcomers() -> None:
    market = Newcomers(Party(0))
    old = next(iter(market.parties.values()))
    market.chain_says(ev.ChainSlotClosed(CPUS.id(), 0, market.next_block))
    market.beat()
    market.chain_says()
    with pytest.raises(Refused, match="0 active stake slots"):
        market.offers(old, seq=2)
