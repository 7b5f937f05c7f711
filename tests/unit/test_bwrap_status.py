"""What the supervisor believes of bubblewrap's report: whoever it names there as its child is killed in the end."""

import pytest

from quorate_node.adapters.supervisor import PIDS_MAX, told

GOOD = b'{ "child-pid": 6796, "mnt-namespace": 4026532179 }\n{ "exit-code": 0 }\n'


def test_numbers_of_whole_lines() -> None:
    assert told(GOOD, "child-pid") == 6796 and told(GOOD, "exit-code") == 0
    assert told(GOOD[:30], "child-pid") is None, "the line has not ended"
    assert told(GOOD, "mnt-namespace") is None, "no process has such a number"


@pytest.mark.parametrize("line", [b"", b"x", b"\xff", b"[]", b"7", b"[" * 60_000, b'{"child-pid": "1"}', b'{"child-pid": -1}',
                                  b'{"child-pid": true}', b'{"child-pid": 1.5}', b'{"child-pid": %d}' % (PIDS_MAX + 1),
                                  b'{"child-pid": 1' + b"0" * 5_000 + b"}"])  # fmt: skip
def test_what_is_no_word_of_it_is_passed_over(line: bytes) -> None:
    assert told(line + b"\n", "child-pid") is None
    assert told(line + b"\n" + GOOD, "child-pid") == 6796
