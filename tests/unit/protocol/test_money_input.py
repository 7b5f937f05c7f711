"""Amounts that people type: exact, and a wrong one is told what to write instead."""

import pytest

from quorate_protocol.money_input import micro_usd


@pytest.mark.parametrize(
    ("text", "micro"),
    [("1.25", 1_250_000), ("$1.25", 1_250_000), ("0.000001 USD", 1), ("7", 7_000_000)],
)
def test_amounts_are_exact(text: str, micro: int) -> None:
    assert micro_usd(text) == micro


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("5,50", "has a comma; write 5.50"),
        ("1,000.50", "has a comma; write 1000.50"),
        ("1,000", "has a comma; write 1000"),
        ("€5", "another currency's sign; write US dollars"),
        ("5 £", "another currency's sign"),
        ("-5", "is negative; write an amount above zero"),
        ("\N{MINUS SIGN}5", "is negative"),
        ("5.1234567", "has 7 decimals, at most 6 are possible; write 5.123456"),
        ("1" * 16, "has too many digits"),
        ("1e3", "is no amount; write US dollars such as 1.25"),
        ("", "is no amount"),
        ("five", "is no amount"),
        ("\u0663", "is no amount"),
        ("1.", "is no amount"),
    ],
)
def test_wrong_amounts_are_told_what_to_write(text: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        micro_usd(text)
