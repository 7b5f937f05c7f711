"""Bounds connections that have not said who they are, in total and for each network.

So strangers cannot take the places of peers that proved their accounts.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from quorate_runtime.http.client_networks import network_of

HELLOS_MAX, NETWORK_HELLOS_MAX = 512, 256


class HelloPlaces:
    """Counts unfinished hellos by network."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def is_crowded(self, remote: str) -> bool:
        network = network_of(remote)
        return self._taken.total() >= HELLOS_MAX or self._taken[network] >= NETWORK_HELLOS_MAX

    @contextmanager
    def place(self, remote: str) -> Iterator[None]:
        network = network_of(remote)
        self._taken[network] += 1
        try:
            yield
        finally:
            self._taken[network] -= 1
            if not self._taken[network]:
                del self._taken[network]
