"""Token buckets, one for each network address and one for each account.

A bucket fills with tokens at a steady rate, up to its burst. A request takes tokens; without enough
tokens it is refused. The table of buckets has a bounded size.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quorate_coordinator.base.request_limits import RequestBounds
from quorate_protocol.units import Address
from quorate_runtime.http.client_networks import network_of
from quorate_runtime.http.error_responses import Busy

K = TypeVar("K")
ORDER_TOKEN_PRICE = 20  # token units; the charge of the shortest job
Now = Callable[[], float]


class TokenBuckets(Generic[K]):
    """One token bucket for each key. The table keeps the `keys_max` keys that were used last.

    A forgotten key starts again with a full bucket, so somebody who uses more keys in turn is not
    limited.
    """

    def __init__(self, per_second: float, burst: float, keys_max: int, now: Now) -> None:
        self._per_second, self._burst, self._keys_max, self._now = per_second, burst, keys_max, now
        # key -> (tokens at a moment, that moment)
        self._levels: OrderedDict[K, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait_seconds(self, key: K, tokens: float = 1.0) -> float:
        """Until the bucket has so many tokens; 0.0 when it has them now. Takes none."""
        missing = min(tokens, self._burst) - self._level(key)
        return missing / self._per_second if missing > 0 else 0.0

    def take(self, key: K, tokens: float = 1.0) -> float:
        """Returns 0.0; or takes none and returns the seconds until there are enough."""
        wait = self.wait_seconds(key, tokens)
        if not wait:
            self.charge(key, tokens)
        return wait

    def charge(self, key: K, tokens: float = 1.0) -> None:
        self._levels[key] = (max(0.0, self._level(key) - tokens), self._now())
        self._levels.move_to_end(key)
        while len(self._levels) > self._keys_max:
            self._levels.popitem(last=False)

    def give(self, key: K, tokens: float) -> None:
        if key in self._levels:
            self._levels[key] = (min(self._burst, self._level(key) + tokens), self._now())

    def _level(self, key: K) -> float:
        found = self._levels.get(key)
        if found is None:
            return self._burst
        tokens, then = found
        # If the clock was set back, the bucket gets no tokens. If it was set forward, the bucket
        # gets full, and no more.
        return min(self._burst, tokens + max(0.0, self._now() - then) * self._per_second)


@dataclass(slots=True, init=False)
class RequestRates:
    """The token buckets of the HTTP API: by address, by account, and for upload bytes."""

    bounds: RequestBounds
    by_address: TokenBuckets[str]
    by_account: TokenBuckets[Address]
    by_upload: TokenBuckets[str]  # bytes, by address
    by_order: TokenBuckets[Address]  # orders without a charge
    _charged: OrderedDict[Address, int]  # at the account's last order

    def __init__(self, bounds: RequestBounds, now: Now) -> None:
        self.bounds = bounds

        def buckets(per_second: float, burst: float) -> TokenBuckets[Any]:
            return TokenBuckets(per_second, burst, bounds.buckets_max, now)

        self.by_address = buckets(bounds.address_per_second, bounds.address_burst)
        self.by_account = buckets(bounds.account_per_second, bounds.account_burst)
        self.by_upload = buckets(bounds.upload_bytes_per_second, bounds.upload_burst_bytes)
        self.by_order = buckets(bounds.orders_per_second, bounds.orders_burst)
        self._charged = OrderedDict()

    def count_address(self, remote: str | None, tokens: float = 1.0) -> None:
        """A request may cost as much as several. Raises Busy if there were too many."""
        wait = self.by_address.take(network_of(remote), tokens)
        if wait:
            raise Busy("too many requests from this address", wait)

    def count_account(self, account: Address) -> None:
        """Its signature was checked before. Raises Busy if there were too many."""
        wait = self.by_account.take(account)
        if wait:
            raise Busy("too many requests of this account", wait)

    def check_order(self, account: Address, charged: int) -> None:
        """Raises Busy if this account has no token left for an order. Each `ORDER_TOKEN_PRICE` that
        it was charged since its last order gives one back. `charged` is cumulative.
        """
        before = self._charged.get(account, charged)
        self.by_order.give(account, max(0, charged - before) / ORDER_TOKEN_PRICE)
        self._charged[account] = charged
        self._charged.move_to_end(account)
        while len(self._charged) > self.bounds.buckets_max:
            self._charged.popitem(last=False)
        wait = self.by_order.wait_seconds(account)
        if wait:
            raise Busy("too many orders of this account for which it was not charged", wait)
