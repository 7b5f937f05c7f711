"""The nonces that a client's orders have used, so that no order runs twice."""

from bisect import bisect_left

from msgspec import Struct

from quorate_protocol.units import Nonce

LISTED_MAX = 1024  # a client's orders that may arrive in another order than it signed them


class UsedNonces(Struct, frozen=True):
    """Every nonce below `floor` counts as used, and so do those in `listed`, in ascending order.

    To bound the list, the core forgets the oldest nonces and refuses every nonce below them, used
    or not; clients take growing ones. Keeping all would mean 30 days of every client's orders.
    """

    floor: Nonce = Nonce(0)
    listed: tuple[Nonce, ...] = ()

    def is_used(self, nonce: Nonce) -> bool:
        """Also True for one that could be a repeated one."""
        if nonce < self.floor:
            return True
        place = bisect_left(self.listed, nonce)
        return place < len(self.listed) and self.listed[place] == nonce

    def using(self, nonce: Nonce) -> "UsedNonces":
        place = bisect_left(self.listed, nonce)
        listed = (*self.listed[:place], nonce, *self.listed[place:])
        if len(listed) <= LISTED_MAX:
            return UsedNonces(self.floor, listed)
        return UsedNonces(Nonce(listed[0] + 1), listed[1:])

    def next(self) -> Nonce:
        return max(self.floor, Nonce(self.listed[-1] + 1)) if self.listed else self.floor
