"""Checks docs/trust.md: each sentence names the tests that hold it, and each test that it names
exists.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
MARK = re.compile(r"\[\^([\w-]+)\]")
END = re.compile(r"[.!?](?:\*\*)?((?:\[\^[\w-]+\])*)(?=\s|$)")
NOT_TESTED = re.compile(r"not tested: \S.{30,}")


def split(page: str) -> tuple[list[str], dict[str, str]]:
    """(paragraphs and list items on one line each, without headings; mark -> what stands at the
    foot).
    """
    body, _, foot = page.partition("\n[^")
    notes = (
        dict(re.findall(r"\[\^([\w-]+)\]: (.*?)(?=\n\[\^|\Z)", "[^" + foot, re.DOTALL))
        if foot
        else {}
    )
    blocks = re.split(r"\n\s*\n|\n(?=- )", body)
    kept = (" ".join(block.split()) for block in blocks if not block.lstrip().startswith("#"))
    headless = (re.sub(r"^- ", "", block) for block in kept if block)
    return list(headless), {name: " ".join(text.split()) for name, text in notes.items()}


def unmarked(blocks: list[str]) -> Iterator[str]:
    """Sentences without a mark, and what is left of a block that does not end like a sentence."""
    for block in blocks:
        at = 0
        for found in END.finditer(block):
            if not found[1]:
                yield block[at : found.end()].strip()
            at = found.end()
        if block[at:].strip():
            yield block[at:].strip()


def missing(note: str) -> Iterator[str]:
    """Tests of a footnote that do not exist. A footnote may say why nothing can be tested
    instead.
    """
    if NOT_TESTED.fullmatch(note):
        return
    for name in re.split(r",\s*", note):
        path, _, function = name.partition("::")
        file = ROOT / path
        tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.parse("")
        names = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        if not function.startswith("test_") or function not in names:
            yield name


def test_every_sentence_names_a_test() -> None:
    blocks, notes = split(PAGE)
    assert len(blocks) > 8 and len(notes) > 20, "the page was read"
    assert not list(unmarked(blocks))
    used = set(MARK.findall(" ".join(blocks)))
    assert used == notes.keys(), (
        f"marks without a footnote, or footnotes without a mark: {sorted(used ^ notes.keys())}"
    )
    absent = {name: found for name, note in notes.items() if (found := list(missing(note)))}
    assert not absent


@pytest.mark.parametrize(
    ("page", "is_told"),
    [
        ("A claim.[^a]\n\n[^a]: x", False),
        ("A claim.\n\n[^a]: x", True),
        ("# Heading\n\n- **Bold.** More.[^a]\n\n[^a]: x", True),
        ("A claim.[^a] and no end\n\n[^a]: x", True),
        ("Version 0.5 of it.[^a]\n\n[^a]: x", False),
    ],
)
def test_a_sentence_without_a_mark_is_reported(page: str, is_told: bool) -> None:
    assert bool(list(unmarked(split(page)[0]))) is is_told


@pytest.mark.parametrize(
    "note",
    [
        "tests/style/test_trust.py::test_nobody",
        "tests/no.py::test_x",
        "not tested: no",
        "tests/style",
    ],
)
def test_a_test_that_does_not_exist_is_reported(note: str) -> None:
    assert list(missing(note))
    assert not list(missing("tests/style/test_trust.py::test_every_sentence_names_a_test"))
