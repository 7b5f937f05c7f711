"""Writes docs/claims.md: each rule of the protocol with the tests and mutants that hold it.

`make claims` writes the page. It is not kept in the repository, for it only repeats the rules and
the markers `@pytest.mark.rule("5.12")` of tests.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sim.mutant_rules import RULES
from style.source import ROOT, RULES_TO_COME, protocol, relative, text_of, tree_of

PAGE = ROOT / "docs" / "claims.md"
NUMBER = re.compile(r"(?:- |\| )\*\*(I\d+|\d+\.\d+)\*\*(?: \|)? ")
USE_IS_NOT_BUILT = "**its use is not built**"
HEAD = """# Which test holds which rule

Generated from the markers `@pytest.mark.rule` of the tests and `tests/sim/mutant_rules.py`.

A *mutant* breaks a rule on purpose, and the simulator must notice it (`python -m sim.mutants`).
A rule that is **not built** names the tests that show what happens instead, if there are any.
"""


@dataclass(frozen=True)
class Rule:
    """One numbered rule of the protocol."""

    number: str
    section: str
    text: str

    @property
    def is_built(self) -> bool:
        """Whether the software follows the rule."""
        return self.section != RULES_TO_COME and USE_IS_NOT_BUILT not in self.text


def rules(page: str) -> Iterator[Rule]:
    """All numbered list items and table rows of the protocol, in the order of the page."""
    section = ""
    for block in re.split(r"\n\s*\n|\n(?=- |\| |#)", page):
        if block.startswith("## "):
            section = block.removeprefix("## ")
        elif found := NUMBER.match(block):
            text = " ".join(block[found.end() :].split()).rstrip("| ")
            yield Rule(found[1], section, text)


def markers(path: Path) -> Iterator[tuple[str, str]]:
    """(rule number, test) of every marker `rule` in a test file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.rule":
                    for number in mark.args:
                        yield ast.literal_eval(number), f"{path.stem}::{node.name}"


def holders() -> dict[str, list[str]]:
    """Rule number -> the tests and mutants that hold it, sorted."""
    found: dict[str, list[str]] = {}
    tests = ROOT / "tests"
    for path in sorted(tests.rglob("test_*.py")):
        if "pytest.mark.rule(" in text_of(path) and path.parent.name != "style":
            for number, name in markers(path):
                found.setdefault(number, []).append(name)
    for name, numbers in RULES.items():
        for number in numbers:
            found.setdefault(number, []).append(f"mutant “{name}”")
    return {number: sorted(set(names)) for number, names in found.items()}


def write(all_rules: list[Rule], held_by: dict[str, list[str]]) -> str:
    """The page."""
    lines, section = [HEAD], ""
    for rule in all_rules:
        if rule.section != section:
            section = rule.section
            lines.append(f"\n## {section}\n\n| rule | what it says | held by |\n|---|---|---|")
        names = ", ".join(
            name if name.startswith("mutant") else f"`{name}`"
            for name in held_by.get(rule.number, [])
        )
        text = rule.text.replace(" | ", ": ").replace("|", "\\|")
        lines.append(f"| {rule.number} | {text} | {names} |")
    return "\n".join(lines) + "\n"


def current() -> str:
    """The page as protocol and tests give it now."""
    return write(list(rules(protocol())), holders())


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
    print(f"{relative(PAGE)} is written")
