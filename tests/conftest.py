"""Rules for every test: sockets, needs of the machine, tests that run beside it, and its remains.

`make test` runs three processes of pytest (xdist). A file's tests stay together. Each market that
carries jobs to a verdict is several programs, so those of tests/e2e run one after the other in two
processes: in one those whose commands are typed as a user types them, in one all others. All
sandboxes stay in one process, because they share the machine's container engine and its list of
mounts. Markets that only start and end run beside the sandboxes: no deadline of a job can pass in
them.
"""

import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from support.executors.own_engine import mounts_below, unmount_below
from support.requirements import PROBES, require, required

if TYPE_CHECKING:
    import docker

TESTS = Path(__file__).parent
WITHOUT_SOCKETS = ("unit", "style")
LOOPBACK = ["127.0.0.0/8", "::1", "localhost"]
USES_SANDBOXES = re.compile(
    r"mark\.(docker|runsc|bwrap|registry|compose)\b|^from support\.executors(\.| )", re.MULTILINE
)
WITHOUT_VERDICTS = ("test_devnet_end.py", "test_crash_devnet.py")  # of tests/e2e
TYPED = ("test_compose.py", "test_first_day.py", "test_readme.py")  # of tests/e2e
ONE_AFTER_THE_OTHER = ("e2e", "typed", "sandboxes")
LONGEST_FIRST = (
    *ONE_AFTER_THE_OTHER,
    "integration",
    "adversary",
    "interop",
    "contracts",
    "fuzz",
    "unit",
    "style",
)


def pytest_configure() -> None:
    """Refuses a name in QUORATE_REQUIRE that has no probe.

    It also removes the deadline of Hypothesis' examples, because machines are busy.
    """
    # Otherwise every program that a test starts compiles a thousand modules, for two seconds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    path = (str(TESTS), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))  # for programs of tests/support
    required()
    settings.register_profile(
        "patient", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets unit and style tests open no socket, except the Unix socket pair of each event loop.

    Other tests reach loopback only.
    """
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        item.add_marker(
            pytest.mark.disable_socket
            if folder in WITHOUT_SOCKETS
            else pytest.mark.allow_hosts(LOOPBACK)
        )
    if hasattr(
        config, "workerinput"
    ):  # one of several processes: the longest first, and the many short ones fill up the end
        items.sort(key=lambda item: LONGEST_FIRST.index(turn_of(item.nodeid)))


def turn_of(nodeid: str) -> str:
    """Returns the group of a test, one of LONGEST_FIRST.

    The file decides, because xdist has not read the marks.
    """
    return _turn_of_file(nodeid.partition("::")[0])


@functools.cache
def _turn_of_file(name: str) -> str:
    folder, _, file = name.partition("/")[2].partition("/")
    if folder == "e2e" and file in WITHOUT_VERDICTS:
        return "sandboxes"
    if folder == "e2e" and file in TYPED:
        return "typed"
    if folder in ("integration", "adversary") and USES_SANDBOXES.search(
        (TESTS.parent / name).read_text()
    ):
        return "sandboxes"
    return folder if folder in LONGEST_FIRST else LONGEST_FIRST[-1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Decides which tests stay together in one process, in their order.

    xdist's own `loadgroup` loses its groups under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Together(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            context = turn_of(nodeid)
            return context if context in ONE_AFTER_THE_OTHER else nodeid.partition("::")[0]

    return Together(config, log)


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the run if tests leave a mount in their folders, because pytest could never remove
    these folders.
    """
    root = tmp_path_factory.getbasetemp()
    yield
    left = mounts_below(root)
    unmount_below(root)
    assert not left, f"mounts that tests have left: {left}"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an archive with this Python and nothing else.

    It is made once, because that takes a second and no test changes it.
    """
    from quorate.images import build_python_image

    return build_python_image(tmp_path_factory.mktemp("image") / "python.tar", ()).path


@pytest.fixture
def engine() -> "Iterator[docker.APIClient]":
    """The machine's container engine."""
    from quorate_node.executors.docker.engine_connection import connect

    api = connect()
    yield api
    api.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test with `@pytest.mark.docker` or a similar mark if the requirement is missing; in
    CI the test fails.

    This comes before any fixture runs and before sockets are closed.
    """
    for what in PROBES:
        if item.get_closest_marker(what):
            require(what)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints one line for each skipped test: how many of its cases were skipped, and why."""
    skips: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skips[report.nodeid.partition("[")[0], reason.removeprefix("Skipped: ")] += 1
    if not skips:
        return
    terminalreporter.section("skipped")
    for (what, reason), count in sorted(skips.items()):
        terminalreporter.line(f"skipped: {what}{f' (×{count})' if count > 1 else ''} — {reason}")
