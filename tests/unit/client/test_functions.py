"""A function travels as text, its values as JSON of their declared types."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorate.base.errors import ProgramError, UsageError
from quorate.client.base.profile import create_profile
from quorate.client.base.result import Result
from quorate.client.market import Market
from quorate.programs.function_runner import decode, encode
from quorate.programs.function_source import read_function, shape_of
from quorate.programs.functions import RUNNER, RemoteFunction, read_value
from quorate_protocol.units import ExitStatus, Hash32

SCALE = 3


@dataclasses.dataclass
class Point:
    x: float
    tags: list[str]


def point(x: int, data: bytes = b"\x00z", y: float | None = None) -> Point:
    if x < 0:
        raise ValueError("negative")
    return {"x": math.sqrt(x) * SCALE, "tags": [data.decode(), str(y)]}  # type: ignore[return-value]


@pytest.fixture
def remote(tmp_path: Path) -> RemoteFunction[..., Point]:
    profile = create_profile(tmp_path / "home", "http://127.0.0.1:1", "pass", "devnet")
    return Market(profile).function(image="python:3.12", max_price="1")(point)


def run_here(remote: RemoteFunction[..., Any], folder: Path, *args: Any) -> Any:
    """Runs a call as a provider would, and reads its result as the client does."""
    outputs = folder / "outputs"
    outputs.mkdir()
    texts = {"function.py": remote.source.text, "call.json": remote.call_text(*args)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "runner.py").write_text(RUNNER.read_text())
    done = subprocess.run(
        [sys.executable, "-I", str(folder / "runner.py")],
        env={**os.environ, "QUORATE_OUTPUTS": str(outputs)},
        capture_output=True,
        check=False,
    )
    status: Any = ExitStatus(done.returncode)
    result: Any = object.__new__(Result)
    object.__setattr__(result, "job_id", Hash32(bytes(32)))
    object.__setattr__(result, "exit_status", status)
    object.__setattr__(result, "output", outputs)
    return read_value(result, remote.source)


def test_a_call_runs_elsewhere_and_comes_back_in_its_declared_type(
    remote: RemoteFunction[..., Point], tmp_path: Path
) -> None:
    assert run_here(remote, tmp_path, 1600) == Point(120.0, ["\x00z", "None"])
    assert "import math as math\n" in remote.source.text and "SCALE = 3\n" in remote.source.text


def test_an_error_of_the_function_names_its_type_and_text(
    remote: RemoteFunction[..., Point], tmp_path: Path
) -> None:
    with pytest.raises(ProgramError, match=r"point: it raised ValueError: negative"):
        run_here(remote, tmp_path, -1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((1.5,), "x: expected int, not float"),
        ((True,), "x: expected int, not bool"),
        ((1, "text"), "data: expected bytes, not str"),
        ((1, b"", float("nan")), "y: nan has no JSON"),
        ((), "missing a required argument: 'x'"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_ordered(
    remote: RemoteFunction[..., Point], args: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        remote.call_text(*args)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 2**80),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (tuple[bytes, ...], (b"\xff", b"")),
        (dict[str, list[float]], {"a": [1.0]}),
        (str | None, None),
        (type(None), None),
    ],
)
def test_a_value_of_an_allowed_type_comes_back_equal(hint: Any, value: Any) -> None:
    shape = shape_of(hint, "x")
    assert decode(shape, json.loads(json.dumps(encode(shape, value, "x"))), "x") == value


@pytest.mark.parametrize(
    "hint", [set[int], object, dict[int, str], int | str, Callable[[], int], Point, list]
)
def test_other_types_of_arguments_are_refused_by_name(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"x: .* cannot be sent; allowed are bool, int"):
        shape_of(hint, "x")


@pytest.mark.parametrize("tree", ["1", [1, "a"], {"x": 1}, None, 1.5, True])
def test_a_stranger_s_result_of_another_type_is_refused(tree: Any) -> None:
    with pytest.raises(TypeError):
        decode(["list", "int"], tree, "result")


def test_what_cannot_travel_is_refused_when_it_is_declared() -> None:
    other = Path.cwd

    def untyped(x) -> int:  # type: ignore[no-untyped-def]
        return 1

    def closed(x: int) -> int:
        return len(str(other)) + x

    def no_result(x: int):  # type: ignore[no-untyped-def]
        return x

    def helped(x: int) -> int:
        return run_here(None, None, x)  # type: ignore[arg-type, return-value]

    async def later(x: int) -> int:
        return x

    for function, said in (
        (untyped, "x: declare its type"),
        (closed, "it uses 'other' of the function around it"),
        (no_result, "declare its result type"),
        (helped, "it uses 'run_here' from outside"),
        (later, "write a plain function"),
    ):
        with pytest.raises(TypeError, match=said):
            read_function(function)


def test_a_wrong_option_is_refused_when_the_function_is_declared(tmp_path: Path) -> None:
    profile = create_profile(tmp_path / "home", "http://127.0.0.1:1", "pass", "devnet")
    with pytest.raises(UsageError, match="max_price"):
        Market(profile).function(image="python:3.12", max_price="cheap")(point)
    with pytest.raises(UsageError, match="args: a function has its own"):
        Market(profile).function(image="python:3.12", max_price="1", args=["x"])(point)
