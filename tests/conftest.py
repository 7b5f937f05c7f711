"""What holds for every test: which sockets it may open, what it needs from the machine, and the closing list of skips."""

import gc
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import PROBES, require, required

TESTS = Path(__file__).parent
WITHOUT_SOCKETS = ("unit", "style")
LOOPBACK = ["127.0.0.0/8", "::1", "localhost"]


def pytest_configure() -> None:
    """Refuses a QUORATE_REQUIRE that names something nobody can look for."""
    required()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit and style tests open no socket (a Unix socket pair, which every event loop has, is none); others reach loopback only."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        item.add_marker(pytest.mark.disable_socket if folder in WITHOUT_SOCKETS else pytest.mark.allow_hosts(LOOPBACK))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.docker` and its like: skipped, or failed in CI, before any fixture runs and before sockets are closed."""
    for what in PROBES:
        if item.get_closest_marker(what):
            require(what)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each skipped test, parameters counted: what, and why."""
    skips: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skips[report.nodeid.partition("[")[0], reason.removeprefix("Skipped: ")] += 1
    if not skips:
        return
    terminalreporter.section("skipped")
    for (what, reason), count in sorted(skips.items()):
        terminalreporter.line(f"skipped: {what}{f' (×{count})' if count > 1 else ''} — {reason}")


@pytest.fixture
def engine_away() -> Iterator[None]:
    """For tests whose container engine does not answer: the engine's SDK drops a socket that reached nobody, unclosed.

    Collected here, so that the warning does not come up in whichever test runs when the collector next does.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"unclosed <socket\.socket fd=\d+, family=1, type=1", ResourceWarning)
        yield
        gc.collect()
