"""Writes what was tried to $QUORATE_FUZZ_COUNTS, for `python -m fuzz.campaign`."""

import json
import os
from pathlib import Path

import pytest

from support.fuzz_properties import COUNTS


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes counts by name, and how many tests failed."""
    target = os.environ.get("QUORATE_FUZZ_COUNTS")
    if target:
        Path(target).write_text(
            json.dumps({**COUNTS, "failed": session.testsfailed, "tests": session.testscollected})
        )
