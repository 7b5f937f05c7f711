"""How long a container ran, whatever the machine's clock did meanwhile."""

import os
import subprocess
import sys

import pytest

from quorate_node.executors.elapsed import Seen, look, since_boot

HOUR = 3600.0


@pytest.mark.rule("4.14")
@pytest.mark.parametrize(
    ("told", "ran"),
    [
        (20.0, 20.0),  # no jump: the engine knows best, for the exit may have been seen late
        (29.5, 29.5),
        (20.0 + HOUR, 30.0),  # the clock jumped forward while it ran
        (20.0 - HOUR, 30.0),  # and back
        (-15.5, 30.0),  # back by little more than it had run: it was seen alive at an age of 15 s
    ],
)
def test_a_jump_of_the_clock_is_no_run_time(told: float, ran: float) -> None:
    assert Seen(began=100.0, looked=115.0).ran(told, now=130.0) == ran


def test_the_kernel_knows_the_age_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        seen = look(child.pid)
        assert seen is not None and 0 <= seen.looked - seen.began < 60
        child.communicate(b"\n")
    assert look(child.pid) is None
    own = look(os.getpid())
    assert own is not None and own.began < seen.began + 1 and own.looked <= since_boot()
