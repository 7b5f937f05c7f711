"""Finds the newest beacon round, and the round that the next draw may use."""

from quorate_coordinator.core.step_context import StepContext
from quorate_coordinator.core.tables import NEWEST_ROUND
from quorate_protocol.limits import BEACON_AHEAD_MAX, BEACON_AHEAD_MIN
from quorate_protocol.units import Round, UnixSeconds


def newest_round(context: StepContext) -> Round:
    """Returns the newest round that has appeared, by the clock or by the rounds that the core has
    seen. If the clock is behind, a round that is already known must not decide a draw (I9).
    """
    by_clock = (
        max(0, context.at - context.rules.beacon_genesis) // context.rules.limits.beacon_period + 1
    )
    return Round(max(by_clock, context.state.counters.get(NEWEST_ROUND) or 0))


def known_moment(context: StepContext) -> UnixSeconds:
    """Returns the time, by the clock or by the newest round that the core has seen, whichever is
    later.
    """
    seen = context.state.counters.get(NEWEST_ROUND)
    return max(context.at, context.rules.timing.appears_at(seen)) if seen else context.at


def first_usable_round(context: StepContext, named: Round) -> Round:
    """Returns the round that the primary named when it lies 2 to 10 periods ahead, else the first
    one that does.
    """
    now = newest_round(context)
    return (
        named
        if now + BEACON_AHEAD_MIN - 1 <= named <= now + BEACON_AHEAD_MAX
        else Round(now + BEACON_AHEAD_MIN)
    )
