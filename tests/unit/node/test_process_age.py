"""Tests how a container's run time is measured when the machine's UTC clock jumps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorate_node.executors.base.hardened_profile import LABEL_MAX_DURATION
from quorate_node.executors.docker.container_usage import (
    ContainerUsage,
    ObservedProcess,
    observe_process,
    seconds_since_boot,
)

HOUR = 3600.0


@pytest.mark.rule("4.14")
@pytest.mark.parametrize(
    ("reported", "ran"),
    [
        (20.0, 20.0),  # no jump: the engine's report counts, because the exit may be observed late
        (29.5, 29.5),
        (20.0 + HOUR, 30.0),  # the clock jumped forward while it ran
        (20.0 - HOUR, 30.0),  # the clock jumped back
        (-15.5, 30.0),  # it jumped back by little more than 15 s, the age at which it was observed
    ],
)
def test_run_time_does_not_follow_a_clock_jump(reported: float, ran: float) -> None:
    process = ObservedProcess(started_at=100.0, observed_at=115.0)
    assert process.ran_seconds(reported, now=130.0) == ran


@pytest.mark.parametrize(
    ("started", "wall_ms"),
    [
        ("2026-01-01T00:00:00.250Z", 750),
        ("2026-01-01T00:00:01.250Z", 1),  # recorded late, by an engine that was busy
        ("0001-01-01T00:00:00Z", 0),  # it never started
    ],
)
def test_a_program_that_started_has_run(started: str, wall_ms: int, tmp_path: Path) -> None:
    state = {"StartedAt": started, "FinishedAt": "2026-01-01T00:00:01Z", "ExitCode": 0}
    found = {"State": state, "Config": {"Labels": {LABEL_MAX_DURATION: "60"}}}
    ended = ContainerUsage().exit_of("00" * 32, found, tmp_path)
    assert (ended.status, ended.usage.wall_ms) == (0, wall_ms)


def test_the_kernel_knows_the_age_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = observe_process(child.pid)
        assert found is not None and 0 <= found.observed_at - found.started_at < 60
        child.communicate(b"\n")
    assert observe_process(child.pid) is None
    own = observe_process(os.getpid())
    assert own is not None and own.started_at < found.started_at + 1
    assert own.observed_at <= seconds_since_boot()
