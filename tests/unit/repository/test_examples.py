"""Tests the demo's two programs: the same input gives the same bytes, and the numbers are right."""

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from quorate_devnet.demo.scenario import examples_folder

EXAMPLES = examples_folder()


@pytest.fixture(scope="module")
def pricing() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "pricing" / "price.py"))


@pytest.fixture(scope="module")
def render() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "render" / "render.py"))


def test_a_price_is_the_same_to_the_last_digit(
    pricing: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pricing["main"](7, str(tmp_path / "a.json"), 20_000)
    pricing["main"](7, str(tmp_path / "b.json"), 20_000)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert "20000 paths" in capsys.readouterr().out


def test_the_price_is_the_same_on_every_machine(pricing: dict[str, Any]) -> None:
    assert pricing["simulate"](1, 1000) == (6_589_996_427, 116_636_398_516)


def test_the_price_is_near_the_closed_form(pricing: dict[str, Any]) -> None:
    """The option is a discretely averaged Asian call: 24 dates, S = K = 100, r = 5 %, volatility
    20 %.
    """
    paths = 100_000
    total, squares = pricing["simulate"](3, paths)
    scale, discount = 2**20, math.exp(-0.05)
    mean = total / scale / paths * discount
    deviation = math.sqrt(squares / scale / paths * discount**2 - mean**2) / math.sqrt(paths)
    assert abs(mean - geometric_price()) < 0.25 + 4 * deviation, (
        "the geometric average is a lower bound, close to the arithmetic one"
    )
    assert mean > geometric_price() - 4 * deviation


def geometric_price() -> float:
    """Closed form for the geometric average (Kemna and Vorst 1990, discrete dates)."""
    dates, rate, volatility = 24, 0.05, 0.2
    variance = volatility**2 * (dates + 1) * (2 * dates + 1) / (6 * dates**2)
    drift = (rate - volatility**2 / 2) * (dates + 1) / (2 * dates) + variance / 2
    d1 = (drift + variance / 2) / math.sqrt(variance)
    return 100 * math.exp(-rate) * (math.exp(drift) * normal(d1) - normal(d1 - math.sqrt(variance)))


def normal(value: float) -> float:
    return 0.5 * (1 + math.erf(value / math.sqrt(2)))


def test_random_numbers_look_normal(pricing: dict[str, Any]) -> None:
    import numpy as np

    sample = pricing["normal"](5, 3, np.arange(200_000, dtype=np.uint64)) / 65536
    assert abs(sample.mean()) < 0.01 and abs(sample.std() - 1) < 0.01
    other = pricing["normal"](5, 4, np.arange(200_000, dtype=np.uint64)) / 65536
    assert abs((sample * other).mean()) < 0.01, "steps are independent"


def test_a_tile_is_a_pure_function_of_scene_and_number(render: dict[str, Any]) -> None:
    scene = json.loads((EXAMPLES / "render" / "scene.json").read_text())
    small = {**scene, "width": 64, "height": 48, "samples": 4}
    tile = render["render_tile"](small, 5)
    assert tile.shape == (24, 16, 3) and tile.dtype == "uint8"
    assert (
        tile.tobytes()
        == render["render_tile"](small, 5).tobytes()
        != render["render_tile"](small, 6).tobytes()
    )
    assert tile.std() > 5, "there is something in it"


def test_a_fit_of_the_sweep_example_depends_on_rate_and_seed_only() -> None:
    fit = runpy.run_path(str(EXAMPLES / "sweep" / "descent.py"))["fit"]
    found = fit(0.1, 0)
    assert found == fit(0.1, 0) != fit(0.1, 1) and found["loss"] < 0.1
    assert abs(found["slope"] - 3) < 0.2 and abs(found["offset"] - 1) < 0.2
