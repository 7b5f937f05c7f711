"""What several tests of the runtime need."""

import io
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Returns a stream for log lines. The root logger is as before afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
