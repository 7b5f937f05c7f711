"""How the code must read, as far as a machine can tell: sizes, docstrings, layout, purity of the
rules, and words.

Every failure prints `path:line: what is wrong`. Exceptions are a list that may only shrink: an
entry that is larger than the code, or no longer needed, fails too.
"""

import ast
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sdk", "node", "coordinator", "contracts")
FOLDERS = (*PACKAGES, "tests", "docker", "docs")
SCANNED = (*FOLDERS, "examples")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

# path, or path::function -> its lines today. Lower the number when the code gets shorter; never add
# an entry.
EXCEPTIONS: dict[str, int] = {
    "coordinator/quorate_coordinator/cli.py::init": 95,
    "coordinator/quorate_coordinator/cli.py::up": 127,
    "coordinator/quorate_coordinator/core/matching/columns.py": 543,
    "coordinator/quorate_coordinator/service.py": 642,
    "coordinator/quorate_coordinator/service.py::_run": 78,
    "node/quorate_node/core/provider_core.py": 513,
    "node/quorate_node/daemon.py": 509,
    "node/quorate_node/daemon.py::make": 97,
    "node/quorate_node/executors/docker/docker_executor.py": 550,
    "node/quorate_node/executors/supervisor/supervisor.py": 621,
    "sdk/quorate_content/image_archive.py": 565,
    "sdk/quorate_content/store/content_store.py": 543,
    "sdk/quorate_protocol/messages/receipt.py": 614,
    "tests/bench/market_jobs.py": 505,
    "tests/contracts/test_epochs.py": 556,
    "tests/fuzz/test_core_fuzz.py": 537,
    "tests/integration/client/test_sdk_market.py": 575,
    "tests/integration/coordinator/test_batch_claims.py::test_everybody_is_paid_once": 104,
    "tests/integration/executors/test_image_fetches.py": 522,
    "tests/integration/runtime/test_peers.py": 513,
    "tests/sim/checks.py": 680,
    "tests/sim/provider.py": 664,
    "tests/unit/coordinator/flow/test_matching.py::waiting": 71,
}

# Where the project was written is nobody's business: machine paths, hosts of package registries,
# authorship by machine.
FORBIDDEN_WORDS = re.compile(
    r"/work/|/opt/wheels|/root/\.(pyenv|cache)|\bpypi\.org|pythonhosted\.org|\bnpmjs\.(org|com)|\bcrates\.io|proxy\.golang\.org"
    r"|\bworkplace\b|\banthropic\b|\bclaude\b|\bchatgpt\b|\bAI assistant\b",
    re.IGNORECASE,
)
TEXT_BYTES_MAX = 1 << 20
TEXT_SUFFIXES_SKIPPED = {".png", ".tar", ".gz", ".car", ".whl", ".pyc"}

# Standard library aside, the rules import keccak, and only where it is wrapped.
KECCAK = {("sdk/quorate_protocol/crypto/hashing.py", "Crypto")}


def _files(folders: tuple[str, ...], *suffixes: str) -> list[Path]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    visible = (
        path
        for path in found
        if not any(
            part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts
        )
    )
    return sorted(path for path in visible if not suffixes or path.suffix in suffixes)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=_name(path))


def _report(problems: list[str]) -> None:
    if problems:
        pytest.fail("\n" + "\n".join(problems), pytrace=False)


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
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{_name(path)}::{node.name}", node.lineno, node.end_lineno - node.lineno + 1


