"""Tests how a container's run time is measured when the machine's UTC clock jumps."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from quorate_node.executors.base import cgroups
from quorate_node.executors.base.cgroups import Counters
from quorate_node.executors.base.hardened_profile import LABEL_MAX_DURATION
from quorate_node.executors.docker.container_usage import (
    ContainerUsage,
    Inspection,
    ObservedProcess,
    hears_sigterm,
    observe_process,
    seconds_since_boot,
)

HOUR = 3600.0
MEMORY_BYTES = 64 << 20


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
    ended = ContainerUsage().exit_of("00" * 32, inspection(state), tmp_path)
    assert (ended.status, ended.usage.wall_ms) == (0, wall_ms)


@pytest.mark.parametrize(
    ("started", "peak", "status"),
    [
        ("2026-01-01T00:00:00.990Z", MEMORY_BYTES, 513),  # killed before the engine watched
        ("2026-01-01T00:00:00.990Z", MEMORY_BYTES - 1, 265),  # it killed itself
        ("2025-12-31T23:59:50Z", MEMORY_BYTES, 265),  # pages of files reach the limit as well
    ],
)
def test_a_memory_kill_that_the_engine_missed_counts(
    started: str, peak: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"StartedAt": started, "FinishedAt": "2026-01-01T00:00:01Z", "ExitCode": 137}
    monkeypatch.setattr(cgroups, "lease_counters", lambda _: Counters(1, peak))
    assert ContainerUsage().exit_of("00" * 32, inspection(state), tmp_path).status == status


def inspection(state: Mapping[str, object]) -> Inspection:
    """What an engine says of a container with a limit of MEMORY_BYTES."""
    settings = {"Labels": {LABEL_MAX_DURATION: "60"}}
    return {"State": state, "Config": settings, "HostConfig": {"Memory": MEMORY_BYTES}}


def test_the_kernel_knows_the_age_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = observe_process(child.pid)
        assert found is not None and 0 <= found.observed_at - found.started_at < 60
        child.communicate(b"\n")
    assert observe_process(child.pid) is None
    own = observe_process(os.getpid())
    assert own is not None and own.started_at < found.started_at + 1
    assert own.observed_at <= seconds_since_boot()


def test_a_container_hears_sigterm_once_its_init_has_a_program() -> None:
    wait, say = "sys.stdin.readline()", "print(flush=True)"
    code = f"import os, sys; {say}; {wait}; os.fork() and {say}; {wait}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as init:
        assert init.stdin is not None and init.stdout is not None
        for has_program in (False, True):
            assert init.stdout.readline() == b"\n"
            assert hears_sigterm(init.pid) is has_program
            init.stdin.write(b"\n")
            init.stdin.flush()
        init.communicate()
    assert hears_sigterm(init.pid), "it has ended"
