"""Names in views, tables and messages: of the phases of jobs and leases, and of how jobs end."""

import re

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def phase_name(phase: object) -> str:
    """AwaitingRound is "awaiting-round"."""
    return words_apart(type(phase).__name__)


def words_apart(name: str) -> str:
    return _WORD.sub("-", name).lower()


def ending_name(phase: str, outcome: str | None, *, is_charged: bool, is_stopped: bool) -> str:
    """Returns how a job ended; "" while it is under way. A rental has no verdict: one that was
    charged is accepted (PROTOCOL 12.17).
    """
    if outcome or phase != "ended":
        return outcome or ""
    if is_charged:
        return "accepted"
    return "stopped" if is_stopped else "unmatched"
