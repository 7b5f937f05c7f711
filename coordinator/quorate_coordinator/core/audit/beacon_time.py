"""Which beacon round is the newest, and which one the next draw may use."""

from quorate_coordinator.core.step_context import StepContext
from quorate_coordinator.core.tables import NEWEST_ROUND
from quorate_protocol.limits import BEACON_AHEAD_MAX, BEACON_AHEAD_MIN
from quorate_protocol.units import Round, UnixSeconds


def newest_round(context: StepContext) -> Round:
    """The newest round that has appeared, by the clock or by the rounds that were seen. A clock
    that is behind must not make a known round decide a draw (I9).
    """
    by_clock = (
        max(0, context.at - context.rules.beacon_genesis) // context.rules.limits.beacon_period + 1
    )
    return Round(max(by_clock, context.state.counters.get(NEWEST_ROUND) or 0))


def known_moment(context: StepContext) -> UnixSeconds:
    """The time, by the clock or by the newest round that was seen, whichever is later."""
    seen = context.state.counters.get(NEWEST_ROUND)
    return max(context.at, context.rules.timing.appears_at(seen)) if seen else context.at


def first_usable_round(context: StepContext, named: Round) -> Round:
    """The primary's round when it lies 2 to 10 periods ahead, else the first that does."""
    now = newest_round(context)
    return (
        named
        if now + BEACON_AHEAD_MIN - 1 <= named <= now + BEACON_AHEAD_MAX
        else Round(now + BEACON_AHEAD_MIN)
    )
