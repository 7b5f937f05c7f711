"""Checks the repository's shape: a base name is used once per package, and no imports form a
circle.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from style.source import PACKAGE_FOLDERS, ROOT, fail_with, files_under, tree_of

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


def module_names(paths: list[Path], root: Path = ROOT) -> dict[str, Path]:
    """Dotted module name -> its file."""
    named = {}
    for path in paths:
        parts = path.relative_to(root).with_suffix("").parts[1:]
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def is_for_types_only(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: all but what stands under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and is_for_types_only(node):
            for other in node.orelse:
                yield other
                yield from statements(other)
        else:
            yield node
            yield from statements(node)


def imports_of(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a module imports, also inside its functions."""
    found = set()
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in statements(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= inner & known.keys()
            if not inner <= known.keys():
                found.add(base)
    return (found & known.keys()) - {name}


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Groups of modules in which each one reaches every other one (Tarjan's components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(frozenset(group))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def import_graph(paths: list[Path], root: Path = ROOT) -> dict[str, set[str]]:
    """Module -> the modules of this repository that it imports."""
    known = module_names(paths, root)
    return {name: imports_of(name, path, known) for name, path in known.items()}


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
