"""Checks the repository's shape: a base name is used once per package, and no imports form a
circle.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from style.graph import circles, import_graph
from style.source import PACKAGE_FOLDERS, ROOT, fail_with, files_under

# A role has the same file name in each part that has the role.
SHARED_NAMES = frozenset(
    {
        "__init__",
        "__main__",
        "cli",
        "config",
        "effect_performer",
        "effects",
        "events",
        "frame_handler",
        "registration",
        "settings",
        "state",
        "status",
    }
)

# package/base name -> how many files have it today. Lower or delete; never add an entry.
REPEATED_NAMES: dict[str, int] = {}

# Modules that import each other in a circle today. Delete; never add an entry.
CIRCLES: list[frozenset[str]] = []


def sources() -> list[Path]:
    """All Python files of the packages."""
    return files_under(PACKAGE_FOLDERS, ".py")


def repeated_names(paths: list[Path], allowed: dict[str, int], root: Path = ROOT) -> Iterator[str]:
    """Base names that several files of one package have."""
    counts = Counter(
        f"{path.relative_to(root).parts[1]}/{path.stem}"
        for path in paths
        if path.stem not in SHARED_NAMES
    )
    for name, count in sorted(counts.items()):
        if count > max(1, allowed.get(name, 0)):
            yield f"{name}.py: {count} files have this name: name each by what it does"


def test_a_base_name_is_used_once_per_package() -> None:
    fail_with(list(repeated_names(sources(), REPEATED_NAMES)))


def test_no_imports_form_a_circle() -> None:
    found = [group for group in circles(import_graph(sources())) if group not in CIRCLES]
    fail_with([f"imports form a circle: {', '.join(sorted(group))}" for group in found])


def test_exceptions_are_still_needed() -> None:
    paths, found = sources(), circles(import_graph(sources()))
    problems = [
        f"{name}: lower or delete its exception in REPEATED_NAMES"
        for name, count in REPEATED_NAMES.items()
        if not list(repeated_names(paths, {**REPEATED_NAMES, name: count - 1}))
    ]
    problems += [
        f"{sorted(group)}: delete this exception from CIRCLES"
        for group in CIRCLES
        if group not in found
    ]
    fail_with(problems)


def test_the_checks_can_fail(tmp_path: Path) -> None:
    folder = tmp_path / "sdk" / "thing"
    (problem,) = repeated_names([folder / "a" / "x.py", folder / "b" / "x.py"], {}, tmp_path)
    assert problem.startswith("thing/x.py: 2 files")


def test_a_circle_is_found_also_inside_functions(tmp_path: Path) -> None:
    folder = tmp_path / "sdk" / "thing"
    folder.mkdir(parents=True)
    sources_by_name = {
        "__init__": "",
        "one": "from thing import two\n",
        "two": "def f():\n    from .three import x\n",
        "three": "import thing.one\nx = 1\n",
        "typed": "if TYPE_CHECKING:\n    import thing.user\n",
        "user": "import thing.typed\n",
    }
    for name, text in sources_by_name.items():
        (folder / f"{name}.py").write_text(text)
    graph = import_graph(sorted(folder.glob("*.py")), tmp_path)
    assert circles(graph) == [frozenset({"thing.one", "thing.two", "thing.three"})]
    assert graph["thing.typed"] == set()
