"""Tests that the table of crash points and the points in the source are the same."""

import ast
import os
from pathlib import Path

import pytest

from quorate_runtime.process import crash_points
from quorate_runtime.process.crash_points import CRASH_VARIABLE
from support.crash.points import POINTS, Kind, Program
from support.crash.program_points import named, points_of

ROOT = Path(__file__).parents[3]
PACKAGES = ("sdk", "node", "coordinator", "contracts")


def written() -> dict[str, set[Kind]]:
    """Returns the names of each `crash_point("...")` in the source, and whether a type completes
    each name.
    """
    found: dict[str, set[Kind]] = {}
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "crash_point"
            ):
                assert isinstance(node.args[0], ast.Constant), (
                    f"{path}:{node.lineno}: the name of a crash point is a literal"
                )
                found.setdefault(str(node.args[0].value), set()).add(_kind(node))
    return found


def _kind(node: ast.Call) -> Kind:
    return (
        {"entry.event": Kind.EVENT, "effect": Kind.EFFECT}[ast.unparse(node.args[1])]
        if len(node.args) > 1
        else Kind.NONE
    )


def test_table_and_source_agree() -> None:
    assert written() == {point.name: {point.kind} for point in POINTS}
    assert len({point.name for point in POINTS}) == len(POINTS)


def test_every_program_has_points_and_every_type_of_its_core_has_two() -> None:
    for program in Program:
        points = points_of(program)
        assert len(points) == len(set(points)) and all(points)
        events, effects = named(program)
        assert sum(point.startswith("actor.") for point in points) == 2 * len(events)
        assert sum(point.startswith("effect.") for point in points) == 2 * len(effects)
    assert len(points_of(Program.COORDINATOR)) > 40 and len(points_of(Program.PROVIDER)) > 100


def test_a_running_program_is_armed_by_a_file_and_dies_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(number))
    file = tmp_path / "provider-0"
    crash_points.configure(f"@{file}")
    try:
        crash_points.crash_point("mount.after")
        file.write_text("mount:2")
        crash_points.crash_point("mount.after")
        assert not killed and file.exists()
        crash_points.crash_point("unmount.before")
        crash_points.crash_point("mount.before")
        assert len(killed) == 1 and not file.exists()
        crash_points.crash_point("mount.before")
        assert len(killed) == 1
    finally:
        crash_points.configure("")


def test_a_devnet_arms_each_child_separately(tmp_path: Path) -> None:
    from quorate_devnet.market.config import DevnetConfig

    armed = DevnetConfig(tmp_path, 2, crash_folder=tmp_path / "crash")
    assert armed.arming("provider-1") == {CRASH_VARIABLE: f"@{tmp_path}/crash/provider-1"}
    assert DevnetConfig(tmp_path, 2).arming("provider-1") == {}
