"""Tests conversions between text and exact integers, and the texts that are refused."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.base.errors import UsageError
from quorate.job.job import parse_capability, parse_gpu, parse_resources
from quorate.job.quantities import (
    AMOUNT_MAX,
    PRICE_MAX,
    format_amount,
    format_duration,
    parse_amount,
    parse_cores,
    parse_duration,
    parse_price,
    parse_size,
)


@pytest.mark.rule("0.2")
@given(st.integers(1, AMOUNT_MAX))
def test_money_survives_a_round_trip(micro: int) -> None:
    text = format_amount(micro)
    assert parse_amount(text, "x") == parse_amount("$" + text, "x") == micro
    assert parse_amount(Decimal(micro) / 1_000_000, "x") == micro


@given(st.integers(0, 10**9), st.integers(0, 999_999))
def test_decimals_are_exact(whole: int, fraction: int) -> None:
    text = f"{whole}.{fraction:06d}"
    if whole or fraction:
        assert parse_amount(text, "x") == int(Decimal(text) * 1_000_000)


@given(st.text(max_size=40))
def test_any_text_is_an_amount_or_a_usage_error(text: str) -> None:
    try:
        assert 0 < parse_amount(text, "budget") <= AMOUNT_MAX
    except UsageError as error:
        assert str(error).startswith("budget:")


@pytest.mark.parametrize(
    "bad",
    [
        *("-1", "-0.5", "0", "0.0000001", "1e3", "inf", "nan", "1,5", "\u0663"),
        *("", "1" * 16, 0.5, True, None, Decimal("NaN"), Decimal("-1")),
    ],
)
def test_wrong_money_is_refused(bad: object) -> None:
    with pytest.raises(UsageError, match="max_price"):
        parse_price(bad, "max_price")  # type: ignore[arg-type]


def test_a_price_has_a_ceiling() -> None:
    assert parse_price("1000000", "p") == PRICE_MAX
    with pytest.raises(UsageError, match="at most"):
        parse_price("1000000.000001", "p")


@given(st.integers(1, 10**9))
def test_a_duration_is_read_in_its_unit(seconds: int) -> None:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    text = f"{days}d{hours}h{minutes}m{rest}s"
    assert parse_duration(text, "x") == parse_duration(seconds, "x") == seconds
    assert 0 < parse_duration(format_duration(seconds), "x") <= seconds


@pytest.mark.parametrize("text", ["1h30m", "1H 30M", "90min", "1h 30min"])
def test_durations_are_read_as_people_write_them(text: str) -> None:
    assert parse_duration(text, "x") == 5400


@pytest.mark.parametrize("text", ["2w", "2 weeks", "14 days", "336 hours"])
def test_long_durations_are_read_in_words(text: str) -> None:
    assert parse_duration(text, "x") == 14 * 86_400


@pytest.mark.parametrize(
    "bad", ["", "1", "h", "1x", "-1s", "0s", "1.5h", "30m1h", -5, 0, False, "9" * 12 + "d"]
)
def test_wrong_durations_are_refused(bad: str | int) -> None:
    with pytest.raises(UsageError, match="max_duration"):
        parse_duration(bad, "max_duration")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5GB", 1_500_000_000),
        ("1kB", 1000),
        ("0.5 GiB", 1 << 29),
        ("7B", 7),
        (123, 123),
        ("64G", 64 * 10**9),
        ("64gb", 64 * 10**9),
        ("64Gi", 64 << 30),
        ("64 gib", 64 << 30),
        ("7b", 7),
    ],
)
def test_a_size_is_read_in_its_unit(text: str | int, size: int) -> None:
    assert parse_size(text, "x") == size


@pytest.mark.parametrize("bad", ["24", "-1GB", "1EB", "GB", "1e9B", -1, True, "999999999999TB"])
def test_wrong_sizes_are_refused(bad: str | int) -> None:
    with pytest.raises(UsageError, match="memory"):
        parse_size(bad, "memory")


def test_cpu_cores_are_read_in_thousandths() -> None:
    found = [parse_cores(text, "x") for text in ("0.5", "2", 16, "1.25")]
    assert found == [500, 2000, 16_000, 1250]
    with pytest.raises(UsageError):
        parse_cores("two", "x")


@pytest.mark.parametrize(
    ("text", "count", "model", "vram"),
    [
        ("H100:2", 2, "H100", 0),
        ("24GB..:3", 3, "", 24 * 10**9),
        ("24GB", 1, "", 24 * 10**9),
        ("2", 2, "", 0),
        ("RTX 4090", 1, "RTX 4090", 0),
    ],
)
def test_a_gpu_request_names_count_model_and_memory(
    text: str, count: int, model: str, vram: int
) -> None:
    request = parse_gpu(text, "gpu")
    assert (request.count, request.model, request.vram_bytes_min) == (count, model, vram)


@pytest.mark.parametrize(
    "bad", ["", "H100:", "H100:0", "H100:65", "24GB..40GB:1", "H100:x", ":2", "H100:-1", True]
)
def test_wrong_gpus_are_refused(bad: str) -> None:
    with pytest.raises(UsageError, match=r"resources\.gpu"):
        parse_gpu(bad, "resources.gpu")


def test_a_least_compute_capability_is_part_of_the_gpu_request() -> None:
    assert [parse_capability(text, "x") for text in ("8.9", "9", 9, " 12.0 ")] == [89, 90, 90, 120]
    for bad in ("", "sm_90", "8.99", "0.5", "-8.9", "100", True, "٨.٩"):
        with pytest.raises(UsageError, match="compute capability"):
            parse_capability(bad, "resources.min_compute_capability")
    found = parse_resources({"gpu": "24GB..:1", "min_compute_capability": "8.9"}).gpu
    assert found is not None and found.compute_capability_min == 89
    assert parse_resources({"gpu": "1"}).gpu is not None
    with pytest.raises(UsageError, match="needs a gpu"):
        parse_resources({"min_compute_capability": "8.9"})
