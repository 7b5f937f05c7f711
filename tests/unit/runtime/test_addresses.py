"""Tests URLs and multiaddresses that people and peers write."""

import pytest

from quorate_protocol.refusals import Refused
from quorate_runtime.http.urls import web_url
from quorate_runtime.p2p.multiaddrs import (
    announced,
    dial_address,
    is_public,
    listen_address,
    listen_beside,
)

BAD = (
    "",
    "7701",
    "127.0.0.1:7701",
    "/ip4/127.0.0.1",
    "/ip4/127.0.0.1/udp/7701",
    "/ip4/127.0.0.1/tcp/65536",
    "/ip4/127.0.0.1/tcp/-1",
    "/ip4/127.0.0.1/tcp/٣",
    "/ip4/::1/tcp/7701",
    "/ip6/fe80::1%eth0/tcp/7701",
    "/ip4/127.0.0.1/tcp/7701/p2p/12D3Koo",
    "/ip4/market.example/tcp/7701",
    "/dns4/a b/tcp/7701",
    "/ip4/127.0.0.1/tcp/" + "1" * 5000,
    "/ip4/127.0.0.1/tcp/7701\n",
)


@pytest.mark.parametrize("text", (*BAD, "/dns4/market.example/tcp/7701"))
def test_address_to_listen_on_is_an_ip_address_with_a_tcp_port(text: str) -> None:
    with pytest.raises(Refused, match="p2pListen") as refused:
        listen_address("p2pListen", text)
    assert "/ip4/0.0.0.0/tcp/7701" in refused.value.detail


@pytest.mark.parametrize("text", (*BAD, "/ip4/0.0.0.0/tcp/7701", "/ip6/::/tcp/1", "/dns/x/tcp/0"))
def test_address_to_dial_names_one_machine_and_its_port(text: str) -> None:
    with pytest.raises(Refused, match="p2pAnnounce"):
        dial_address("p2pAnnounce", text)


@pytest.mark.parametrize("text", ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/7701", "/ip4/127.0.0.1/tcp/1"))
def test_good_address_to_listen_on_is_taken(text: str) -> None:
    assert listen_address("p2pListen", text) == text


@pytest.mark.parametrize("text", ("/ip4/10.0.0.1/tcp/1", "/ip6/::1/tcp/7701", "/dns/x-y.z/tcp/2"))
def test_good_address_to_dial_is_taken(text: str) -> None:
    assert dial_address("p2pAnnounce", text) == text


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("/ip4/8.8.8.8/tcp/1", True),
        ("/dns4/market.example/tcp/1", True),
        ("/ip6/2001:4860:4860::8888/tcp/1", True),
        ("/ip4/127.0.0.1/tcp/1", False),
        ("/ip4/10.0.0.1/tcp/1", False),
        ("/ip6/fe80::1/tcp/1", False),
        ("/ip4/169.254.169.254/tcp/80", False),
        ("junk", False),
    ],
)
def test_an_address_is_public_outside_private_networks(text: str, is_one: bool) -> None:
    assert is_public(text) is is_one


def test_libp2p_listens_on_the_port_after_the_http_port() -> None:
    assert listen_beside("127.0.0.1", 7700) == "/ip4/127.0.0.1/tcp/7701"
    assert listen_beside("localhost", 0) == "/ip4/127.0.0.1/tcp/0"
    assert listen_beside("::", 7700) == "/ip6/::/tcp/7701"
    for host, port in (("market.example", 7700), ("127.0.0.1", 65535)):
        with pytest.raises(Refused):
            listen_beside(host, port)


@pytest.mark.parametrize(
    ("listened", "public_url", "shown"),
    [
        ("/ip4/127.0.0.1/tcp/7701", "https://market.example", "/ip4/127.0.0.1/tcp/7701"),
        ("/ip4/0.0.0.0/tcp/7701", "https://market.example", "/dns/market.example/tcp/7701"),
        ("/ip4/0.0.0.0/tcp/7701", "http://203.0.113.7:80", "/ip4/203.0.113.7/tcp/7701"),
        ("/ip6/::/tcp/7701", "http://[2001:db8::1]:80", "/ip6/2001:db8::1/tcp/7701"),
        ("/ip4/0.0.0.0/tcp/7701", "", ""),
    ],
)
def test_host_on_all_addresses_is_announced_under_its_public_name(
    listened: str, public_url: str, shown: str
) -> None:
    assert announced(listened, public_url) == shown


EXAMPLE = "http://127.0.0.1:7700"


@pytest.mark.parametrize(
    "text", ["http://a.example", "https://a.example:8443/market/", "http://[::1]:7700"]
)
def test_a_url_is_taken_without_its_last_slash(text: str) -> None:
    assert web_url("--x", text, EXAMPLE) == text.rstrip("/")


WRONG = [
    "foo",
    "foo:80",
    "ftp://a.example",
    "http://",
    "http://:80",
    "http://a:99999",
    "http://[::1",
    "http://a b/",
    "",
]
HOSTILE = ["http://a\x1b]0;x\x07/", "http://" + "a" * 2_000]


@pytest.mark.parametrize("text", [*WRONG, *HOSTILE])
def test_a_wrong_url_is_refused_with_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(Refused, match="--x .*such as http://127.0.0.1:7700"):
        web_url("--x", text, EXAMPLE)
