"""Offers and heartbeats in the core: who is alive, what a refresh changes, which slots are free."""

import pytest

from quorate_coordinator.core import views
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Matching, Provider, Running, WorkWindow
from quorate_coordinator.market.frame_handler import PendingRefreshes
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import WITHDRAWN, Offer, OfferEnvelope, validate
from quorate_protocol.messages.signed import FreeSlots, Heartbeat
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32, Sequence, Small, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import CPUS, DOMAIN, Market, Party
from support.offers import a_slot
from support.refusals import refuses

ALIVE_SECONDS = 10


class Provided(Market):
    """A market of providers with two run slots each; `first` is the one that the tests look at."""

    slots = 2

    def __init__(self, providers: int = 3) -> None:
        super().__init__(*[Party(number) for number in range(providers)])
        self.first = next(iter(self.parties.values()))
        self.refreshes = PendingRefreshes(self.core.state)

    @property
    def provider(self) -> Provider:
        """The first provider as the core knows it."""
        return self.core.state.providers[self.first.owner]

    @property
    def offer(self) -> Offer:
        """Its offer."""
        assert self.provider.offer is not None
        return self.provider.offer

    def signed(self, **changes: object) -> OfferEnvelope:
        """The offer with changes, with a signature of its own."""
        offer = replace(self.offer, **changes)  # type: ignore[arg-type]
        return OfferEnvelope(offer, seal(DOMAIN, offer.signed(), self.first.key.sign))

    def take(self, envelope: OfferEnvelope) -> bool:
        """Takes an offer as the frame handler does. False if nothing is journaled."""
        if self.refreshes.keep(envelope, self.first.key.address):
            return False
        self.send(ev.OfferReceived(envelope, self.first.key.address))
        return True

    def heartbeat(self, free: int | None = None, time: int | None = None) -> None:
        """A heartbeat of the first provider with so many free slots."""
        report = () if free is None else (FreeSlots(CPUS.id(), Small(free), Small(0)),)
        seq = Sequence(self.provider.heartbeat_seq + 1)
        beat = Heartbeat(self.first.owner, seq, report, (), UnixSeconds(time or self.at))
        refresh = self.refreshes.of(self.first.owner)
        self.send(
            ev.HeartbeatReceived(
                seal(DOMAIN, beat, self.first.key.sign), self.first.key.address, refresh
            )
        )
        self.refreshes.carried(self.first.owner, refresh)

    def widen(self, slots: int) -> None:
        """Lets each provider hold so many run slots at once."""
        with self.core.state.transaction():
            for owner in self.parties:
                self.core.state.work_windows[owner] = (WorkWindow(CPUS.id(), slots),)

    def deafen(self) -> None:
        """No provider receives frames from now on."""
        for party in self.parties.values():
            party.is_deaf = True

    def free(self) -> int:
        """Run slots of the first provider that the coordinator would assign."""
        return offers.free_slots(self.context(), self.provider, CPUS.id())

    def shown_free(self) -> int:
        """The same, as clients see it."""
        return views.offer_views(self.core.state, UnixSeconds(self.at), 1)[0].free_slots


@pytest.mark.rule("2.19")
def test_a_gpu_with_other_figures_than_the_catalogues_is_refused() -> None:
    market = Provided()
    slot = a_slot(Pool("T4", "", Small(1)), 100_000)
    slots = (replace(slot, host=replace(slot.host, sm_count=41)),)
    with refuses(Code.MALFORMED, r"offer.slots: gpu: T4 has compute capability 7.5 with 40 SMs"):
        market.take(market.signed(seq=Sequence(2), slots=slots))


# ------------------------------------------------------------------------------------------- stake


@pytest.mark.rule("3.45")
def test_an_offer_of_more_run_slots_than_stake_slots_is_refused_with_both_numbers() -> None:
    market = Provided()
    slot = replace(market.offer.slots[0], count=Small(200))
    with refuses(Code.OVER_STAKE, r"200 run slots .* has 2 active stake slots"):
        market.take(market.signed(seq=Sequence(2), slots=(slot,)))
    other = replace(a_slot(Pool("T4", "", Small(1)), 100_000), count=Small(1))
    with pytest.raises(Refused, match="has 0 active stake slots"):
        market.take(market.signed(seq=Sequence(2), slots=(other,)))
    assert market.take(market.signed(seq=Sequence(3), expires=WITHDRAWN))


