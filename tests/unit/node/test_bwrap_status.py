"""What the supervisor believes of bubblewrap's report: whoever it names there as its child is
killed in the end.
"""

import os
import subprocess
from pathlib import Path

import pytest

from quorate_node.executors.supervisor.supervisor import (
    DEPTH_MAX,
    PIDS_MAX,
    Supervised,
    exceeds,
    told,
)

GOOD = b'{ "child-pid": 6796, "mnt-namespace": 4026532179 }\n{ "exit-code": 0 }\n'


def test_numbers_of_whole_lines() -> None:
    assert told(GOOD, "child-pid") == 6796 and told(GOOD, "exit-code") == 0
    assert told(GOOD[:30], "child-pid") is None, "the line has not ended"
    assert told(GOOD, "mnt-namespace") is None, "no process has such a number"


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
def test_what_is_no_word_of_it_is_passed_over(line: bytes) -> None:
    assert told(line + b"\n", "child-pid") is None
    assert told(line + b"\n" + GOOD, "child-pid") == 6796


def test_a_sandbox_that_ended_before_it_was_let_in_ends_no_supervisor() -> None:
    """Its time was over while it was made, as on a machine that does too much: that is a result,
    and needs somebody to record it.
    """
    program = Supervised.__new__(Supervised)
    gate_end, program.gate = os.pipe()
    os.close(gate_end)
    program.sandbox = {"processes_counted": -1}
    with subprocess.Popen(["sleep", "60"]) as child:
        program.let_in(child.pid)
        child.kill()
    with pytest.raises(OSError):
        os.fstat(program.gate)


def test_what_a_tree_of_outputs_exceeds(tmp_path: Path) -> None:
    """Bytes on disk, entries, depth; bytes that have no name any more are taken off the bound,
    which may leave less than nothing.
    """
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
