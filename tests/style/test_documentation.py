"""Checks that what clients call and each external contract function have a docstring."""

import inspect
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import quorate
from style.source import (
    PACKAGE_FOLDERS,
    ROOT,
    fail_with,
    files_under,
    relative,
    text_of,
    vyper_functions,
)


def undocumented(names: Iterable[str]) -> Iterator[str]:
    """What a client can import from `quorate` and that has no docstring, its methods included."""
    for name in names:
        thing = getattr(quorate, name)
        methods = (
            [item for item in vars(thing).items() if inspect.isfunction(item[1])]
            if isinstance(thing, type)
            else []
        )
        for each, value in ((name, thing), *methods):
            if callable(value) and not each.startswith("_") and not inspect.getdoc(value):
                yield f"{name}: {each} has no docstring"


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
    problems = list(undocumented(quorate.__all__))
    problems += [
        text for path in files_under(PACKAGE_FOLDERS, ".vy") for text in undocumented_vyper(path)
    ]
    fail_with(problems)


def test_the_checks_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent.vy").write_text(
        '"""x"""\n@external\n@view\ndef f() -> uint256:\n    return 1\n'
    )
    (problem,) = undocumented_vyper(tmp_path / "silent.vy", tmp_path)
    assert problem.startswith("silent.vy:")
    monkeypatch.setattr(quorate, "silent", lambda: None, raising=False)
    assert list(undocumented(["silent"])) == ["silent: silent has no docstring"]
