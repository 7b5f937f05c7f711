"""A broken rule of a contract's source, and which tests may notice it."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.compile import SOURCES

TESTS = Path(__file__).parents[1]
IMPORT = re.compile(r"^import (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a source file: `old` stands in it once.

    `tests` are tried before the others that cover the source: a file's name without `test_`, or a
    test's after two colons.
    """

    name: str
    source: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    def mutated(self, text: str) -> str:
        """The source with the change."""
        assert text.count(self.old) == 1, f"{self.name}: {self.source}.vy has its text not once"
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Change:
    """A mutant in a list of its source's."""

    name: str
    old: str
    new: str
    tests: tuple[str, ...] = ()


def of(source: str, *changes: Change) -> tuple[Mutant, ...]:
    """The mutants of one source."""
    return tuple(Mutant(c.name, source, c.old, c.new, c.tests) for c in changes)


@cache
def imports(source: str) -> frozenset[str]:
    """All sources that one takes in, itself included."""
    found = {source}
    for name in IMPORT.findall((SOURCES / f"{source}.vy").read_text()):
        found |= imports(name)
    return frozenset(found)


def contracts_with(source: str) -> tuple[str, ...]:
    """The contracts that change when a source changes."""
    return tuple(name for name in CONTRACTS if source in imports(name))


def covering(mutant: Mutant) -> list[str]:
    """Files and tests to run, the likeliest first."""
    first = [_place(name) for name in mutant.tests]
    named = [name for contract in contracts_with(mutant.source) for name in COVERING[contract]]
    return list(dict.fromkeys([*first, *(_place(name) for name in named)]))


def _place(name: str) -> str:
    file, colons, test = name.partition("::")
    path = TESTS / f"test_{file}.py"
    assert path.exists(), f"no {path.name}"
    return str(path) + colons + (f"test_{test}" if test else "")


# Contract -> files of tests that drive it, the quickest first
COVERING = {
    "TestToken": ("token_and_deploy",),
    "Stakes": (
        "stakes",
        "slashes",
        "profiles",
        "requests",
        "owners_and_juries",
        "court_juries",
        "court_slashes",
        "long_lists",
    ),
    "Escrow": ("escrow", "money_machine::contracts_and_model_agree"),
    "Epochs": (
        "epochs",
        "epoch_vouchers",
        "epoch_claims",
        "money_machine::contracts_and_model_agree",
    ),
    "Beacon": ("beacon_proof", "owners_and_juries", "court_deadlines"),
    "Court": (
        "boundaries",
        "court_verdicts",
        "court_deadlines",
        "court_slashes",
        "court_juries",
        "court_refusals",
        "court_holes",
        "case_bonds",
    ),
    "Cases": (
        "court_refusals",
        "court_holes",
        "court_pays",
        "case_paths",
        "case_bonds",
        "court_juries",
    ),
    "Faults": ("equivocation", "coordinator_faults"),
}
