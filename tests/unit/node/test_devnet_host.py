"""A devnet's rentals reach a server of this machine by one name, and nobody else's do."""

import asyncio
import socket

import pytest

from quorate_node.rentals.egress import DevnetHost, DevnetInternet, devnet_host
from quorate_node.rentals.public_addresses import OwnNetworks, may_reach
from quorate_protocol.refusals import Refused


@pytest.mark.parametrize(
    ("text", "is_devnet"),
    [
        ("packages.test=127.0.0.1:80", False),
        ("127.0.0.1=127.0.0.1:80", True),
        ("packages.test", True),
        ("packages.test=127.0.0.1:x", True),
    ],
)
def test_a_host_is_refused_outside_of_devnets_and_when_malformed(
    text: str, is_devnet: bool
) -> None:
    with pytest.raises(Refused, match="devnet_host"):
        devnet_host(text, is_devnet)


async def test_its_name_has_a_public_address_and_its_server_answers(socket_enabled: None) -> None:
    assert devnet_host("", is_devnet=False) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host = devnet_host(f"packages.test=127.0.0.1:{port}", is_devnet=True)
        assert host == DevnetHost("packages.test", "127.0.0.1", port)
        internet = DevnetInternet(host)
        (address,) = await internet.resolve("packages.test")
        assert may_reach(address, OwnNetworks())
        with await internet.connect(address, 443):
            link, _ = await asyncio.to_thread(server.accept)
            link.close()
        internet.close()
