"""The fixture `attack`: records one row of the table that `make adversary` prints.

A row says what an attack gained before its rule existed, what it gains now, and what it costs.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from rich.console import Console
from rich.table import Table

Attack = Callable[..., None]
ROW = "attack"
COLUMNS = ("attack", "gained before", "gains now", "costs the attacker")


@pytest.fixture
def attack(record_property: Callable[[str, object], None]) -> Attack:
    """Returns a function that records the row of this test.

    `name`, `before` and `cost` are plain words with their figures; `now` is what the test measured.
    """

    def record(*, name: str, before: str, now: object, cost: str) -> None:
        record_property(ROW, (name, before, str(now), cost))

    return record


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--attacks`: print the table of all attacks that ran."""
    parser.addoption("--attacks", action="store_true", help="print the table of attacks")


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Prints one row for each attack whose test passed, and names those that failed."""
    if not config.getoption("--attacks", default=False):
        return
    table = Table(*COLUMNS)
    for report in terminalreporter.stats.get("passed", []):
        for key, row in report.user_properties:
            if key == ROW:
                table.add_row(*map(str, row))
    for report in terminalreporter.stats.get("failed", []):
        table.add_row(Path(report.nodeid).name, "", "NOT STOPPED: its test failed", "")
    Console(width=140).print(table)
