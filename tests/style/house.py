"""Measures the house: rooms, the arrows between them, and facts that are written many times.

    python tests/style/house.py --json   one JSON line
    python tests/style/house.py          that line, and below it where each figure comes from

A room is a folder of product modules. What is generated is not counted.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from style.graph import circles, import_graph, module_names
from style.source import PACKAGE_FOLDERS, ROOT, files_under, relative, text_of, tree_of

POSITIONAL_MAX = 6  # arguments of a constructor's call that stand without a name
PARAMETERS_MAX = 8
SMALL_LINES = 80
GENERATED = "generated"
SETTINGS = ("node/quorate_node/base/config.py", "coordinator/quorate_coordinator/base/config.py")


class Measure(NamedTuple):
    """What is counted, and the places that make it up."""

    count: int
    places: list[str]


def product() -> list[Path]:
    """The modules of the product."""
    return [path for path in files_under(PACKAGE_FOLDERS, ".py") if GENERATED not in path.parts]


def lines(paths: Iterable[Path]) -> int:
    """Lines of all files together."""
    return sum(len(text_of(path).splitlines()) for path in paths)


def rooms(graph: dict[str, set[str]], known: dict[str, Path]) -> dict[str, set[str]]:
    """Folder -> the folders that its modules import."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        room = relative(known[name].parent)
        here = found.setdefault(room, set())
        here |= {relative(known[other].parent) for other in others} - {room}
    return found


def two_way_pairs(arrows: dict[str, set[str]]) -> Measure:
    """Pairs of folders that import each other."""
    pairs = sorted(
        f"{one} {other}"
        for one, others in arrows.items()
        for other in others
        if one < other and one in arrows.get(other, ())
    )
    return Measure(len(pairs), pairs)


def folder_circles(arrows: dict[str, set[str]]) -> Measure:
    """Groups of three or more folders in which each one reaches every other one."""
    found = [" ".join(sorted(group)) for group in circles(arrows) if len(group) > 2]
    return Measure(len(found), sorted(found))


def small_single_use(graph: dict[str, set[str]], known: dict[str, Path]) -> Measure:
    """Modules of under 80 lines that one other module of the product imports."""
    users = Counter(other for others in graph.values() for other in others)
    found = [
        f"{relative(path)} {lines([path])}"
        for name, path in known.items()
        if users[name] == 1
        and path.stem not in ("__init__", "__main__")
        and lines([path]) < SMALL_LINES
    ]
    return Measure(len(found), sorted(found))


def positional_calls(paths: Iterable[Path], root: Path = ROOT) -> Measure:
    """Constructors that are called with seven or more arguments without names."""
    found = [
        f"{relative(path, root)}:{node.lineno} {len(node.args)}"
        for path in paths
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and len(node.args) > POSITIONAL_MAX
        and re.match(r"_?[A-Z]", ast.unparse(node.func).rpartition(".")[2])
    ]
    return Measure(len(found), found)


def parameters(paths: Iterable[Path], root: Path = ROOT) -> Measure:
    """Functions that take more than eight parameters, beside `self` and `cls`."""
    found = []
    for path in paths:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(item.arg not in ("self", "cls") for item in taken)
            if count > PARAMETERS_MAX:
                found.append(f"{relative(path, root)}:{node.lineno} {node.name} {count}")
    return Measure(len(found), found)


def option_places(paths: list[Path]) -> Measure:
    """Files of its own program that name an option, summed over all options of the daemons."""
    found: Counter[str] = Counter()
    for settings in SETTINGS:
        program = settings.partition("/")[0]
        words = Counter(
            word
            for path in paths
            if relative(path).startswith(f"{program}/")
            for word in set(re.findall(r"\w+", text_of(path)))
        )
        for name in options(ROOT / settings):
            found[f"{program} {name}"] = words[name]
    return Measure(sum(found.values()), [f"{name} {count}" for name, count in found.most_common()])


def options(path: Path) -> Iterator[str]:
    """The fields of a program's struct of settings."""
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef) and node.name == "Settings":
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id


def measured() -> dict[str, Measure]:
    """All figures."""
    paths, tests = product(), files_under(("tests",), ".py")
    known, graph = module_names(paths), import_graph(paths)
    arrows = rooms(graph, known)
    folders = sorted({relative(path.parent) for path in paths})
    contracts = files_under(PACKAGE_FOLDERS, ".vy")
    return {
        "product_lines": Measure(lines(paths), []),
        "contract_lines": Measure(lines(contracts), []),
        "test_lines": Measure(lines(tests), []),
        "modules": Measure(len(paths), []),
        "folders": Measure(len(folders), folders),
        "two_way_pairs": two_way_pairs(arrows),
        "circles": folder_circles(arrows),
        "small_single_use": small_single_use(graph, known),
        "positional_calls": positional_calls(paths),
        "parameters_over_8": parameters(paths),
        "option_places": option_places(paths),
    }


def main() -> None:
    """The command."""
    found = measured()
    if "--json" not in sys.argv:
        for name, measure in found.items():
            for place in measure.places:
                print(f"{name}: {place}", file=sys.stderr)
    print(json.dumps({name: measure.count for name, measure in found.items()}))


if __name__ == "__main__":
    main()
