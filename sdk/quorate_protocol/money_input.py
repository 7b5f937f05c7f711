"""Reads amounts of money that people type: decimal US dollars, as exact millionths.

No float is used, and nothing is rounded. A wrong text is refused with what is wrong in it and what
to write instead, because people type amounts as they write them at home.
"""

import re

MICRO = 1_000_000
DECIMALS_MAX = 6
EXAMPLE = "write US dollars such as 1.25"
_PLAIN = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)
_COMMAS = re.compile(r"[\d,]+(?:\.\d+)?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"(\d+),(\d{1,2}|\d{4,6})", re.ASCII)
SIGNS = "€£¥₹₽₩¢₿"
TEXT_MAX = 40


def micro_usd(text: str, whole_digits: int = 15) -> int:
    """Returns millionths of a USD of a text such as "1.25", "$1.25" or "1.25 USD". Raises
    ValueError, whose text says what is wrong and what to write.
    """
    shown = repr(text.strip()[:TEXT_MAX])
    bare = text.strip().removesuffix("USD").rstrip().removeprefix("$")
    if bare.startswith(("-", "\N{MINUS SIGN}")):
        raise ValueError(f"{shown} is negative; write an amount above zero")
    if any(sign in bare for sign in SIGNS):
        raise ValueError(f"{shown} has another currency's sign; {EXAMPLE}")
    if "," in bare and _COMMAS.fullmatch(bare):
        raise ValueError(f"{shown} has a comma; write {without_commas(bare)}")
    match = _PLAIN.fullmatch(bare)
    if match is None:
        raise ValueError(f"{shown} is no amount; {EXAMPLE}")
    whole, decimals = match[1], match[2] or ""
    if len(decimals) > DECIMALS_MAX and not int(whole + decimals[:DECIMALS_MAX]):
        raise ValueError(f"{shown} is too small; write at least 0.000001")
    if len(decimals) > DECIMALS_MAX:
        raise ValueError(
            f"{shown} has {len(decimals)} decimals, at most {DECIMALS_MAX} are possible; write "
            f"{whole[:whole_digits]}.{decimals[:DECIMALS_MAX]}"
        )
    if len(whole) > whole_digits:
        raise ValueError(f"{shown} has too many digits; {EXAMPLE}")
    return int(whole) * MICRO + int(decimals.ljust(DECIMALS_MAX, "0"))


def without_commas(text: str) -> str:
    """Returns the amount that a text with commas means: "1,5" is 1.5, "1,000.50" is 1000.50."""
    match = _DECIMAL_COMMA.fullmatch(text)
    return f"{match[1]}.{match[2]}" if match else text.replace(",", "")
