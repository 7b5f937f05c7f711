"""Which module imports which, and what goes in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

from style.source import ROOT, tree_of


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
