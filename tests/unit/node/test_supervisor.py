"""Tests the supervisor: what it imports, how it reads bubblewrap's report, how it bounds
outputs.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quorate_node
from quorate_node.executors.sandbox.supervised_program import (
    DEPTH_MAX,
    PIDS_MAX,
    SupervisedProgram,
    exceeds,
    status_number,
)

GOOD = b'{ "child-pid": 6796, "mnt-namespace": 4026532179 }\n{ "exit-code": 0 }\n'


def test_numbers_are_read_from_whole_lines_only() -> None:
    assert status_number(GOOD, "child-pid") == 6796 and status_number(GOOD, "exit-code") == 0
    assert status_number(GOOD[:30], "child-pid") is None, "the line has not ended"
    assert status_number(GOOD, "mnt-namespace") is None, "no process has such a number"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"\xff",
        b"[]",
        b"7",
        b"[" * 60_000,
        b'{"child-pid": "1"}',
        b'{"child-pid": -1}',
        b'{"child-pid": true}',
        b'{"child-pid": 1.5}',
        b'{"child-pid": %d}' % (PIDS_MAX + 1),
        b'{"child-pid": 1' + b"0" * 5_000 + b"}",
    ],
)
def test_a_malformed_status_line_is_skipped(line: bytes) -> None:
    assert status_number(line + b"\n", "child-pid") is None
    assert status_number(line + b"\n" + GOOD, "child-pid") == 6796


def test_a_sandbox_that_ended_before_its_release_does_not_end_the_supervisor() -> None:
    """Bubblewrap may be killed at the time limit while it makes the sandbox.

    The supervisor must survive that, because it still has to record the exit.
    """
    program = SupervisedProgram.__new__(SupervisedProgram)
    gate_end, program.block_pipe = os.pipe()
    os.close(gate_end)
    program.sandbox = {"processes_counted": -1}
    with subprocess.Popen(["sleep", "60"]) as child:
        program.release_sandbox(child.pid)
        child.kill()
    with pytest.raises(OSError):
        os.fstat(program.block_pipe)


def test_outputs_are_bounded_by_bytes_entries_and_depth(tmp_path: Path) -> None:
    """The bytes of nameless files are subtracted from the bound, which may become negative."""
    assert not exceeds(str(tmp_path), 0, 0)
    assert exceeds(str(tmp_path), -1, 10)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(8192))
    (tmp_path / "a" / "out").symlink_to("/")
    assert not exceeds(str(tmp_path), 8192, 4)
    assert exceeds(str(tmp_path), 8191, 4)
    assert exceeds(str(tmp_path), 8192, 3)
    deep = tmp_path.joinpath(*["d"] * DEPTH_MAX)
    deep.mkdir(parents=True)
    assert not exceeds(str(tmp_path), 8192, 1000)
    (deep / "d").mkdir()
    assert exceeds(str(tmp_path), 8192, 1000)


def test_the_supervisor_needs_only_the_standard_library() -> None:
    """It starts isolated and must start fast, so it may not import the daemon's modules."""
    code = (
        "import sys; sys.path.append(sys.argv[1]);"
        "import quorate_node.executors.sandbox.lease_run;"
        "known = sys.stdlib_module_names;"
        "print(*{name for name in sys.modules if name.split('.')[0] not in known})"
    )
    assert quorate_node.__file__ is not None
    folder = str(Path(quorate_node.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", code, folder]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    others = {name for name in loaded if not name.startswith("quorate_node")}
    assert others <= {"__main__"} and "quorate_node.executors.sandbox.lease_run" in loaded
