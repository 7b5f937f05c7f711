"""What a rental costs (PROTOCOL §12). Client and coordinator compute the same."""

from msgspec import Struct

from quorate_protocol.limits import USD, Limits
from quorate_protocol.messages.signed import Order
from quorate_protocol.rules.settlement import pays_max
from quorate_protocol.units import Amount, Bps, Milliseconds, Price, Seconds, pay_for, share_bps

UNBOUNDED = Amount(2**127)
RESERVED_LEAST = Amount(USD // 200)  # more than the memory of any order is worth (PROTOCOL 12.9)


class Charge(Struct, frozen=True):
    """All that a rental is charged since its start, and what a limit left out of it."""

    pay: Amount
    fee: Amount
    cut: Amount = Amount(0)

    @property
    def total(self) -> Amount:
        return Amount(self.pay + self.fee)


def cost_of(seconds: Seconds, price: Price, fee_bps: Bps) -> Amount:
    return _charge(Milliseconds(seconds * 1000), price, fee_bps).total


def charge_of(usage: Milliseconds, price: Price, fee_bps: Bps, most: Amount) -> Charge:
    """Pay and fee of all usage, together at most `most`."""
    whole = _charge(usage, price, fee_bps)
    if whole.total <= most:
        return whole
    pay = Amount(min(whole.pay, pays_max(most, fee_bps)))
    fee = Amount(min(share_bps(pay, fee_bps), most - pay))
    return Charge(pay, fee, Amount(whole.total - pay - fee))


def paid_usage(usage: Milliseconds, max_duration: Seconds, limits: Limits) -> Milliseconds:
    """A started rental costs one interval of meters at least, and no more than its duration."""
    return Milliseconds(min(max(usage, limits.meter_every * 1000), max_duration * 1000))


def reservation(order: Order, fee_bps: Bps, limits: Limits, least: Amount) -> Amount:
    """What a rental reserves before anything is charged. `least` is for its order's memory."""
    return Amount(max(least, cost_of(limits.rental_ahead, order.max_price_per_hour, fee_bps)))


def reserved_by_client(
    order: Order, fee_bps: Bps, seconds: int, price: Price | None = None
) -> Amount:
    """The most that so many seconds of run time cost, at most the budget. Without a price at the
    highest one of the order.
    """
    bounded = Seconds(min(seconds, order.max_duration))
    cost = cost_of(bounded, order.max_price_per_hour if price is None else price, fee_bps)
    return Amount(min(order.budget, max(RESERVED_LEAST, cost)))


def _charge(usage: Milliseconds, price: Price, fee_bps: Bps) -> Charge:
    pay = pay_for(usage, price, UNBOUNDED)
    return Charge(pay, share_bps(pay, fee_bps))
