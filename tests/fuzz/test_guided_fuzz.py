"""Tests that each target of the coverage-guided fuzzing takes its own seeds, cut and with noise.

A campaign must find a planted bug.
"""

import importlib.util
from pathlib import Path

import pytest

from fuzz.guided import run
from fuzz.guided_seeds import seeds
from fuzz.guided_targets import TARGETS


@pytest.mark.rule("3.8")
@pytest.mark.parametrize("target", TARGETS)
def test_seeds_cut_or_with_noise_raise_only_typed_errors(target: str) -> None:
    for data in seeds(target)[:40]:
        step = max(1, len(data) // 12)
        for at in range(0, len(data) + 1, step):
            TARGETS[target](data[:at])
            TARGETS[target](data[:at] + b"\xff" + data[at + 1 :])


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_a_planted_bug_is_found_reported_and_kept(capfd: pytest.CaptureFixture[str]) -> None:
    found = run("planted", 3_000, 60.0, seed=1)
    assert found["untyped"] == 1 and list(Path(str(found["kept"])).glob("failed-*"))
    told = capfd.readouterr().err
    assert "OverflowError" in told or "ZeroDivisionError" in told
