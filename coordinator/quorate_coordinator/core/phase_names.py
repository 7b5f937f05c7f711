"""The names of the phases of jobs and leases in views, tables and messages."""

import re

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def phase_name(phase: object) -> str:
    """AwaitingRound is "awaiting-round"."""
    return words_apart(type(phase).__name__)


def words_apart(name: str) -> str:
    return _WORD.sub("-", name).lower()