def _vyper_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """A function ends before the next line that starts in the first column, closing brackets of
    its own head aside.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    for start, line in enumerate(lines):
        if not line.startswith("def "):
            continue
        end = start + 1
        while end < len(lines) and (not lines[end] or lines[end][0] in " \t)"):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        name = line.removeprefix("def ").partition("(")[0]
        yield f"{_name(path)}::{name}", start + 1, end - start


def _functions() -> Iterator[tuple[str, int, int]]:
    for path in _files(SCANNED, ".py"):
        yield from _python_functions(path)
    for path in _files(SCANNED, ".vy"):
        yield from _vyper_functions(path)


def _file_sizes() -> Iterator[tuple[str, int, int]]:
    for path in _files(SCANNED, ".py", ".vy"):
        yield _name(path), 1, len(path.read_text(encoding="utf-8").splitlines())


def test_functions_are_short() -> None:
    _report(_over(_functions(), FUNCTION_LINES_MAX))


def test_files_are_short() -> None:
    _report(_over(_file_sizes(), FILE_LINES_MAX))


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
    _report(
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
    _report(
        [
            f"{folder}/__init__.py:1: a fixed folder is no package"
            for folder in FOLDERS
            if (ROOT / folder / "__init__.py").exists()
        ]
    )


def _undocumented(path: Path) -> Iterator[str]:
    tree = _tree(path)
    if ast.get_docstring(tree) is None:
        yield f"{_name(path)}:1: the module has no docstring"
    if path.is_relative_to(ROOT / "tests"):  # a test's name is its sentence
        return
    for node in tree.body:
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) or node.name.startswith("_"):
            continue
        overload = any(
            isinstance(name, ast.Name) and name.id == "overload" for name in node.decorator_list
        )
        if ast.get_docstring(node) is None and not overload:
            yield f"{_name(path)}:{node.lineno}: {node.name} has no docstring"


def _undocumented_vyper(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    first = next(
        (line for line in text.splitlines() if line.strip() and not line.startswith("#")), ""
    )
    if not first.startswith('"""'):
        yield f"{_name(path)}:1: the contract has no docstring"
    lines = text.splitlines()
    for key, number, _ in _vyper_functions(path):
        decorators = set(
            itertools.takewhile(lambda line: line.startswith("@"), reversed(lines[: number - 1]))
        )
        head_end = next(
            i
            for i in range(number - 1, len(lines))
            if lines[i].partition("#")[0].rstrip().endswith(":")
        )
        if {"@external", "@deploy"} & decorators and not lines[head_end + 1].lstrip().startswith(
            '"""'
        ):
            yield f"{_name(path)}:{number}: {key.partition('::')[2]} has no docstring"


def test_public_names_are_documented() -> None:
    problems = [problem for path in _files(SCANNED, ".py") for problem in _undocumented(path)]
    problems += [
        problem for path in _files(PACKAGES, ".vy") for problem in _undocumented_vyper(path)
    ]
    _report(problems)


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


def _impure(path: Path) -> Iterator[str]:
    for line, module in _imported(_tree(path)):
        root = module.partition(".")[0]
        if (
            root not in sys.stdlib_module_names
            and root != "quorate_protocol"
            and (_name(path), root) not in KECCAK
        ):
            yield f"{_name(path)}:{line}: the protocol imports {module}"


def test_protocol_needs_only_the_standard_library() -> None:
    _report(
        [problem for path in _files(("sdk/quorate_protocol",), ".py") for problem in _impure(path)]
    )


def _texts() -> Iterator[tuple[Path, str]]:
    root_files = [
        path
        for path in ROOT.iterdir()
        if path.is_file() and (not path.name.startswith(".") or path.name == ".gitignore")
    ]
    for path in [*root_files, *(ROOT / ".ci").iterdir(), *_files(SCANNED)]:
        if (
            path == Path(__file__)
            or path.suffix in TEXT_SUFFIXES_SKIPPED
            or path.stat().st_size > TEXT_BYTES_MAX
        ):
            continue
        yield path, path.read_text(encoding="utf-8", errors="replace")


def test_words() -> None:
    problems = []
    for path, text in _texts():
        for number, line in enumerate(text.splitlines(), 1):
            if found := FORBIDDEN_WORDS.search(line):
                problems.append(
                    f"{_name(path)}:{number}: {found[0]!r} does not belong in the project"
                )
    _report(problems)


@pytest.mark.parametrize(
    ("name", "text", "check"),
    [
        (
            "long.vy",
            "@external\ndef f(\n    a: uint256,\n):\n" + "    a += 1\n" * 68,
            lambda path: _over(_vyper_functions(path), 70),
        ),
        (
            "long.py",
            "def f() -> None:\n" + "    pass\n" * 70,
            lambda path: _over(_python_functions(path), 70),
        ),
        ("silent.py", '"""x"""\nclass Thing:\n    pass\n', lambda path: list(_undocumented(path))),
        (
            "silent.vy",
            '"""x"""\n@external\n@view\ndef f() -> uint256:\n    return 1\n',
            lambda path: list(_undocumented_vyper(path)),
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
