"""The hours in which the owner offers the machine: `mon-fri 19:00-08:00, sat-sun`."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from quorate_protocol.refusals import Code, Refused

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WINDOWS_MAX = 32
TEXT_MAX = 512
AHEAD_MINUTES = 8 * DAY_MINUTES  # longer than a week with a change of the clock
FORM = 'write days and hours such as "mon-fri 19:00-08:00, sat-sun Europe/Berlin", or always'
ALWAYS, DAILY = "always", "mon-sun"
_WINDOW = re.compile(
    r"(?P<first>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))?"
    r"(?: (?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d))?(?: (?P<zone>[A-Za-z][\w+/-]*))?"
)


class Window(Struct, frozen=True):
    """From one minute of the day to another on some days. Behind midnight it goes on into the next
    day, which need not be among them.
    """

    days: frozenset[int]
    begin: int
    end: int

    def holds(self, at: datetime) -> bool:
        minute, today = at.hour * 60 + at.minute, at.weekday()
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        is_late = today in self.days and minute >= self.begin
        return is_late or ((today - 1) % 7 in self.days and minute < self.end)


class Schedule(Struct, frozen=True):
    """Without windows it is always open. The clock on the wall counts, also when it changes."""

    windows: tuple[Window, ...] = ()
    zone: tzinfo | None = None  # None = the machine's

    def is_open(self, at: float) -> bool:
        return not self.windows or any(item.holds(self._on_wall(at)) for item in self.windows)

    def opens_at(self, at: float) -> datetime:
        """Returns the first minute from `at` on at which it is open, in its zone."""
        minute = at - at % 60
        while not self.is_open(minute) and minute < at + AHEAD_MINUTES * 60:
            minute += 60
        return self._on_wall(minute)

    def _on_wall(self, at: float) -> datetime:
        # Python adds wall time inside a zone, so the moment comes from UTC.
        return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=at)).astimezone(self.zone)


def schedule_of(text: str) -> Schedule:
    """Raises Refused, which names the part that is wrong."""
    if text.strip().lower() in ("", ALWAYS):
        return Schedule()
    parts = [" ".join(part.split()) for part in text.split(",")]
    if len(text) > TEXT_MAX or len(parts) > WINDOWS_MAX:
        raise _refused(text, f"at most {WINDOWS_MAX} windows")
    zones: set[str] = set()
    windows = tuple(_window(part, zones) for part in parts)
    if len(zones) > 1:
        raise _refused(text, f"one time zone, not {' and '.join(sorted(zones))}")
    return Schedule(windows, _zone(text, zones.pop()) if zones else None)


def schedule_text(text: str, flag: str) -> str:
    """Returns the text of a schedule that can be read."""
    schedule_of(text)
    return text.strip()


def _window(part: str, zones: set[str]) -> Window:
    match = _WINDOW.fullmatch(f"{DAILY} {part}" if part[:1].isdigit() else part)
    first, last = (match["first"], match["last"] or match["first"]) if match else ("", "")
    first, last = first.lower(), last.lower()
    if match is None or first not in DAYS or last not in DAYS:
        raise _refused(part, FORM)
    if match["zone"]:
        zones.add(match["zone"])
    begin = _minute(part, match["begin"] or "00:00")
    end = _minute(part, match["end"] or "24:00")
    if begin % DAY_MINUTES == end or begin == DAY_MINUTES:
        raise _refused(part, "it never opens; write 00:00-24:00 for the whole day")
    start, count = DAYS.index(first), (DAYS.index(last) - DAYS.index(first)) % 7 + 1
    return Window(frozenset((start + day) % 7 for day in range(count)), begin, end)


def _minute(part: str, text: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise _refused(part, f"{text} is no time from 00:00 to 24:00")
    return hours * 60 + minutes


def _zone(text: str, name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _refused(
            text,
            f"this machine knows no time zone {name}; write one such as Europe/Berlin, or none",
        ) from error


def _refused(text: str, told: str) -> Refused:
    return Refused(Code.MALFORMED, f"schedule {text[:80]!r}: {told}")
