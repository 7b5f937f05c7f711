"""Options of `quorate run` for job arrays."""

from collections.abc import Sequence
from typing import Annotated

import typer

from quorate.base.errors import UsageError

PANEL = "Job arrays"
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        help="KEY=VALUE,VALUE,...: one run for each value, as a variable and for {KEY} in the "
        "command. Repeat it for every combination.",
        rich_help_panel=PANEL,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        help="So many runs of each combination, with seed 0, 1, ... as {seed} and variable.",
        rich_help_panel=PANEL,
    ),
]


def parse_sweeps(given: Sequence[str]) -> dict[str, list[str]]:
    """Parses the values of --sweep. UsageError for one without values or a key given twice."""
    found: dict[str, list[str]] = {}
    for item in given:
        key, equals, values = item.partition("=")
        if not equals or not key or not values:
            raise UsageError(f"--sweep: {item[:80]!r} must have the form KEY=VALUE,VALUE,...")
        if key in found:
            raise UsageError(f"--sweep: {key} is given twice; put its values into one list")
        found[key] = values.split(",")
    return found
