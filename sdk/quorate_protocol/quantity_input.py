"""Reads sizes and spans of time that people type, as exact integers, and writes sizes. No float is
used.

Sizes are decimal (24GB, 24g), as disks and GPUs are sold, or binary (24GiB, 24gi). Spans are 90s,
15m, 1h30m, 7d, 2 weeks.
"""

import re

TEXT_MAX = 64
SIZE_MAX = 1 << 60
SPAN_MAX = 1 << 40
SIZE_EXAMPLE = 'write it with a unit, such as "24GB" or "512Mi"'
SPAN_EXAMPLE = 'write it such as "90s", "15m", "1h30m" or "2d"'
_SIZE = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?\s*(?:([KMGTP]I?)B?|B)", re.ASCII | re.I)
_SPAN = re.compile(
    r"(?:(\d{1,9})w(?:eeks?)?)?(?:(\d{1,9})d(?:ays?)?)?(?:(\d{1,9})h(?:ours?)?)?"
    r"(?:(\d{1,9})m(?:in(?:utes?)?)?)?(?:(\d{1,9})s(?:ec(?:onds?)?)?)?",
    re.ASCII | re.I,
)
_UNIT_SECONDS = (604_800, 86_400, 3_600, 60, 1)
_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "p": 10**15,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
    "pi": 1 << 50,
}


def size_bytes(text: str) -> int:
    """Returns the bytes of a size, rounded down. Raises ValueError that says what to write."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:TEXT_MAX]!r} is not a size; {SIZE_EXAMPLE}")
    factor = _FACTORS[(match[3] or "").lower()]
    decimals = int((match[2] or "").ljust(6, "0"))
    size = int(match[1]) * factor + decimals * factor // 10**6
    if size > SIZE_MAX:
        raise ValueError(f"{size} bytes is out of range")
    return size


def size_text(size: int) -> str:
    """Formats bytes in decimal units with one decimal: 24_000_000_000 -> "24.0 GB"."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size // factor}.{size % factor * 10 // factor} {unit}"
    return f"{size} B"


def span_seconds(text: str) -> int:
    """Returns the seconds of a span above zero. Raises ValueError that says what to write."""
    bare = "".join(text.split())
    match = _SPAN.fullmatch(bare)
    if match is None or not bare:
        raise ValueError(f"{bare[:TEXT_MAX]!r} is not a duration; {SPAN_EXAMPLE}")
    seconds = sum(int(part or 0) * unit for part, unit in zip(match.groups(), _UNIT_SECONDS))
    if not 0 < seconds < SPAN_MAX:
        said = "must be above zero" if seconds <= 0 else "is too long"
        raise ValueError(f"{text[:TEXT_MAX]} {said}")
    return seconds
