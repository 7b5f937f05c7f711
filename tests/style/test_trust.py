"""Checks docs/trust.md: docs/trust-proofs.md names tests for each of its sentences."""

import ast
import re
from collections.abc import Iterator

import pytest

from style.source import ROOT, text_of, tree_of

END = re.compile(r"[.!?](?:\*\*)?(?=\s|$)")
NOT_TESTED = re.compile(r"not tested: \S.{30,}")


def sentences(page: str) -> Iterator[str]:
    """Sentences of paragraphs and list items, each on one line; also a rest without an end."""
    for block in re.split(r"\n\s*\n|\n(?=- )", page):
        text = re.sub(r"^- ", "", " ".join(block.split()))
        if not text or text.startswith("#"):
            continue
        at = 0
        for found in END.finditer(text):
            yield text[at : found.end()].strip()
            at = found.end()
        if text[at:].strip():
            yield text[at:].strip()


def proofs(page: str) -> dict[str, list[str]]:
    """Sentence -> the tests that hold it, or why nothing can be tested."""
    found: dict[str, list[str]] = {}
    sentence = ""
    for line in page.splitlines():
        if line.startswith("- "):
            sentence = line.removeprefix("- ")
            found[sentence] = []
        elif line.startswith("  - "):
            found[sentence].append(line.removeprefix("  - ").strip("`"))
    return found


def missing(name: str) -> bool:
    """Whether this is neither a test that exists, nor a reason."""
    if NOT_TESTED.fullmatch(name):
        return False
    path, _, function = name.partition("::")
    file = ROOT / path
    tree = tree_of(file) if file.is_file() else ast.parse("")
    names = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return not function.startswith("test_") or function not in names


def test_every_sentence_has_a_test() -> None:
    said = list(sentences(text_of(ROOT / "docs" / "trust.md")))
    held = proofs(text_of(ROOT / "docs" / "trust-proofs.md"))
    assert len(said) > 50 and set(said) == held.keys()
    assert not [sentence for sentence, names in held.items() if not names]
    assert not [name for names in held.values() for name in names if missing(name)]


def test_sentences_and_proofs_are_read() -> None:
    page = "# Heading\n\n- **Bold.** More\n  of 0.5.\n\nNo end"
    assert list(sentences(page)) == ["**Bold.**", "More of 0.5.", "No end"]
    assert proofs("# H\n\n- A.\n  - `x`\n  - `y`\n- B.\n") == {"A.": ["x", "y"], "B.": []}


@pytest.mark.parametrize(
    "name", ["tests/style/test_trust.py::test_nobody", "tests/no.py::test_x", "not tested: no"]
)
def test_a_test_that_does_not_exist_is_reported(name: str) -> None:
    assert missing(name)
    assert not missing("tests/style/test_trust.py::test_every_sentence_has_a_test")
