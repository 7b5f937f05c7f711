"""Checks that each module, public class, public function and external contract function has a
docstring.
"""

import ast
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from style.source import (
    PACKAGE_FOLDERS,
    ROOT,
    SCANNED_FOLDERS,
    fail_with,
    files_under,
    relative,
    text_of,
    tree_of,
    vyper_functions,
)


def undocumented(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Public names of a Python file that have no docstring."""
    tree, name = tree_of(path), relative(path, root)
    if ast.get_docstring(tree) is None:
        yield f"{name}:1: the module has no docstring"
    if path.is_relative_to(root / "tests"):  # a test's name says its rule
        return
    for node in tree.body:
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) or node.name.startswith("_"):
            continue
        overload = any(
            isinstance(item, ast.Name) and item.id == "overload" for item in node.decorator_list
        )
        if ast.get_docstring(node) is None and not overload:
            yield f"{name}:{node.lineno}: {node.name} has no docstring"


def undocumented_vyper(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Contracts and external functions that have no docstring."""
    lines, name = text_of(path).splitlines(), relative(path, root)
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    if not first.startswith('"""'):
        yield f"{name}:1: the contract has no docstring"
    for function, number, _ in vyper_functions(path):
        decorators = set(
            itertools.takewhile(lambda line: line.startswith("@"), reversed(lines[: number - 1]))
        )
        head_end = next(
            i
            for i in range(number - 1, len(lines))
            if lines[i].partition("#")[0].rstrip().endswith(":")
        )
        is_documented = lines[head_end + 1].lstrip().startswith('"""')
        if {"@external", "@deploy"} & decorators and not is_documented:
            yield f"{name}:{number}: {function} has no docstring"


def test_public_names_are_documented() -> None:
    problems = [text for path in files_under(SCANNED_FOLDERS, ".py") for text in undocumented(path)]
    problems += [
        text for path in files_under(PACKAGE_FOLDERS, ".vy") for text in undocumented_vyper(path)
    ]
    fail_with(problems)


@pytest.mark.parametrize(
    ("name", "text", "check"),
    [
        ("silent.py", '"""x"""\nclass Thing:\n    pass\n', undocumented),
        (
            "silent.vy",
            '"""x"""\n@external\n@view\ndef f() -> uint256:\n    return 1\n',
            undocumented_vyper,
        ),
    ],
)
def test_the_checks_can_fail(
    name: str, text: str, check: Callable[[Path, Path], Iterator[str]], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    (problem,) = check(tmp_path / name, tmp_path)
    assert problem.startswith(f"{name}:")
