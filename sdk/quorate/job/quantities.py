"""Parses and formats money, sizes, durations and cores as exact integers. No floats are used.

Money is decimal US dollars and becomes millionths; finer amounts are refused, never rounded. Sizes
are decimal (24GB, 24g), as GPUs are sold, or binary (24GiB, 24gi). Every error is a `UsageError`
that names the field.
"""

import re
from decimal import Decimal

from quorate.base.errors import UsageError
from quorate_protocol.money_input import micro_usd
from quorate_protocol.quantity_input import SIZE_MAX, SPAN_MAX, size_bytes, span_seconds
from quorate_protocol.units import Amount, Ppm, Price, Seconds, usd

PRICE_MAX = 10**12  # one million USD per hour
AMOUNT_MAX = 10**18  # one million million USD
TEXT_MAX = 64

_SHARE = re.compile(r"0(?:\.(\d{1,6}))?", re.ASCII)
_CORES = re.compile(r"(\d{1,5})(?:\.(\d{1,3}))?", re.ASCII)
Money = str | int | Decimal
"""Accepted forms of money: "1.25", 2, Decimal("0.30"). Floats are refused, because 0.1 is not
exactly a tenth.
"""


def parse_amount(value: Money, field: str) -> Amount:
    """Parses an amount above zero. Returns millionths of a dollar."""
    return Amount(_micro(value, field, AMOUNT_MAX))


def parse_hex(text: str, size: int, told: str) -> bytes:
    """Parses an account or a hash. Raises UsageError, which says `told`."""
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""
    if len(value) != size:
        raise UsageError(told)
    return value


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
        try:
            size = size_bytes(value)
        except ValueError as error:
            raise UsageError(f"{field}: {error}") from error
    if not 0 <= size <= SIZE_MAX:
        raise UsageError(f"{field}: {size} bytes is out of range")
    return size


def parse_duration(value: str | int, field: str) -> Seconds:
    """Parses a duration above zero. Returns seconds: 90, "90s", "15m", "1h30m", "2d"."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f'{field}: write a duration such as "1h30m", not {type(value).__name__}')
    if isinstance(value, int):
        if not 0 < value < SPAN_MAX:
            said = "must be above zero" if value <= 0 else "is too long"
            raise UsageError(f"{field}: {value} {said}")
        return Seconds(value)
    try:
        return Seconds(span_seconds(value))
    except ValueError as error:
        raise UsageError(f"{field}: {error}") from error


def format_duration(seconds: int) -> str:
    """Formats the two largest units: 5400 -> "1h30m"."""
    parts: list[str] = []
    rest = max(0, seconds)
    for unit, factor in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, factor)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def parse_tolerance(value: Money, field: str) -> Ppm:
    """Parses a share below one. Returns millionths: "0.001" -> 1000."""
    match = None if isinstance(value, bool) else _SHARE.fullmatch(str(value).strip())
    if match is None:
        raise UsageError(
            f"{field}: {str(value)[:TEXT_MAX]!r} is not a share; write 0, or one with at most six "
            'decimals such as "0.001"'
        )
    return Ppm(_fraction(match[1], 6))


def parse_cores(value: str | int, field: str) -> int:
    """Parses cores. Returns thousandths of a core: "0.5" -> 500, 2 -> 2000."""
    match = None if isinstance(value, bool) else _CORES.fullmatch(str(value).strip())
    if match is None:
        raise UsageError(
            f"{field}: {str(value)[:TEXT_MAX]!r} is not a number of cores; write it such as 2 or "
            f'"0.5"'
        )
    return int(match[1]) * 1000 + _fraction(match[2], 3)
