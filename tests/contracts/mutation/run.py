"""Breaks the contracts on purpose, one rule at a time: tests must notice each.

    make contract-mutants                      tries all of them and prints a table
    make contract-mutants ARGS="--only TEXT"   those of this source, or with this in their name

A mutant is compiled in a folder of its own, and the tests that cover its contract run against it
until the first one fails. Ends with 1 if a mutant survives, or breaks in another way.
"""

import argparse
import contextlib
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from vyper.exceptions import VyperException

from contracts.mutation.lists import MUTANTS
from contracts.mutation.modelled import MODELLED
from contracts.mutation.mutant import Mutant, contracts_with, covering
from contracts.trial import Trial
from quorate_contracts import artifact
from quorate_contracts import compile as compiler

ROOT = Path(__file__).parents[3]
MACHINE = Path(__file__).parents[1] / "test_money_machine.py"
LOADED = (Trial,)  # with all that tests import, once for all processes


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


def compile_mutant(mutant: Mutant, folder: Path) -> Path:
    """Writes the artifacts of all contracts; those that have the mutant's source are compiled."""
    sources, artifacts = folder / "vyper", folder / "abi"
    shutil.copytree(compiler.SOURCES, sources)
    shutil.copytree(artifact.FOLDER, artifacts)
    file = sources / f"{mutant.source}.vy"
    file.write_text(mutant.mutated(file.read_text()))
    for name in contracts_with(mutant.source):
        (artifacts / f"{name}.json").write_text(compiler.text(name, sources))
    return artifacts


def tried(mutant: Mutant) -> Outcome:
    """Compiles a mutant and runs the tests against it until one fails. For one process each."""
    start = time.monotonic()
    with TemporaryDirectory(prefix="mutant-") as folder, _silent():
        try:
            artifact.FOLDER = compile_mutant(mutant, Path(folder))
        except (AssertionError, VyperException) as error:
            return Outcome(mutant, "", time.monotonic() - start, str(error)[:300])
        artifact.artifact.cache_clear()
        found = FirstFailure()
        first, *others = covering(mutant)
        status = _tested([first], found)
        if status == pytest.ExitCode.OK and others:
            status = _tested(others, found)
    seconds = time.monotonic() - start
    if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return Outcome(mutant, found.name, seconds)
    return Outcome(mutant, "", seconds, f"pytest ended with {status}")


def _tested(
    places: list[str], found: FirstFailure, chosen: str = "not slow"
) -> int | pytest.ExitCode:
    options = ["-x", "-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider", "-m", chosen]
    return pytest.main([*options, *places], plugins=[found])


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def modelled(name: str) -> Outcome:
    """Compares one of the mutants of `test_money_machine` with the model in Python."""
    contract, old, new = MODELLED[name]
    start, found = time.monotonic(), FirstFailure()
    test = f"test_seeded_mutants_are_caught[{name}]"
    with _silent():
        status = _tested([f"{MACHINE}::{test}"], found, chosen="")
    by = "the model" if status == pytest.ExitCode.OK else ""
    mutant = Mutant(name, contract, old, new)
    return Outcome(mutant, by, time.monotonic() - start, found.name)


def line_of(outcome: Outcome) -> str:
    """One row of the table."""
    what = outcome.by or ("BROKEN" if outcome.trouble else "SURVIVED")
    mutant = outcome.mutant
    return f"| {mutant.source} | {mutant.name} | {what} | {outcome.seconds:.0f} |"


def main() -> int:
    """Tries the mutants and prints the table; 1 if any is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the name or the source")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only in m.name or options.only == m.source]
    names = [name for name in MODELLED if options.only in (name, MODELLED[name][0], "")]
    print("| source | broken rule | noticed by | seconds |\n|---|---|---|--:|")
    left = []
    os.chdir(ROOT)
    context = multiprocessing.get_context("fork")  # what is imported above is imported once
    with context.Pool(options.jobs, maxtasksperchild=1) as pool:
        for outcome in chain(
            pool.imap_unordered(tried, chosen), pool.imap_unordered(modelled, names)
        ):
            print(line_of(outcome), flush=True)
            if outcome.trouble:
                print(outcome.trouble, file=sys.stderr)
            if not outcome.by:
                left.append(outcome.mutant.name)
    count = len(chosen) + len(names)
    print(f"\n{count - len(left)} of {count} mutants noticed")
    print("\n".join(left))
    return 1 if left or not count else 0


if __name__ == "__main__":
    sys.exit(main())
