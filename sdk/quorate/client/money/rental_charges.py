"""What a client lets a rental cost, and what it believes of its charges (PROTOCOL 12.27).

The client's own clock bounds both: a rental that runs for ten minutes costs at most ten minutes at
the price that the client ordered, whatever its owner and the coordinator say.
"""

from quorate.client.base.client_ledger import OrderRecord
from quorate_protocol.limits import Limits
from quorate_protocol.messages import envelope
from quorate_protocol.messages.signed import Ack
from quorate_protocol.messages.views import RentalView
from quorate_protocol.rules import rentals
from quorate_protocol.units import Amount, Bps, Milliseconds, Price, Seconds, UnixSeconds

CLOCK_SLACK_SECONDS = 60  # between the coordinator's clock and ours


def elapsed(entry: OrderRecord, view: RentalView, now: float) -> int:
    """Seconds that it has run, by the coordinator's word and at most since it was ordered."""
    since_order = now - entry.submitted_at
    said = now - view.started_at if view.started_at else view.usage_ms / 1000
    return max(0, int(min(said, since_order)))


def price_of(entry: OrderRecord, view: RentalView) -> Price:
    return Price(min(view.price_per_hour, entry.order.max_price_per_hour))


def fee_of(entry: OrderRecord) -> Bps:
    known = None if entry.ack is None else envelope.decode(entry.ack, Ack).message
    return entry.order.max_fee_bps if known is None else known.fee_bps


def believed(
    entry: OrderRecord, view: RentalView, charged: Amount, now: float, limits: Limits
) -> Amount:
    """As much of a charge as this client's own record allows."""
    most_ms = (now - entry.submitted_at + CLOCK_SLACK_SECONDS) * 1000
    usage = Milliseconds(int(min(view.usage_ms, most_ms)))
    allowed = rentals.charge_of(
        rentals.paid_usage(usage, entry.order.max_duration, limits),
        price_of(entry, view),
        fee_of(entry),
        entry.order.budget,
    )
    return Amount(min(charged, allowed.total))


def time_left(entry: OrderRecord, view: RentalView, now: float) -> int:
    """Seconds that it may still run, by the longest time and the budget of its order."""
    rate = rentals.cost_of(Seconds(3600), price_of(entry, view), fee_of(entry)) or 1
    longest = min(entry.order.max_duration, entry.order.budget * 3600 // rate)
    return max(0, longest - elapsed(entry, view, now))


def has_budget(entry: OrderRecord) -> bool:
    """Whether its client named a budget: without one it is what the longest time costs at most."""
    order = entry.order
    longest = rentals.cost_of(order.max_duration, order.max_price_per_hour, fee_of(entry))
    return order.budget < longest


def is_least(entry: OrderRecord, limits: Limits) -> bool:
    """Whether it was ordered for what its coordinator reserves: then its order allows that at once,
    because its client may be killed.
    """
    least = rentals.reserved_by_client(entry.order, fee_of(entry), limits.rental_ahead)
    return entry.reserved == least


def at_its_price(entry: OrderRecord, view: RentalView, charged: Amount, limits: Limits) -> Amount:
    """What the time that was ordered ahead costs at its real price, which is known once it runs. At
    least what its coordinator lets a first allowance be (PROTOCOL 12.28). What its order allowed
    already stays.
    """
    price, highest, fee = price_of(entry, view), entry.order.max_price_per_hour, fee_of(entry)
    if is_least(entry, limits):
        return entry.reserved
    ordered = -(-entry.reserved * price // highest)
    return Amount(max(ordered, charged + rentals.cost_of(limits.rental_ahead, price, fee)))


def paid_until(entry: OrderRecord, view: RentalView) -> UnixSeconds:
    """When what is reserved for it is used up, by the coordinator's start. 0 if it does not run."""
    rate = rentals.cost_of(Seconds(3600), price_of(entry, view), fee_of(entry))
    if not view.started_at or not rate:
        return UnixSeconds(0)
    seconds = min(entry.reserved * 3600 // rate, entry.order.max_duration)
    return UnixSeconds(view.started_at + seconds)
