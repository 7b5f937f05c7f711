"""Finds the newest beacon round, and the round that the next draw may use."""

from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.model.tables import NEWEST_ROUND
from quorate_protocol.units import Round, UnixSeconds


def newest_round(context: StepContext) -> Round:
    """By the clock or by the rounds that the core has seen. If the clock is behind, a round that is
    already known must not decide a draw (I9).
    """
    by_clock = (
        max(0, context.at - context.rules.beacon_genesis) // context.rules.limits.beacon_period + 1
    )
    return Round(max(by_clock, context.state.counters.get(NEWEST_ROUND) or 0))


def known_moment(context: StepContext) -> UnixSeconds:
    seen = context.state.counters.get(NEWEST_ROUND)
    return max(context.at, context.rules.timing.appears_at(seen)) if seen else context.at


def round_of_fast(context: StepContext) -> Round:
    """The round that draws both first executions of a fast job that is acknowledged now."""
    return context.rules.timing.round_after_ack(context.at)


def first_usable_round(context: StepContext, named: Round, stored_at: UnixSeconds) -> Round:
    """The round that draws batch 0. It follows from what both have signed: the round that the
    Commit names, and the time of its CommitReceipt.
    """
    return context.rules.timing.first_round(named, stored_at)
