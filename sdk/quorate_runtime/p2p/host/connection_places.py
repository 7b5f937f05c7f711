"""Shares the places for inbound connections between strangers, registered peers and staked ones.

A stranger costs nobody money, so a newcomer may take the place of the oldest one: of its own
network if that holds many places, else of the network that holds most. A peer that speaks for a
registered account keeps its place, and a part of the places is only for accounts with stake.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum

from quorate_runtime.http.client_networks import (
    address_of,
    is_public,
    network_of,
    registered_network,
)

BIND_SECONDS = 30.0  # after which a connection without a hello closes, unless it listens to gossip


class Standing(IntEnum):
    """What the other side of a connection has shown."""

    STRANGER = 0
    REGISTERED = 1  # its account is registered
    STAKED = 2  # and has stake slots


class Place:
    """The place of one connection."""

    __slots__ = ("leave", "network", "standing")

    def __init__(self, network: str) -> None:
        self.network, self.standing = network, Standing.STRANGER
        self.leave: Callable[[], object] | None = None  # ends the connection; None: not yet made


class ConnectionPlaces:
    """The places of one host."""

    def __init__(self, most: int) -> None:
        self.strangers_max, self.network_max = max(1, most // 4), max(1, most // 8)
        self._bound_max, self._registered_max = most - self.strangers_max, most // 2
        self._places: dict[Place, None] = {}  # the oldest first
        # Whether a peer, by the bytes of its id, listens to gossip.
        self.listens: Callable[[bytes], bool] = lambda _: False

    def enter(self, remote: str | None) -> Place | None:
        """Takes a place for a newcomer from this IP address. None if there is none for it."""
        network = counted_network(remote)
        strangers = self._of(Standing.STRANGER)
        held = Counter(place.network for place in strangers)
        if held[network] >= self.network_max:
            crowded = network
        elif len(strangers) >= self.strangers_max:
            crowded = held.most_common(1)[0][0]
        else:
            crowded = ""
        if crowded and not self._dismiss(place for place in strangers if place.network == crowded):
            return None
        place = Place(network)
        self._places[place] = None
        return place

    def bind(self, place: Place, is_staked: bool) -> None:
        """The other side has shown that it speaks for an account. The connection ends if all places
        of its kind are taken.
        """
        if place not in self._places:
            return
        registered = self._of(Standing.REGISTERED)
        is_full = len(registered) + len(self._of(Standing.STAKED)) >= self._bound_max
        if is_staked:
            has_room = not is_full or self._dismiss(registered)
        else:
            has_room = not is_full and len(registered) < self._registered_max
        if has_room:
            place.standing = Standing.STAKED if is_staked else Standing.REGISTERED
        else:
            self._dismiss([place])

    def unbind(self, place: Place) -> None:
        place.standing = Standing.STRANGER

    def give_back(self, place: Place) -> None:
        self._places.pop(place, None)

    def _of(self, standing: Standing) -> list[Place]:
        return [place for place in self._places if place.standing is standing]

    def _dismiss(self, places: Iterable[Place]) -> bool:
        """Ends the oldest of these connections that can be ended. False if there is none."""
        for place in places:
            if place.leave is not None:
                del self._places[place]
                place.leave()
                return True
        return False


def counted_network(remote: str | None) -> str:
    """Under which name an IP address counts: the /24 or /48 of a public one, else itself."""
    address = address_of(remote or "")
    if address is None or not is_public(address):
        return network_of(remote)
    return registered_network(address).hex()
