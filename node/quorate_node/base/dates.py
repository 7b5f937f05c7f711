"""Moments as people read them, always in UTC."""

from datetime import UTC, datetime

NEAR_SECONDS = 3600  # below this the seconds matter


def date_text(seconds: int, now: float) -> str:
    """A moment: 2026-01-31 12:00 UTC; with seconds if it is less than an hour away from `now`."""
    form = "%Y-%m-%d %H:%M:%S UTC" if abs(seconds - now) < NEAR_SECONDS else "%Y-%m-%d %H:%M UTC"
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def until_text(seconds: int, now: float) -> str:
    return "due now" if seconds <= now else f"until {date_text(seconds, now)}"
