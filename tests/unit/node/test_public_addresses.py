"""Which addresses a rental may reach."""

from pathlib import Path

import pytest

from quorate_node.rentals.public_addresses import OwnNetworks, may_reach

ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0
eth0 0064CB08 00000000 0001 0 0 0 00FFFFFF 0 0 0
tun0 00000000 00000000 0001 0 0 0 00000080 0 0 0
"""
ROUTES_6 = """260007003c0000000000000000000000 40 {0} 00 {0} 0 0 0 0 eth0
{0} 00 {0} 00 fe800000000000000000000000000001 0 0 0 0 eth0
""".format("0" * 32)
TEXT = """0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.254 127.0.0.1 127.8.9.1
169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.88.99.1
192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
255.255.255.255 :: ::1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::10.0.0.1 64:ff9b::10.0.0.1 64:ff9b::8.8.8.8
64:ff9b:1::1 100::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:10::1 2001:20::1 2001:db8::1
2002:0a00:0001::1 2002:808:808::1 3fff::1 fc00::1 fd00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1
ff02::1 ff0e::1 4000::1 host 1.2.3 0x7f.1 1.2.3.4:80 """
NOBODYS = TEXT.split()
IS_OWN = "quorate_node.rentals.public_addresses._is_of_this_machine"


def networks(folder: Path) -> OwnNetworks:
    (folder / "route").write_text(ROUTES)
    (folder / "ipv6_route").write_text(ROUTES_6)
    return OwnNetworks(folder)


@pytest.mark.rule("12.30")
@pytest.mark.parametrize("address", NOBODYS)
def test_an_address_that_is_not_public_is_refused(address: str, tmp_path: Path) -> None:
    assert not may_reach(address, OwnNetworks(tmp_path))


@pytest.mark.rule("12.30")
def test_public_addresses_of_the_owner_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine: list[str] = []
    monkeypatch.setattr(IS_OWN, lambda address: str(address) in mine)
    own = networks(tmp_path)
    strangers = ("8.8.8.8", "1.1.1.1", "151.101.0.223", "2606:4700::6810:1", "2a04:4e42::223")
    assert all(may_reach(address, own) for address in strangers), "a VPN's routes are no neighbours"
    assert not may_reach("8.203.100.77", own), "directly connected"
    assert not may_reach("2600:700:3c00::9", own), "a neighbour in its IPv6 network"
    own.see("http://151.101.0.1:7710", ["1.1.1.9", "2a04:4e42::1", "192.168.0.7", "?"])
    assert [may_reach(address, own) for address in strangers] == [True, False, False, True, False]
    mine.append("8.8.8.8")
    assert not may_reach("8.8.8.8", own)