@pytest.mark.rule("3.45")
def test_a_refresh_is_refused_once_its_stake_is_gone() -> None:
    market = Provided()
    slots = market.core.state.pool_slots[CPUS.id()].slots
    mine = next(slot for slot in slots if slot.owner == market.first.owner)
    market.chain_says(ev.ChainSlotClosed(CPUS.id(), mine.index, market.next_block))
    market.chain_says()
    with pytest.raises(Refused, match="has 1 active stake slots"):
        market.take(market.signed(seq=Sequence(2)))


# --------------------------------------------------------------------------------------- liveness


@pytest.mark.rule("3.47")
def test_an_offer_without_heartbeats_is_in_the_book_and_is_not_matched() -> None:
    market = Provided(1)
    market.at += ALIVE_SECONDS
    assert market.take(market.signed(seq=Sequence(2), region="us"))
    [view] = views.offer_views(market.core.state, UnixSeconds(market.at), 10)
    assert view.offer.region == "us" and not view.is_alive
    with pytest.raises(Refused, match="no provider is alive"):
        market.order(0, 1, accept_unverified=True)
    market.heartbeat()
    job_id = market.order(0, 1, accept_unverified=True)
    assert isinstance(market.job(job_id).phase, Running)


@pytest.mark.rule("3.47")
def test_a_provider_whose_first_offer_comes_after_a_heartbeat_waits_for_the_next_one() -> None:
    market = Provided()
    first = market.signed(seq=Sequence(2))
    with market.core.state.transaction():
        market.core.state.providers[market.first.owner] = replace(market.provider, offer=None)
    market.heartbeat(free=0)
    assert market.take(first) and not market.provider.is_alive(UnixSeconds(market.at))
    market.heartbeat(free=1)
    assert market.provider.is_alive(UnixSeconds(market.at)) and market.free() == 1


@pytest.mark.rule("3.47")
def test_a_heartbeat_that_revives_a_provider_matches_the_jobs_that_wait() -> None:
    market = Provided()
    market.deafen()
    waiting = market.order(0, 1)
    running = market.job(waiting).leases
    assert len(running) == 1
    market.beats(4 * ALIVE_SECONDS)
    assert isinstance(market.job(waiting).phase, Matching)
    market.at += ALIVE_SECONDS
    market.heartbeat()
    assert isinstance(market.job(waiting).phase, Running)


# ---------------------------------------------------------------------------------------- refreshes


@pytest.mark.rule("3.46")
def test_a_refresh_is_journaled_only_with_the_next_heartbeat() -> None:
    market = Provided()
    later = UnixSeconds(market.at + 900)
    journaled = len(market.log)
    assert not market.take(market.signed(seq=Sequence(7), expires=later))
    assert not market.take(market.signed(seq=Sequence(7), expires=later)), "a repeat"
    with pytest.raises(Refused, match="seq 6 is not above 7"):
        market.take(market.signed(seq=Sequence(6), expires=UnixSeconds(later - 1)))
    assert len(market.log) == journaled and market.offer.seq == 1
    market.heartbeat()
    assert (market.offer.seq, market.offer.expires) == (7, later)
    assert len(market.log) == journaled + 1
    [view, *_] = views.offer_views(market.core.state, UnixSeconds(market.at), 10)
    key = validate(view.envelope(), DOMAIN, recover, UnixSeconds(market.at), 900)
    assert key == market.first.key.address, "the book shows the signature of the refresh"


@pytest.mark.rule("3.46")
@pytest.mark.parametrize(
    "change", [{"region": "us"}, {"expires": WITHDRAWN}, {"addresses": ("http://127.0.0.1:1",)}]
)
def test_a_changed_offer_is_journaled_at_once(change: dict[str, object]) -> None:
    market = Provided()
    journaled = len(market.log)
    assert market.take(market.signed(seq=Sequence(2), **change))
    assert len(market.log) == journaled + 1 and market.offer.seq == 2


