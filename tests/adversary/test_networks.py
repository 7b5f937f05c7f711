"""Attacks with networks: one machine that registers as if it stood in many."""

from ipaddress import ip_address

import pytest

from adversary.conftest import Attack
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.views import offer_views
from quorate_coordinator.market.frame_handler import FrameHandler, check_network
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import Heartbeat
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Sequence, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.http.client_networks import registered_network
from support.markets.scripted_market import DOMAIN, Market, Party
from support.memory_archive import MemoryArchive
from support.virtual_clock import VirtualClock

MACHINE = "8.8.4.4"  # the one machine from which all of them connect
OWNER = Address(b"\x11" * 20)


def network(text: str) -> Hash32:
    return registered_network(ip_address(text))


@pytest.mark.rule("3.71")
@pytest.mark.parametrize(
    ("registered", "remote"),
    [
        ("1.2.3.4", "1.2.3.250"),  # another machine of the /24
        ("2600:1:2::1", "2600:1:2:3::9"),  # of the /48
        ("1.2.3.4", "::ffff:1.2.3.9"),
        ("1.2.3.4", "127.0.0.1"),  # these say nothing
        ("1.2.3.4", "10.0.0.7"),
        ("1.2.3.4", "fd00::1"),
        ("1.2.3.4", ""),
    ],
)
def test_an_owner_in_its_own_network_is_taken(registered: str, remote: str) -> None:
    check_network(OWNER, network(registered), remote)


@pytest.mark.rule("3.71")
@pytest.mark.parametrize(
    ("registered", "remote", "named"),
    [
        ("1.2.3.4", MACHINE, "1.2.3.0/24"),
        ("127.0.0.1", MACHINE, "127.0.0.0/24"),
        ("2600:1:2::1", "2600:1:3::1", "2600:1:2::/48"),
        ("2600:1:2::1", MACHINE, "2600:1:2::/48"),
    ],
)
def test_another_network_is_refused_and_both_are_named(
    registered: str, remote: str, named: str
) -> None:
    with pytest.raises(Refused, match=f"the network {named} and connects from {remote}") as told:
        check_network(OWNER, network(registered), remote)
    assert told.value.code is Code.NOT_REGISTERED
    with pytest.raises(Refused, match=f"0x{'ab' * 32}"):
        check_network(OWNER, Hash32(b"\xab" * 32), MACHINE)


@pytest.mark.rule("3.71", "5.17")
async def test_one_machine_cannot_stand_for_many_networks(attack: Attack) -> None:
    """Draws take one execution a network, so each false one would be one more vote."""
    market = Market(*[Party(number) for number in range(5)])
    state, clock = market.core.state, VirtualClock(market.at)
    with state.transaction():
        for number, owner in enumerate(market.parties):
            known = replace(state.providers[owner], network=network(f"1.2.{number}.4"))
            state.providers[owner] = known
    handler = FrameHandler(
        DOMAIN,
        DEVNET,
        market.core,
        None,  # type: ignore[arg-type]  # no frame of this machine becomes an event
        None,  # type: ignore[arg-type]
        clock,
        RunLogs(),
        Outputs(state, MemoryArchive()),
        FrameLimits(DEVNET_BOUNDS, clock.now),
        seen_from=lambda _: MACHINE,
    )
    taken = 0
    for owner, party in market.parties.items():
        beat = Heartbeat(owner, Sequence(10**6), (), (), UnixSeconds(int(market.at)))
        signed = seal(DOMAIN, beat, party.key.sign)
        provider = state.providers[owner]
        assert provider.offer is not None
        offer = OfferEnvelope(provider.offer, seal(DOMAIN, provider.offer.signed(), party.key.sign))
        for frame in (frames.HeartbeatSent(signed), frames.OfferSent(offer)):
            with pytest.raises(Refused, match=f"connects from {MACHINE}"):
                await handler("0x" + owner.hex(), frames.encode(frame))
                taken += 1
    shown = offer_views(state, UnixSeconds(int(market.at)), 10)
    assert [view.network for view in shown] == [network(f"1.2.{number}.4") for number in range(5)]
    attack(
        name="one machine registers five networks",
        before="5 votes in every draw of its class",
        now=f"{taken} heartbeats taken, so no work",
        cost="a stake and an address for each network",
    )
