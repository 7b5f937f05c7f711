"""Token buckets, by address and by account, in a table of bounded size."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from quorate_coordinator.request_limits import Bounds
from quorate_protocol.units import Address
from quorate_runtime.http.client_networks import network_of
from quorate_runtime.http.error_responses import Busy

K = TypeVar("K")
Now = Callable[[], float]


class Buckets(Generic[K]):
    """One bucket a key. A key that was forgotten starts with a full one: who rotates through
    `keys_max` keys gains what each may take.
    """

    def __init__(self, per_second: float, burst: float, keys_max: int, now: Now) -> None:
        self._per_second, self._burst, self._keys_max, self._now = per_second, burst, keys_max, now
        self._levels: OrderedDict[K, tuple[float, float]] = OrderedDict()  # key -> (tokens, when)

    def __len__(self) -> int:
        return len(self._levels)

    def wait_seconds(self, key: K, tokens: float = 1.0) -> float:
        """0.0 when so many tokens are there; else the seconds until they are. Takes none."""
        missing = min(tokens, self._burst) - self._level(key)
        return missing / self._per_second if missing > 0 else 0.0

    def take(self, key: K, tokens: float = 1.0) -> float:
        """Takes the tokens and gives 0.0, or takes none and gives the seconds until they are
        there.
        """
        wait = self.wait_seconds(key, tokens)
        if not wait:
            self.charge(key, tokens)
        return wait

    def charge(self, key: K, tokens: float = 1.0) -> None:
        """Takes the tokens whether they are there or not, down to an empty bucket."""
        self._levels[key] = (max(0.0, self._level(key) - tokens), self._now())
        self._levels.move_to_end(key)
        while len(self._levels) > self._keys_max:
            self._levels.popitem(last=False)

    def _level(self, key: K) -> float:
        found = self._levels.get(key)
        if found is None:
            return self._burst
        tokens, then = found
        # A clock that was set back gives nothing; one that was set forward fills the bucket, at
        # most.
        return min(self._burst, tokens + max(0.0, self._now() - then) * self._per_second)


@dataclass(slots=True, init=False)
class Rates:
    """What requests are charged to."""

    bounds: Bounds
    by_address: Buckets[str]
    by_account: Buckets[Address]
    by_upload: Buckets[str]  # bytes, by address

    def __init__(self, bounds: Bounds, now: Now) -> None:
        self.bounds = bounds
        self.by_address = Buckets(
            bounds.address_per_second, bounds.address_burst, bounds.buckets_max, now
        )
        self.by_account = Buckets(
            bounds.account_per_second, bounds.account_burst, bounds.buckets_max, now
        )
        self.by_upload = Buckets(
            bounds.upload_bytes_per_second, bounds.upload_burst_bytes, bounds.buckets_max, now
        )

    def address(self, remote: str | None) -> None:
        """One request from this address, or `Busy`."""
        wait = self.by_address.take(network_of(remote))
        if wait:
            raise Busy("too many requests from this address", wait)

    def account(self, account: Address) -> None:
        """One request of this account, whose signature was checked, or `Busy`."""
        wait = self.by_account.take(account)
        if wait:
            raise Busy("too many requests of this account", wait)