@pytest.mark.rule("3.46")
def test_a_refresh_does_not_renew_another_offer_than_its_own() -> None:
    market = Provided()
    later = UnixSeconds(market.at + 900)
    market.take(market.signed(seq=Sequence(5), expires=later))
    changed = replace(market.offer, seq=Sequence(3), region="us")
    market.send_offer(market.first, changed)
    market.heartbeat()
    assert market.offer == changed


@pytest.mark.rule("3.46", "I6")
def test_a_lost_refresh_leaves_the_journaled_expiry_and_a_replay_gives_the_same_state() -> None:
    market = Provided()
    market.take(market.signed(seq=Sequence(5), expires=UnixSeconds(market.at + 900)))
    market.heartbeat()
    expires = market.offer.expires
    market.take(market.signed(seq=Sequence(6), expires=UnixSeconds(market.at + 901)))
    restarted = CoordinatorCore(market.core.rules)
    for item in market.log:
        restarted.step(item)
    assert restarted.snapshot() == market.core.snapshot()
    known = restarted.state.providers[market.first.owner]
    assert known.offer is not None and known.offer.expires == expires
    market.refreshes = PendingRefreshes(market.core.state)
    assert not market.take(market.signed(seq=Sequence(6), expires=UnixSeconds(market.at + 901)))


# --------------------------------------------------------------------------------------- free slots


@pytest.mark.rule("3.48")
def test_slots_that_another_coordinator_took_are_not_assigned() -> None:
    market = Provided()
    assert market.free() == market.shown_free() == 1, "no more, until it has worked"
    market.widen(2)
    assert market.free() == market.shown_free() == 2
    market.heartbeat(free=1)
    assert market.free() == market.shown_free() == 1
    market.heartbeat(free=0)
    assert market.free() == market.shown_free() == 0
    market.deafen()
    assigned = [market.order(0, number) for number in range(1, 6)]
    used = [item for item in market.core.state.leases.values() if item.occupies_slot]
    assert len(assigned) == 5 and all(item.provider != market.first.owner for item in used)
    market.heartbeat(free=2)
    assert market.free() == 1, "the slot that was free again went to the job that waited"


@pytest.mark.rule("3.48")
def test_slots_that_an_offer_adds_are_assigned_after_the_next_heartbeat() -> None:
    market = Provided()
    market.widen(2)
    [slot] = market.offer.slots
    assert market.take(market.signed(seq=Sequence(2), slots=(replace(slot, count=Small(1)),)))
    market.heartbeat(free=1)
    assert market.free() == 1
    assert market.take(market.signed(seq=Sequence(3), slots=(slot,)))
    assert market.free() == 1, "another coordinator may use the slot that was offered again"
    market.heartbeat(free=2)
    assert market.free() == 2


@pytest.mark.rule("3.46")
def test_an_offer_that_comes_again_by_gossip_is_not_journaled() -> None:
    market = Provided()
    assert market.take(again := market.signed(seq=Sequence(2), region="us"))
    journaled = len(market.log)
    assert not market.take(again)
    market.heartbeat()
    assert len(market.log) == journaled + 1 and market.offer.seq == 2


def lease_of_the_first(market: Provided) -> Hash32:
    """Lets the first provider take a job that it does not finish, and returns the lease."""
    market.deafen()
    for number in range(1, 7):
        market.order(0, number)
    [lease, *_] = market.core.state.leases_in_slots[market.first.owner]
    return lease


@pytest.mark.rule("3.48")
def test_a_lease_of_ours_is_not_held_for_one_of_another_coordinator() -> None:
    market = Provided()
    lease = lease_of_the_first(market)
    assert market.free() == 0, "both slots are ours"
    market.accept(market.first, lease)
    market.at += 1
    market.heartbeat(free=1)
    assert market.provider.elsewhere == (), "the second Assignment is not answered yet"


@pytest.mark.rule("3.48")
def test_an_accept_that_arrives_after_its_heartbeat_is_counted_once() -> None:
    market = Provided()
    lease = lease_of_the_first(market)
    market.heartbeat(free=1, time=market.at + 2)
    assert market.provider.taken_elsewhere(CPUS.id()) == 1, "not known to be ours yet"
    market.accept(market.first, lease, market.at + 1)
    assert market.provider.elsewhere == ()
