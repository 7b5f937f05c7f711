"""What holds for every test: which sockets it may open, what it needs from the machine, which others it may run beside, and what it leaves.

`make test` runs two processes of pytest (xdist). A file's tests stay together; all markets of tests/e2e stay in one process, for each
is several busy programs; so do all sandboxes, which share the machine's container engine and its list of mounts.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_support import mounts_below, unmount_below
from needs import PROBES, require, required

TESTS = Path(__file__).parent
WITHOUT_SOCKETS = ("unit", "style")
LOOPBACK = ["127.0.0.0/8", "::1", "localhost"]
SANDBOXED = ("docker", "runsc", "bwrap", "registry", "compose")
LONGEST_FIRST = ("e2e", "sandboxes", "integration", "contracts", "fuzz", "unit", "style")


def pytest_configure() -> None:
    """Refuses a QUORATE_REQUIRE that names something nobody can look for."""
    required()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unit and style tests open no socket (a Unix socket pair, which every event loop has, is none); others reach loopback only."""
    sandboxed = {item.path for item in items if any(item.get_closest_marker(name) for name in SANDBOXED)}
    for item in items:
        folder = _folder(item)
        item.add_marker(pytest.mark.disable_socket if folder in WITHOUT_SOCKETS else pytest.mark.allow_hosts(LOOPBACK))
        together = "e2e" if folder == "e2e" else "sandboxes" if item.path in sandboxed else f"{folder}/{item.path.name}"
        item.add_marker(pytest.mark.xdist_group(together))
    if hasattr(config, "workerinput"):  # one of several processes: the longest first, and the many short ones fill up the end
        items.sort(key=_turn)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""


def _turn(item: pytest.Item) -> int:
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None, "every test has been given one"
    together = str(mark.args[0]).partition("/")[0]
    return LONGEST_FIRST.index(together) if together in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a test as the command line does: xdist writes `@group` behind it."""
    name, found, together = report.nodeid.rpartition("@")
    if found and together.partition("/")[0] in LONGEST_FIRST:
        report.nodeid = name


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the run whose tests leave a mount in their folders: pytest could never remove these again."""
    root = tmp_path_factory.getbasetemp()
    yield
    left = mounts_below(root)
    unmount_below(root)
    assert not left, f"mounts that tests have left: {left}"


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
