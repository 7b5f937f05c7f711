"""Breaks the contracts, one rule at a time, and lets the tests notice each of them.

    make contract-mutants ARGS="--only TEXT --jobs 2"

A mutant is compiled in a folder of its own, and tests run against it until the first one fails.
Ends with 1 if a mutant survives, or breaks in another way.
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from vyper.exceptions import VyperException

from contracts import calls, test_court_walks, test_funded, test_tabs, test_walks
from contracts.mutation import court
from contracts.mutation.money import Mutant, mutants
from quorate_contracts.compile import SOURCES, compiled

TESTS = Path(__file__).parents[1]
# With all they import, once for all processes
LOADED = (test_funded, test_tabs, test_walks, test_court_walks)
CONTRACTS = ("Stakes", "Escrow", "Jobs", "Court", "Faults")
FILES = {  # that notice a change of a source, the quickest first
    "Escrow": ("payrolls", "tabs", "relays", "tokens", "walks"),
    "balances": ("payrolls", "tabs", "relays", "tokens", "walks"),
    "money_requests": ("relays",),
    "words": ("payrolls", "tabs", "funded", "walks"),
    "orders": ("funded",),
    "Jobs": ("funded", "walks"),
} | court.FILES


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: `by` is the test that noticed it, empty if none did."""

    mutant: Mutant
    by: str
    seconds: float
    trouble: str = ""


class FirstFailure:
    """A plugin of pytest that remembers which test failed."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.name = self.name or report.nodeid.rpartition("::")[2]


def imports(source: str) -> set[str]:
    """A source and all that it takes in."""
    found, path = {source}, SOURCES / f"{source}.vy"
    for each in re.findall(r"^import (\w+)", path.read_text(), re.M):
        found |= imports(each)
    return found


def compile_mutant(mutant: Mutant) -> dict[str, Any]:
    """The contracts that a mutant changes, compiled."""
    with TemporaryDirectory(prefix="mutant-") as folder:
        place = Path(folder) / "vyper"
        shutil.copytree(SOURCES, place)
        (place / f"{mutant.source}.vy").write_text(mutant.text)
        changed = [each for each in CONTRACTS if mutant.source in imports(each)]
        return {each: compiled(each, place) for each in changed}


def tried(mutant: Mutant) -> Outcome:
    """Runs the tests against a mutant until one fails. For one process each."""
    start, found, original = time.monotonic(), FirstFailure(), calls.compilation
    try:
        made = compile_mutant(mutant)
    except VyperException as error:
        return Outcome(mutant, "", time.monotonic() - start, str(error)[:300])
    calls.compilation = lambda wanted: made.get(wanted) or original(wanted)  # type: ignore[assignment]
    files = [str(TESTS / f"test_{file}.py") for file in FILES[mutant.source]]
    options = ["-x", "-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow"]
    with _silent():
        status = pytest.main([*options, *files], plugins=[found])
    trouble = "" if status in (0, 1) else f"pytest ended with {status}"
    return Outcome(mutant, found.name, time.monotonic() - start, trouble)


def every() -> list[Mutant]:
    """The mutants of all contracts."""
    return [*mutants(), *court.court_mutants()]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def main() -> int:
    """Tries the mutants and prints a table; 1 if any is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the name, or the source")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [m for m in every() if options.only in m.name or options.only == m.source]
    for contract in ("TestToken", "Beacon", *CONTRACTS):
        calls.compilation(contract)
    print("| source | broken rule | noticed by | seconds |\n|---|---|---|--:|")
    left, start = [], time.monotonic()
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for outcome in pool.imap_unordered(tried, chosen):
            what = outcome.by or ("BROKEN" if outcome.trouble else "SURVIVED")
            mutant = outcome.mutant
            print(
                f"| {mutant.source} | {mutant.name} | {what} | {outcome.seconds:.0f} |", flush=True
            )
            if outcome.trouble:
                print(outcome.trouble, file=sys.stderr)
            if not outcome.by or outcome.trouble:
                left.append(outcome.mutant.name)
    count = len(chosen)
    print(
        f"\n{count - len(left)} of {count} noticed, {time.monotonic() - start:.0f} s",
        *left,
        sep="\n",
    )
    return 1 if left or not count else 0


if __name__ == "__main__":
    sys.exit(main())
