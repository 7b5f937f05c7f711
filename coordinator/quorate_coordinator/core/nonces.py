"""Which nonces of a client's orders are used: enough to run no order twice, little enough to
keep for ever.
"""

from bisect import bisect_left

from msgspec import Struct

from quorate_protocol.units import Nonce

LISTED_MAX = 1024  # orders of one client that may overtake each other on their way here


class UsedNonces(Struct, frozen=True):
    """Every nonce below `floor` counts as used, and those listed, ascending.

    Clients take growing nonces, so those that are forgotten to bound the list are the oldest,
    and a nonce below them is refused whether it was used or not. Not kept until the orders'
    expiry: that is 30 days of every client's orders.
    """

    floor: Nonce = Nonce(0)
    listed: tuple[Nonce, ...] = ()

    def is_used(self, nonce: Nonce) -> bool:
        """Whether an order with it would be a second one, or could be."""
        if nonce < self.floor:
            return True
        place = bisect_left(self.listed, nonce)
        return place < len(self.listed) and self.listed[place] == nonce

    def using(self, nonce: Nonce) -> "UsedNonces":
        """With one more."""
        place = bisect_left(self.listed, nonce)
        listed = (*self.listed[:place], nonce, *self.listed[place:])
        if len(listed) <= LISTED_MAX:
            return UsedNonces(self.floor, listed)
        return UsedNonces(Nonce(listed[0] + 1), listed[1:])

    def next(self) -> Nonce:
        """The least that is certainly free and above all that were used."""
        return max(self.floor, Nonce(self.listed[-1] + 1)) if self.listed else self.floor
