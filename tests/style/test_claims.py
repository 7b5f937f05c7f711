"""docs/claims.md: every sentence of the protocol has its rows there, their words stand in the
protocol, and what they name exists.

A changed rule changes its words, so its row fails here until somebody has looked at its tests
again.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECTIONS = ("Constants", "§1", "§2", "§3", "§4", "§5", "§6", "§7", "§9")  # §8 is for later
BETWEEN = " … "
SENTENCE_END = re.compile(r"(?<=[.;])(?=\s)|(?<=[.;]\))(?=\s)")
TEST = re.compile(r"(\w+)::(\w+)")
MUTANT = re.compile(r"mutant “([^”]+)”")
NOT_BUILT = re.compile(r"not built: “([^”]+)”")
ONLY_WORDS = re.compile(r"only words: \S.{12,}")


@dataclass(frozen=True)
class Row:
    """One line of a table: the words of a rule, what holds it, and whether its test was seen
    failing (✓).
    """

    section: str
    words: str
    held_by: str
    seen: str


def plain(text: str) -> str:
    """Without Markdown's marks and line breaks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text.replace("\n", " "))
    return " ".join(re.sub(r"\[\^[\w-]+\]|[*`]|^[-#] ", "", text).split())


def sections(page: str) -> dict[str, list[str]]:
    """Paragraphs, list items and table rows of each section of the protocol. What stands before
    the first is `Constants`.
    """
    found: dict[str, list[str]] = {"Constants": []}
    name = "Constants"
    for block in re.split(r"\n\s*\n|\n(?=- |\| )", page):
        if block.startswith("## "):
            head, _, block = block.partition("\n")
            name = "§" + head[3]
            found[name] = []
        if plain(block) and not block.startswith(("# ", "|---", "| message", "Normative:")):
            found[name].append(plain(block).strip("| "))
    return found


def rows(page: str) -> list[Row]:
    """Of all tables of the page."""
    found, name = [], ""
    for line in page.splitlines():
        if line.startswith("## "):
            name = line[3:].split()[0]
        elif line.startswith("| ") and not line.startswith(("| rule", "|---")):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            assert len(cells) == 3, f"three cells: {line[:80]}"
            found.append(
                Row(name, plain(cells[0].replace("\\|", "|")), cells[1].replace("`", ""), cells[2])
            )
    return found


def place(row: Row, blocks: list[str]) -> list[tuple[int, int, int]]:
    """(block, from, to) of each part of the row's words; nothing when they do not stand in one
    block, in this order.
    """
    for number, block in enumerate(blocks):
        found, at = [], 0
        for part in row.words.split(BETWEEN):
            start = block.find(part, at)
            if start < 0:
                break
            at = start + len(part)
            found.append((number, start, at))
        else:
            return found
    return []


def untold(blocks: list[str], told: list[tuple[int, int, int]]) -> Iterator[str]:
    """Sentences in which no row's words stand."""
    for number, block in enumerate(blocks):
        at = 0
        for sentence in SENTENCE_END.split(block):
            start, at = block.index(sentence, at), block.index(sentence, at) + len(sentence)
            if sentence.strip() and not any(
                where == number and a < at and b > start for where, a, b in told
            ):
                yield sentence.strip()


@cache
def known() -> dict[str, frozenset[str]]:
    """File, as its name says without `test_` and `.py` -> its tests, likewise."""
    found: dict[str, frozenset[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = (
            node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        key = path.stem.removeprefix("test_")
        assert key not in found, f"two files are named {key}"
        found[key] = frozenset(
            name.removeprefix("test_") for name in names if name.startswith("test_")
        )
    return found


@cache
def mutants() -> frozenset[str]:
    """Names of the rules that the simulator breaks, as they stand in its tables."""
    texts = (
        path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "sim").glob("mutants_*.py")
    )
    return frozenset(name for text in texts for name in re.findall(r'\bMutant\(\s*"([^"]+)"', text))


def absent(held_by: str, trust: str) -> Iterator[str]:
    """What a row names and there is not."""
    if ONLY_WORDS.fullmatch(held_by):
        return
    names, broken, unbuilt = (
        TEST.findall(held_by),
        MUTANT.findall(held_by),
        NOT_BUILT.findall(held_by),
    )
    if not names and not broken and not unbuilt:
        yield f"nothing: {held_by!r}"
    yield from (f"{file}::{name}" for file, name in names if name not in known().get(file, ()))
    yield from (f"mutant {name}" for name in broken if name not in mutants())
    yield from (f"trust.md does not say: {words}" for words in unbuilt if words not in trust)


PROTOCOL = sections((DOCS / "protocol.md").read_text(encoding="utf-8"))
ROWS = rows((DOCS / "claims.md").read_text(encoding="utf-8"))
TRUST = plain((DOCS / "trust.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_sentence_of_the_protocol_has_a_row(section: str) -> None:
    told = [
        found for row in ROWS if row.section == section for found in place(row, PROTOCOL[section])
    ]
    missing = list(untold(PROTOCOL[section], told))
    assert not missing, f"{len(missing)} sentences: {missing}"


def test_the_words_of_every_row_stand_in_the_protocol() -> None:
    lost = [
        f"{row.section}: {row.words}"
        for row in ROWS
        if not place(row, PROTOCOL.get(row.section, []))
    ]
    assert not lost, (
        "the rule was changed: look whether its tests still hold it, then quote it anew"
    )


def test_what_holds_a_rule_exists() -> None:
    found = {row.words: wrong for row in ROWS if (wrong := list(absent(row.held_by, TRUST)))}
    assert not found


def test_the_page_was_read() -> None:
    assert len(ROWS) > 250 and {row.section for row in ROWS} == set(SECTIONS)
    assert sum(row.seen == "✓" for row in ROWS) >= 40, (
        "rules of money and trust that were broken by hand, and seen to fail"
    )
    assert {row.seen for row in ROWS} == {"✓", ""}


def test_the_checks_can_fail() -> None:
    blocks = sections(
        "Head.\n\n## 1. One\n- **I1** Money is kept. Nobody lies; all pay.\n\n| a (b) | c, d |"
    )["§1"]
    assert blocks == ["I1 Money is kept. Nobody lies; all pay.", "a (b) | c, d"]
    (row,) = rows(
        "## §1 One\n| rule | held by | seen |\n|---|---|---|\n| Money is kept. … all pay | "
        "`faults::x` | ✓ |"
    )
    assert list(untold(blocks, place(row, blocks))) == ["Nobody lies;", "a (b) | c, d"]
    assert not place(Row("§1", "all pay … Money", "", ""), blocks), "in order"
    wrong = (
        "faults::no_such_test",
        "no_such_file::x",
        "mutant “no such mutant”",
        "not built: “no such words”",
        "somehow",
    )
    assert all(list(absent(held_by, "other words")) for held_by in wrong)
    assert not list(absent("only words: a definition of a name", "")) and not list(
        absent("mutant “a credit counts twice”", "")
    )
