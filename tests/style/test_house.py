"""Checks the house's shape. Each figure may only shrink: a smaller one is written here."""

from pathlib import Path

from style.graph import circles, import_graph
from style.house import PARAMETERS_MAX, measured, positional_calls
from style.house import parameters as long_functions
from style.source import PACKAGE_FOLDERS, fail_with, files_under

# Figure -> its greatest value. Lower it when the code gets better; never raise it,
# but option_places with each new setting.
MOST = {
    "two_way_pairs": 0,
    "circles": 0,
    "small_single_use": 8,
    "positional_calls": 4,
    "parameters_over_8": 11,
    "option_places": 597,
}


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circles(import_graph(files_under(PACKAGE_FOLDERS, ".py")))
    fail_with([f"imports form a circle: {', '.join(sorted(group))}" for group in found])


def test_the_house_only_gets_better() -> None:
    found = measured()
    fail_with(
        [
            line
            for name, most in MOST.items()
            for line in _problems(name, most, found[name].count, found[name].places)
        ]
    )


def _problems(name: str, most: int, count: int, places: list[str]) -> list[str]:
    if count < most:
        return [f"{name}: {count} today; write that here instead of {most}"]
    if count > most:
        return [f"{name}: {count}, at most {most}:", *(f"    {place}" for place in places)]
    return []


def test_the_figures_can_get_worse(tmp_path: Path) -> None:
    text = "def f(a, b, c, d, e, f, g, h, i): pass\nThing(1, 2, 3, 4, 5, 6, 7)\nthing(*range(9))\n"
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert long_functions([path], tmp_path).count == 1 and PARAMETERS_MAX == 8
    assert positional_calls([path], tmp_path).count == 1
    assert _problems("circles", 1, 2, ["a b"]) == ["circles: 2, at most 1:", "    a b"]
    assert _problems("circles", 1, 0, []) and not _problems("circles", 1, 1, [])


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
