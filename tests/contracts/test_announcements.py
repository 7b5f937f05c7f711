"""A coordinator says on chain where peers reach it. Nothing of it is stored (PROTOCOL §3)."""

import pytest
from eth_abi.abi import encode

from contracts.evm import Reverted
from contracts.market import COORDINATOR, POSTER, market
from quorate_contracts.announced_coordinators import lines_of
from quorate_contracts.artifact import artifact
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.generated.stakes import Announced
from quorate_protocol.codec.hashing import keccak256

C = COORDINATOR.address
PEER = keccak256(b"peer key")
ADDRESSES = ("/ip4/203.0.113.7/tcp/7701", "/dns4/market.example/tcp/7701")
LINES = "\n".join(ADDRESSES).encode()


def test_any_bytes_can_be_announced_and_are_read_as_no_address() -> None:
    """A text that cannot be decoded would stop every program that follows the logs."""
    world = market()
    selector = artifact("Stakes").functions["announce"].selector
    for data in (b"", b"\xff\xfe", b"/ip4/1.2.3.4/tcp/1\n\x1b[2J", bytes(512), b"a" * 512):
        raw = selector + encode(["address", "bytes32", "bytes"], [C, PEER, data])
        mined = world.evm.send(POSTER.address, Call(world.contracts.stakes.address, raw, 80_000))
        (event,) = mined.events
        assert isinstance(event, Announced) and event.addresses == data
        assert lines_of(event.addresses) == ()
    raw = selector + encode(["address", "bytes32", "bytes"], [C, PEER, bytes(513)])
    with pytest.raises(Reverted):
        world.evm.send(POSTER.address, Call(world.contracts.stakes.address, raw, 80_000))


def test_an_announcement_names_at_most_four_addresses() -> None:
    assert lines_of(LINES) == ADDRESSES
    assert len(lines_of(b"\n".join([b"/a"] * 4))) == 4
    assert lines_of(b"\n".join([b"/a"] * 5)) == ()
