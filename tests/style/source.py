"""Reads the repository for the style checks: its files, syntax trees, comments and docstrings."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE_FOLDERS = ("sdk", "node", "coordinator", "contracts")
FIXED_FOLDERS = (*PACKAGE_FOLDERS, "tests", "docker", "docs")
RULES_TO_COME = "Rules to come"
SCANNED_FOLDERS = (*FIXED_FOLDERS, "examples")


def files_under(folders: tuple[str, ...], *suffixes: str, root: Path = ROOT) -> list[Path]:
    """All visible files below the folders, sorted; only those with one of the suffixes, if any."""
    found = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    visible = (
        path
        for path in found
        if not any(
            part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts
        )
    )
    return sorted(path for path in visible if not suffixes or path.suffix in suffixes)


def relative(path: Path, root: Path = ROOT) -> str:
    """The path as a problem prints it: from the root, with slashes."""
    return path.relative_to(root).as_posix()


@functools.cache
def text_of(path: Path) -> str:
    """The file's text; bytes that are no UTF-8 are replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


@functools.cache
def protocol() -> str:
    """The rules of the protocol as one page: docs/protocol.md, its sections in their order, and the
    rules to come of docs/roadmap.md. A section's heading is of level 2.
    """
    sections = sorted(
        (ROOT / "docs" / "protocol").glob("*.md"), key=lambda it: int(it.stem.split("-")[0])
    )
    texts = [re.sub(r"(?m)^(#+) ", r"#\1 ", text_of(path)) for path in sections]
    _, heading, later = text_of(ROOT / "docs" / "roadmap.md").partition(f"## {RULES_TO_COME}")
    return "\n".join([text_of(ROOT / "docs" / "protocol.md"), *texts, heading + later])


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(text_of(path), filename=path.name)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every comment of a Python source."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def vyper_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, line, lines) of every function of a contract.

    A function ends before the next line that starts in the first column, closing brackets of its
    own head aside.
    """
    lines = text_of(path).splitlines()
    for start, line in enumerate(lines):
        if not line.startswith("def "):
            continue
        end = start + 1
        while end < len(lines) and (not lines[end] or lines[end][0] in " \t)"):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        yield line.removeprefix("def ").partition("(")[0], start + 1, end - start


def fail_with(problems: list[str]) -> None:
    """Fails the test with one problem a line; passes without any."""
    if problems:
        pytest.fail("\n" + "\n".join(problems), pytrace=False)
