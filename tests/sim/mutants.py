"""Breaks rules on purpose, one at a time: the checks must notice each within a few seeds.

    python -m sim.mutants               tries all of them and prints the table;
                                        `make sim` does so after 300 seeds or more
    python -m sim.mutants --only NAME   tries one of them
    python -m sim.mutants --learn       tries all and saves by which seed each was noticed

A mutant that no check notices shows a hole in the checks. A mutant is a named patch of one function
of the cores or the protocol. It names the invariant that it breaks, and the plans that can show it.
The seed that showed it last time (kills.json) is tried first, then all seeds in order. So a changed
simulator only makes the run slower; the table says how many seeds each mutant needed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sim.plan import Plan, draw

if TYPE_CHECKING:
    import multiprocessing.pool

Patch = pytest.MonkeyPatch
SEEDS_MAX = 60  # plans that could show it but do not, until it counts as survived
BROKEN = ("TypeError", "AttributeError", "NameError")  # of the mutant itself: it shows nothing
KILLS = Path(__file__).with_name("kills.json")  # mutant's name -> the seed that showed it


def anywhere(plan: Plan) -> Plan | None:
    """Accepts every plan."""
    return plan


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken rule.

    `where` returns the plan to play for a seed, perhaps changed, or None when it cannot show the
    mutant.
    """

    name: str
    invariant: str
    mutate: Callable[[Patch], None]
    where: Callable[[Plan], Plan | None] = anywhere

    def plans(self) -> Iterator[Plan]:
        """The plans that may show it: first the one that did before, then in order of seeds."""
        found, known = 0, remembered().get(self.name)
        for seed in [
            *([known] if known else []),
            *(seed for seed in range(1, 100 * SEEDS_MAX) if seed != known),
        ]:
            plan = self.where(draw(seed))
            if plan is not None:
                yield plan
                found += 1
            if found == SEEDS_MAX:
                return


@dataclass(frozen=True, slots=True)
class Row:
    """How one mutant ended.

    `seed` is the seed that showed it (None = it survived), with the number of seeds and seconds of
    computing that it took.
    """

    name: str
    invariant: str
    seed: int | None
    tries: int
    seconds: float
    violation: str


@dataclass(frozen=True, slots=True)
class Tried:
    """The results of all mutants, and the total time."""

    rows: tuple[Row, ...]
    seconds: float

    @property
    def count(self) -> int:
        """How many mutants were tried."""
        return len(self.rows)

    @property
    def survivors(self) -> list[str]:
        """Mutants that no check noticed."""
        return [row.name for row in self.rows if row.seed is None]

    @property
    def killed(self) -> int:
        """How many mutants were noticed."""
        return self.count - len(self.survivors)

    @property
    def text(self) -> str:
        """The results as a table."""
        lines = [f"{'mutant':44} {'breaks':8} {'seed':>5} {'seeds':>5} {'s':>6}  noticed as"]
        for row in self.rows:
            seed = "-" if row.seed is None else str(row.seed)
            lines.append(
                f"{row.name:44} {row.invariant:8} {seed:>5} {row.tries:>5} {row.seconds:6.1f}  "
                f"{row.violation[:90]}"
            )
        return "\n".join(
            [*lines, f"mutants killed {self.killed} of {self.count} in {self.seconds:.1f} s"]
        )


def everyone() -> tuple[Mutant, ...]:
    """All mutants."""
    from sim import (
        mutants_coordinator,
        mutants_faults,
        mutants_i11,
        mutants_intake,
        mutants_money,
        mutants_privacy,
        mutants_protocol,
        mutants_provider,
        mutants_receipts,
        mutants_rentals,
        mutants_reputation,
        mutants_sharing,
    )

    return (
        *mutants_protocol.MUTANTS,
        *mutants_coordinator.MUTANTS,
        *mutants_faults.MUTANTS,
        *mutants_money.MUTANTS,
        *mutants_provider.MUTANTS,
        *mutants_reputation.MUTANTS,
        *mutants_sharing.MUTANTS,
        *mutants_intake.MUTANTS,
        *mutants_receipts.MUTANTS,
        *mutants_privacy.MUTANTS,
        *mutants_i11.MUTANTS,
        *mutants_rentals.MUTANTS,
    )


def named(name: str) -> Mutant:
    """One mutant; KeyError for an unknown name."""
    return {mutant.name: mutant for mutant in everyone()}[name]


@cache
def remembered() -> dict[str, int]:
    """The seeds that showed each mutant last time; a missing or wrong one is searched again."""
    found: dict[str, int] = json.loads(KILLS.read_text(encoding="utf-8")) if KILLS.exists() else {}
    return found


def learn(tried: Tried) -> None:
    """Saves the seeds."""
    found = {row.name: row.seed for row in tried.rows if row.seed is not None}
    KILLS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Breaks one rule inside the block; None breaks none."""
    patch = Patch()
    try:
        if name is not None:
            named(name).mutate(patch)
        yield
    finally:
        patch.undo()


def attempt(name: str) -> Row:
    """Plays one mutant until a check notices it."""
    from sim.run import play_plan

    mutant, started, tries, violation = named(name), time.process_time(), 0, None
    for plan in mutant.plans():
        tries += 1
        with applied(name):
            violation = play_plan(plan)[2]
        if violation is not None and violation.startswith(BROKEN):
            break
        if violation is not None:
            return Row(
                name, mutant.invariant, plan.seed, tries, time.process_time() - started, violation
            )
    why = f"the mutant is broken: {violation}" if violation else "nobody noticed"
    return Row(name, mutant.invariant, None, tries, time.process_time() - started, why)


def table(pool: "multiprocessing.pool.Pool | None") -> Tried:
    """Tries all mutants."""
    return _tried([mutant.name for mutant in everyone()], pool)


def _tried(names: list[str], pool: "multiprocessing.pool.Pool | None") -> Tried:
    started = time.monotonic()
    found: Iterable[Row] = (
        map(attempt, names) if pool is None else pool.imap(attempt, names, chunksize=1)
    )
    rows = tuple(found)
    return Tried(rows, time.monotonic() - started)


def main() -> int:
    """The command."""
    from sim.run import workers

    parser = argparse.ArgumentParser(
        prog="sim.mutants",
        description="Breaks the simulator's rules one by one; each must be noticed.",
    )
    parser.add_argument("--only", help="one of them")
    parser.add_argument("--learn", action="store_true", help="remember the seeds that showed them")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args()
    if options.only:
        tried = _tried([options.only], None)
    else:
        with workers(options.workers, len(everyone())) as pool:
            tried = table(pool)
        if options.learn:
            learn(tried)
    print(tried.text)
    return 1 if tried.survivors else 0


def only(test: Callable[[Plan], bool]) -> Callable[[Plan], Plan | None]:
    """Accepts plans for which a condition holds."""
    return lambda plan: plan if test(plan) else None


def changed(**parts: object) -> Callable[[Plan], Plan | None]:
    """Accepts every plan, with some fields replaced."""
    return lambda plan: replace(plan, **parts)  # type: ignore[arg-type]


if __name__ == "__main__":
    from sim.mutants import (
        main as entry,
    )  # the module under its own name, which the workers import too

    sys.exit(entry())
