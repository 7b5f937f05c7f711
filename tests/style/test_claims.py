"""Checks the claims: each rule of the protocol that is built has a test, and each marker
names a rule.
"""

import re
from pathlib import Path

from sim.mutant_rules import RULES as MUTANT_RULES
from style.claims import Rule, current, holders, markers, rules, write
from style.source import ROOT, fail_with, protocol, text_of

RULES = list(rules(protocol()))


def test_the_protocol_was_read() -> None:
    assert len(RULES) > 250 and sum(rule.is_built for rule in RULES) > 200
    assert len({rule.section for rule in RULES}) == 13


def test_a_number_names_one_rule() -> None:
    numbers = [rule.number for rule in RULES]
    assert len(numbers) == len(set(numbers))


def test_every_line_of_the_protocol_is_a_numbered_rule() -> None:
    _, _, normative = protocol().partition("\n## ")
    items = [line for line in normative.splitlines() if re.match(r"(- \*\*|\| )", line)]
    heads = [line for line in items if line.startswith("| rule |")]
    assert len(items) - len(heads) == len(RULES)


def test_every_rule_that_is_built_has_a_test() -> None:
    held = holders()
    fail_with(
        [
            f"docs/protocol.md: rule {rule.number} has no test; mark one with "
            f'@pytest.mark.rule("{rule.number}"), or say in the rule that it is not built'
            for rule in RULES
            if rule.is_built and rule.number not in held
        ]
    )


def test_every_marker_names_a_rule() -> None:
    known = {rule.number for rule in RULES}
    fail_with(
        [
            f"{', '.join(names)}: docs/protocol.md has no rule {number}"
            for number, names in holders().items()
            if number not in known
        ]
    )


def test_every_mutant_that_breaks_a_rule_exists() -> None:
    texts = (text_of(path) for path in (ROOT / "tests" / "sim").glob("mutants_*.py"))
    names = {name for text in texts for name in re.findall(r'\bMutant\(\s*"([^"]+)"', text)}
    fail_with(
        [
            f"tests/sim/mutant_rules.py: no mutant {name!r}"
            for name in MUTANT_RULES
            if name not in names
        ]
    )


def test_the_page_has_every_rule() -> None:
    page = current()
    assert all(f"\n| {rule.number} | " in page for rule in RULES)


def test_rules_are_read_from_lists_and_tables() -> None:
    page = (
        "- **0** no\n\n## 1. One\n\n- **1.1** A\n  b.\n- **1.2** C, **its use is not built**.\n\n"
    )
    page += "| rule | message |\n|---|---|\n| **1.3** | Ack | jobId |\n"
    assert list(rules(page)) == [
        Rule("1.1", "1. One", "A b."),
        Rule("1.2", "1. One", "C, **its use is not built**."),
        Rule("1.3", "1. One", "Ack | jobId"),
    ]
    assert [rule.is_built for rule in rules(page)] == [True, False, True]


def test_markers_are_read_from_tests(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text('import pytest\n@pytest.mark.rule("I1", "1.2")\ndef test_a() -> None: ...\n')
    assert list(markers(path)) == [("I1", "test_x::test_a"), ("1.2", "test_x::test_a")]
    page = write([Rule("1.2", "1. One", "A | b.")], {"1.2": ["test_x::test_a"]})
    assert "| 1.2 | A: b. | `test_x::test_a` |" in page
