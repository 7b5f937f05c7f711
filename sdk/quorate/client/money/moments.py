"""Dates as people read them in messages about money."""

from datetime import UTC, datetime

from quorate.job.quantities import format_duration


def moment(seconds: int) -> str:
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    left = seconds - int(datetime.now(UTC).timestamp())
    return f"{text} (in {format_duration(left)})" if left > 0 else text
