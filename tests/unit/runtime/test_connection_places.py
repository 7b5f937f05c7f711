"""Tests places for connections: who gets one, and that they never take all file descriptors."""

import resource

import pytest

from quorate_runtime.http import listener
from quorate_runtime.http.listener import OpenConnections
from quorate_runtime.http.listener_limits import ListenerLimits
from quorate_runtime.p2p.host.connection_places import ConnectionPlaces, Place, counted_network

MOST = 80  # 20 for strangers, 10 of one network; 60 for accounts, 40 of them without stake


class Door:
    """The places, and who was told to leave."""

    def __init__(self) -> None:
        self.places, self.left = ConnectionPlaces(MOST), list[Place]()

    def come(self, remote: str, *, is_connected: bool = True) -> Place | None:
        place = self.places.enter(remote)
        if place is not None and is_connected:
            place.leave = lambda: self.left.append(place)
        return place

    def bind(self, is_staked: bool, remote: str = "127.0.0.1") -> Place:
        place = self.come(remote)
        assert place is not None
        self.places.bind(place, is_staked)
        return place


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("8.8.8.8", "8.8.8.200", True),
        ("8.8.8.8", "8.8.9.8", False),
        ("2600:1901:0:1::1", "2600:1901:0:2::1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:8.8.8.8", "8.8.8.9", True),
    ],
)
@pytest.mark.rule("3.75")
def test_public_addresses_count_by_network_and_private_ones_alone(
    one: str, other: str, is_same: bool
) -> None:
    assert (counted_network(one) == counted_network(other)) is is_same


@pytest.mark.rule("3.75")
def test_newcomer_takes_the_place_of_the_oldest_stranger_of_its_network(door: Door) -> None:
    far = door.come("9.9.9.9")
    first, *others = [door.come(f"8.8.8.{number}") for number in range(10)]
    assert None not in (far, first, *others) and not door.left
    assert door.come("8.8.8.99") is not None and door.left == [first]


@pytest.mark.rule("3.75")
def test_strangers_of_many_networks_make_room_where_most_of_them_are(door: Door) -> None:
    alone = [door.come(f"9.9.{number}.9") for number in range(11)]
    crowd = [door.come("8.8.8.8") for _ in range(9)]
    assert door.come("7.7.7.7") is not None
    assert door.left == [crowd[0]] and None not in alone


@pytest.mark.rule("3.75")
def test_handshakes_count_and_are_not_cut_off(door: Door) -> None:
    begun = [door.come("8.8.8.8", is_connected=False) for _ in range(10)]
    assert door.come("8.8.8.8") is None and door.come("9.9.9.9") is not None
    assert begun[0] is not None
    door.places.give_back(begun[0])
    assert door.come("8.8.8.8") is not None


@pytest.mark.rule("3.75")
def test_bound_connections_stay_and_a_part_is_for_stake(door: Door) -> None:
    bound = [door.bind(is_staked=False) for _ in range(40)]
    assert not door.left
    more = door.bind(is_staked=False)
    assert door.left == [more]  # the rest of the places is for accounts with stake
    staked = [door.bind(is_staked=True) for _ in range(20)]
    assert door.left == [more]
    door.bind(is_staked=True)
    assert door.left == [more, bound[0]] and len(staked) == 20


def test_connection_whose_conversation_ended_is_a_stranger_again(door: Door) -> None:
    bound = door.bind(is_staked=True)
    for _ in range(10):
        door.come("127.0.0.1")
    door.places.unbind(bound)
    assert door.come("127.0.0.1") is not None and door.left == [bound]


@pytest.mark.parametrize(
    ("limits", "raised", "fitting"),
    [
        ((1024, 1 << 20), 16_384, 8_192),
        ((1024, 4096), 4096, 3_072),
        ((1024, 1024), 1024, 512),
        ((80, 80), 80, 40),
        ((1 << 16, 1 << 20), 1 << 16, 8_192),
    ],
)
def test_the_limit_is_raised_as_far_as_allowed(
    limits: tuple[int, int], raised: int, fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = list(limits)

    def put(_: int, asked: tuple[int, int]) -> None:
        now[:] = asked

    monkeypatch.setattr(resource, "getrlimit", lambda _: (now[0], now[1]))
    monkeypatch.setattr(resource, "setrlimit", put)
    assert listener.connections_max(8_192) == fitting and now[0] == raised


def test_fewer_connections_are_allowed_where_the_limit_stays_low(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: int, asked: tuple[int, int]) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    open_connections = OpenConnections(ListenerLimits())
    open_connections.connections_max = listener.connections_max(
        open_connections.bounds.connections_max
    )
    assert sum(open_connections.admit(f"10.0.{number}.0") for number in range(300)) == 100
    assert "ulimit -n" in caplog.text
