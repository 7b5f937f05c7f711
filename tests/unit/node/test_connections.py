"""Which transport a provider uses where libp2p, or a coordinator's address, is missing."""

import logging

import pytest

from quorate_node.base.config import TransportChoice
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.market.connections import make_p2p_transport
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Bps, Seconds
from quorate_runtime import p2p
from quorate_runtime.keys.crypto import PeerKey
from support.markets.provider_world import OPERATOR, PROVIDER
from support.markets.scripted_market import DOMAIN
from support.virtual_clock import VirtualClock

WHY = "libp2p cannot be imported (no GMP headers): apt-get install libgmp-dev"
HERE = ("/ip4/127.0.0.1/tcp/7701",)
KEYS = ProviderKeys(PROVIDER, PROVIDER, OPERATOR, PeerKey(ZERO_HASH), ZERO_HASH)


def transport(choice: TransportChoice, addresses: tuple[str, ...]) -> object:
    """What the daemon makes for one coordinator that shows these addresses."""
    coordinator, beacon = Address(b"\x21" * 20), BeaconView("", bytes(96), Seconds(2), 1)
    info = InfoView(
        coordinator, coordinator, 31337, "", {}, beacon, Bps(0), "devnet", "0", "", addresses
    )
    return make_p2p_transport(choice, (info,), DOMAIN, KEYS, OperatorKeys(KEYS), VirtualClock())


@pytest.fixture
def without_libp2p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p2p, "available", lambda: WHY)


@pytest.mark.usefixtures("without_libp2p")
@pytest.mark.rule("3.55")
def test_missing_libp2p_is_told_with_its_remedy(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert transport(TransportChoice.AUTO, HERE) is None
    assert caplog.messages == [f"connections use WebSocket: {WHY}"]
    with pytest.raises(Refused) as refused:
        transport(TransportChoice.LIBP2P, HERE)
    assert refused.value.detail == f"transport: {WHY}; or use auto"


@pytest.mark.usefixtures("without_libp2p")
def test_owner_who_wants_websocket_hears_nothing_of_libp2p(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert transport(TransportChoice.WEBSOCKET, HERE) is None
    assert caplog.messages == []


def test_coordinators_without_an_address_are_reached_over_websocket() -> None:
    assert transport(TransportChoice.AUTO, ()) is None
    with pytest.raises(Unavailable, match="transport: no coordinator shows a libp2p address"):
        transport(TransportChoice.LIBP2P, ())
