"""Checks that prose is plain: no banned words, no metaphors as names, and short first sentences.

What is left of earlier prose is counted in words_left.json and may only shrink. `PYTHONPATH=tests
python -m style.test_plain_words` lowers the counts to what is there today.
"""

import functools
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from style.source import (
    ROOT,
    SCANNED_FOLDERS,
    docstrings,
    fail_with,
    files_under,
    relative,
    text_of,
    tree_of,
)

LEFT = Path(__file__).with_name("words_left.json")
WORDS_MAX = 25
PROSE_SUFFIXES = (".vy", ".md", ".yaml", ".sh", ".service", ".conf", ".Dockerfile")
BANNED = re.compile(
    r"\bwhoever\b|(?<!begin-)\banew\b|\bof before\b|\bfor want of\b|\bwhat nobody\b|\bit is told\b"
    r"|\btells of\b|\blest\b|\bthereby\b|\bbesides\b",
    re.IGNORECASE,
)
BANNED_NAMES = frozenset(
    {
        "archivist",
        "cashier",
        "courtroom",
        "docket",
        "herald",
        "logbook",
        "lookout",
        "paymaster",
        "purse",
        "shelf",
        "whereabouts",
        "workbench",
        "anew",
        "whoever",
    }
)
FIXED_NAMES = re.compile("begin_anew", re.IGNORECASE)  # an option of the command line
NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def banned_words(path: Path) -> Iterator[tuple[int, str]]:
    """(line, problem) of every banned word: code, comments and prose alike."""
    for number, line in enumerate(text_of(path).splitlines(), 1):
        for found in BANNED.finditer(line):
            yield number, f"{found[0]!r} is not plain English: name the actor, say it directly"


def banned_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, problem) of every identifier with a metaphor or a banned word in it."""
    if not any(word in text_of(path).lower() for word in BANNED_NAMES):
        return  # most files, and reading tokens is slow
    for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline):
        if token.type == tokenize.NAME:
            for part in NAME_PARTS.findall(FIXED_NAMES.sub("", token.string)):
                if part.lower() in BANNED_NAMES:
                    yield token.start[0], f"{token.string}: name it by what it does"


def long_first_sentences(path: Path) -> Iterator[tuple[int, str]]:
    """(line, problem) of every docstring whose first sentence is longer than the limit."""
    for line, text in docstrings(tree_of(path)):
        sentence = SENTENCE_END.split(text.partition("\n\n")[0].replace("\n", " "))[0]
        if (words := len(sentence.split())) > WORDS_MAX:
            yield line, f"the docstring's first sentence has {words} words, at most {WORDS_MAX}"


CHECKS = {
    "banned words": banned_words,
    "banned names": banned_names,
    "long first sentences": long_first_sentences,
}


@functools.cache
def problems_of(check: str) -> dict[str, list[str]]:
    """File -> what the check finds in it, as `path:line: problem`."""
    paths = [path for path in files_under(SCANNED_FOLDERS, ".py") if path != Path(__file__)]
    if check == "banned words":
        paths += [*files_under(SCANNED_FOLDERS, *PROSE_SUFFIXES), *ROOT.glob("*.md")]
        # written from rules and names of tests
        paths = [path for path in paths if path != ROOT / "docs" / "claims.md"]
        paths += [ROOT / "Makefile", *(ROOT / ".ci").iterdir()]
    found = {
        relative(path): [f"{relative(path)}:{line}: {text}" for line, text in CHECKS[check](path)]
        for path in paths
    }
    return {name: problems for name, problems in found.items() if problems}


def counted(check: str) -> dict[str, int]:
    """File -> how many problems the check finds in it."""
    return {name: len(problems) for name, problems in sorted(problems_of(check).items())}


def left() -> dict[str, dict[str, int]]:
    """Check -> file -> the problems that it may still have."""
    loaded: dict[str, dict[str, int]] = json.loads(LEFT.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("check", CHECKS)
def test_prose_is_plain(check: str) -> None:
    allowed = left().get(check, {})
    found = problems_of(check)
    fail_with(
        [text for name in found if len(found[name]) > allowed.get(name, 0) for text in found[name]]
    )


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_left_only_shrinks(check: str) -> None:
    found = counted(check)
    stale = [name for name, count in left().get(check, {}).items() if found.get(name, 0) < count]
    fail_with(
        [
            f"{name}: fewer {check} than words_left.json allows; lower it with "
            "`PYTHONPATH=tests python -m style.test_plain_words`"
            for name in stale
        ]
    )


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("banned words", '"""Whoever asks."""\n'),
        ("banned words", "x = 1  # made anew\n"),
        ("banned names", "def open_docket() -> None: ...\n"),
        ("banned names", "class NodePurse: ...\n"),
        ("long first sentences", f'"""{"word " * 26}."""\n'),
    ],
)
def test_the_checks_can_fail(check: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "prose.py"
    path.write_text(text)
    assert len(list(CHECKS[check](path))) == 1


def test_plain_prose_passes(tmp_path: Path) -> None:
    path = tmp_path / "prose.py"
    path.write_text('"""Reads the store. The rest may be longer."""\n\nshelve = 1  # ok\n')
    assert not [found for check in CHECKS.values() for found in check(path)]


def main() -> None:
    """Writes today's counts as what may be left, where they are lower."""
    before = left()
    after = {
        check: {
            name: min(count, before.get(check, {}).get(name, count))
            for name, count in counted(check).items()
        }
        for check in CHECKS
    }
    LEFT.write_text(json.dumps(after, indent=2) + "\n", encoding="utf-8")
    for check, counts in after.items():
        print(f"{check}: {sum(counts.values())}")


if __name__ == "__main__":
    main()
