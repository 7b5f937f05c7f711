"""Parses and formats money, sizes, durations and cores as exact integers. No floats are used.

Money is decimal US dollars and becomes millionths; finer amounts are refused, never rounded. Sizes
are decimal (24GB, 24g), as GPUs are sold, or binary (24GiB, 24gi). Every error is a `UsageError`
that names the field.
"""

import re
from decimal import Decimal

from quorate.errors import UsageError
from quorate_protocol.money_input import micro_usd
from quorate_protocol.units import Amount, Price, Seconds, usd

PRICE_MAX = 10**12  # one million USD per hour
AMOUNT_MAX = 10**18  # one million million USD
SIZE_MAX = 1 << 60
TEXT_MAX = 64

_SIZE = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?\s*(?:([KMGT]I?)B?|B)", re.ASCII | re.I)
_DURATION = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?:in)?)?(?:(\d{1,9})s)?", re.ASCII | re.I
)
_CORES = re.compile(r"(\d{1,5})(?:\.(\d{1,3}))?", re.ASCII)
_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}

Money = str | int | Decimal
"""Accepted forms of money: "1.25", 2, Decimal("0.30"). Floats are refused, because 0.1 is not
exactly a tenth.
"""


def parse_amount(value: Money, field: str) -> Amount:
    """Parses an amount above zero. Returns millionths of a dollar."""
    return Amount(_micro(value, field, AMOUNT_MAX))


def parse_price(value: Money, field: str) -> Price:
    """Parses a price above zero. Returns millionths of a dollar per slot-hour."""
    return Price(_micro(value, field, PRICE_MAX))


def _micro(value: object, field: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise UsageError(
            f'{field}: write money as decimal text such as "1.25" (USD), not {type(value).__name__}'
        )
    if isinstance(value, Decimal) and not value.is_finite():
        raise UsageError(f"{field}: {value} is not an amount of money")
    text = format(value, "f") if isinstance(value, Decimal) else str(value).strip()
    try:
        micro = micro_usd(text)
    except ValueError as error:
        raise UsageError(f"{field}: {error}") from error
    if not 0 < micro <= most:
        raise UsageError(
            f"{field}: {text[:TEXT_MAX]} must be above zero and at most {format_amount(most)}"
        )
    return micro


def _fraction(digits: str | None, width: int) -> int:
    return int((digits or "").ljust(width, "0"))


def format_amount(micro: int) -> str:
    """Formats dollars with at least two decimals and no needless zeros: 1250000 -> "1.25 USD"."""
    return f"{usd(micro)} USD"


def parse_size(value: str | int, field: str) -> int:
    """Parses a size. Returns bytes, rounded down; an integer counts bytes, and text needs a
    unit.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f'{field}: write a size such as "24GB", not {type(value).__name__}')
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise UsageError(
                f"{field}: {value[:TEXT_MAX]!r} is not a size; write it with a unit, such as "
                f'"24GB" or "512Mi"'
            )
        factor = _FACTORS[(match[3] or "").lower()]
        size = int(match[1]) * factor + _fraction(match[2], 6) * factor // 10**6
    if not 0 <= size <= SIZE_MAX:
        raise UsageError(f"{field}: {size} bytes is out of range")
    return size


def format_size(size: int) -> str:
    """Formats bytes in decimal units with one decimal: 24_000_000_000 -> "24.0 GB"."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size // factor}.{size % factor * 10 // factor} {unit}"
    return f"{size} B"


def parse_duration(value: str | int, field: str) -> Seconds:
    """Parses a duration above zero. Returns seconds: 90, "90s", "15m", "1h30m", "2d"."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f'{field}: write a duration such as "1h30m", not {type(value).__name__}')
    if isinstance(value, int):
        seconds = value
    else:
        text = "".join(value.split())
        match = _DURATION.fullmatch(text)
        if match is None or not text:
            raise UsageError(
                f'{field}: {text[:TEXT_MAX]!r} is not a duration; write it such as "90s", "15m", '
                f'"1h30m" or "2d"'
            )
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = days * 86_400 + hours * 3_600 + minutes * 60 + rest
    if not 0 < seconds < 1 << 40:
        raise UsageError(
            f"{field}: {value} must be above zero"
            if seconds <= 0
            else f"{field}: {value} is too long"
        )
    return Seconds(seconds)


def format_duration(seconds: int) -> str:
    """Formats the two largest units: 5400 -> "1h30m"."""
    parts: list[str] = []
    rest = max(0, seconds)
    for unit, factor in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, factor)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def parse_cores(value: str | int, field: str) -> int:
    """Parses cores. Returns thousandths of a core: "0.5" -> 500, 2 -> 2000."""
    match = None if isinstance(value, bool) else _CORES.fullmatch(str(value).strip())
    if match is None:
        raise UsageError(
            f"{field}: {str(value)[:TEXT_MAX]!r} is not a number of cores; write it such as 2 or "
            f'"0.5"'
        )
    return int(match[1]) * 1000 + _fraction(match[2], 3)
