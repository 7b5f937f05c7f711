"""Checks sizes of files and functions, the fixed folders, what the rules import, and names of
machines.

Every failure prints `path:line: what is wrong`. Exceptions are a list that may only shrink: an
entry that is larger than the code, or no longer needed, fails too.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from style.source import (
    FIXED_FOLDERS,
    ROOT,
    SCANNED_FOLDERS,
    fail_with,
    files_under,
    relative,
    tree_of,
    vyper_functions,
)

FUNCTION_LINES_MAX = 80
FILE_LINES_MAX = 700

# path, or path::function -> its lines today. Lower the number when the code gets shorter; never add
# an entry.
EXCEPTIONS: dict[str, int] = {}

# Machine paths, hosts of package registries and authorship by machine do not belong in the files.
FORBIDDEN_WORDS = re.compile(
    r"/work/|/opt/wheels|/root/\.(pyenv|cache)|\bpypi\.org|pythonhosted\.org|\bnpmjs\.(org|com)|\bcrates\.io|proxy\.golang\.org"
    r"|\bworkplace\b|\banthropic\b|\bclaude\b|\bchatgpt\b|\bAI assistant\b",
    re.IGNORECASE,
)
TEXT_BYTES_MAX = 1 << 20
TEXT_SUFFIXES_SKIPPED = {".png", ".tar", ".gz", ".car", ".whl", ".pyc"}

# The rules import the standard library, msgspec, and keccak in the one module that wraps it.
KECCAK = {("sdk/quorate_protocol/codec/hashing.py", "Crypto")}
VALUES = "msgspec"


def _name(path: Path) -> str:
    return relative(path, ROOT)


def _over(places: Iterator[tuple[str, int, int]], limit: int) -> list[str]:
    """Problems among (key, line, lines): larger than the limit, or than the exception recorded
    for it.
    """
    problems = []
    for key, line, lines in places:
        allowed = max(limit, EXCEPTIONS.get(key, 0))
        if lines > allowed:
            problems.append(
                f"{key.partition('::')[0]}:{line}: {key.partition('::')[2] or 'file'} has {lines} "
                f"lines, at most {allowed}"
            )
    return problems


def _python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{_name(path)}::{node.name}", node.lineno, node.end_lineno - node.lineno + 1


def _vyper_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for name, line, lines in vyper_functions(path):
        yield f"{_name(path)}::{name}", line, lines


def _functions() -> Iterator[tuple[str, int, int]]:
    for path in files_under(SCANNED_FOLDERS, ".py"):
        yield from _python_functions(path)
    for path in files_under(SCANNED_FOLDERS, ".vy"):
        yield from _vyper_functions(path)


def _file_sizes() -> Iterator[tuple[str, int, int]]:
    """Lines of each file; a marker that names rules is no code and does not count."""
    for path in files_under(SCANNED_FOLDERS, ".py", ".vy"):
        lines = path.read_text(encoding="utf-8").splitlines()
        yield _name(path), 1, sum(not line.startswith("@pytest.mark.rule(") for line in lines)


def test_functions_are_short() -> None:
    fail_with(_over(_functions(), FUNCTION_LINES_MAX))


def test_files_are_short() -> None:
    fail_with(_over(_file_sizes(), FILE_LINES_MAX))


def test_exceptions_only_shrink() -> None:
    limits: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for places, limit in ((_functions(), FUNCTION_LINES_MAX), (_file_sizes(), FILE_LINES_MAX)):
        for key, _, lines in places:
            sizes[key], limits[key] = max(lines, sizes.get(key, 0)), limit
    stale = [
        key
        for key, lines in EXCEPTIONS.items()
        if sizes.get(key, 0) <= limits.get(key, 0) or sizes[key] < lines
    ]
    fail_with(
        [
            (
                f"{key}: recorded with {EXCEPTIONS[key]} lines, has {sizes.get(key, 0)}: lower or "
                f"remove its exception"
            )
            for key in stale
        ]
    )


def test_fixed_folders_are_no_packages() -> None:
    """`docker/__init__.py` would hide the Docker SDK, `node/__init__.py` would make two names
    for one module.
    """
    fail_with(
        [
            f"{folder}/__init__.py:1: a fixed folder is no package"
            for folder in FIXED_FOLDERS
            if (ROOT / folder / "__init__.py").exists()
        ]
    )


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


def _impure(path: Path) -> Iterator[str]:
    for line, module in _imported(tree_of(path)):
        root = module.partition(".")[0]
        if (
            root not in sys.stdlib_module_names
            and root not in ("quorate_protocol", VALUES)
            and (_name(path), root) not in KECCAK
        ):
            yield f"{_name(path)}:{line}: the protocol imports {module}"


def test_protocol_imports_only_the_standard_library_msgspec_and_keccak() -> None:
    fail_with(
        [
            problem
            for path in files_under(("sdk/quorate_protocol",), ".py")
            for problem in _impure(path)
        ]
    )


def _texts() -> Iterator[tuple[Path, str]]:
    root_files = [
        path
        for path in ROOT.iterdir()
        if path.is_file() and (not path.name.startswith(".") or path.name == ".gitignore")
    ]
    for path in [*root_files, *(ROOT / ".ci").iterdir(), *files_under(SCANNED_FOLDERS)]:
        if (
            path == Path(__file__)
            or path.suffix in TEXT_SUFFIXES_SKIPPED
            or path.stat().st_size > TEXT_BYTES_MAX
        ):
            continue
        yield path, path.read_text(encoding="utf-8", errors="replace")


def test_no_machine_path_host_or_authorship_by_machine_is_named() -> None:
    problems = []
    for path, text in _texts():
        for number, line in enumerate(text.splitlines(), 1):
            found = FORBIDDEN_WORDS.search(line)
            # People must be told which hosts pip asks.
            if found and not (path.name == "rent-network.md" and "py" in found[0]):
                problems.append(
                    f"{_name(path)}:{number}: {found[0]!r} does not belong in the project"
                )
    fail_with(problems)


@pytest.mark.parametrize(
    ("name", "text", "check"),
    [
        (
            "long.vy",
            "@external\ndef f(\n    a: uint256,\n):\n" + "    a += 1\n" * 78,
            lambda path: _over(_vyper_functions(path), 80),
        ),
        (
            "long.py",
            "def f() -> None:\n" + "    pass\n" * 80,
            lambda path: _over(_python_functions(path), 80),
        ),
        ("impure.py", '"""x"""\nimport aiohttp\n', lambda path: list(_impure(path))),
    ],
)
def test_the_checks_can_fail(
    name: str,
    text: str,
    check: Callable[[Path], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    (problem,) = check(tmp_path / name)
    assert problem.startswith(f"{name}:")
