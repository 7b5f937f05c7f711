"""Tests limits and counters of both versions of control groups, on folders with the kernel's
layout.
"""

from pathlib import Path

from quorate_node.executors.base.cgroups import (
    Counters,
    LeaseLimits,
    counts_by_namespace,
    lease_counters,
    limit_sockets,
    make_lease_groups,
    remove_lease_groups,
)

LIMITS = LeaseLimits(memory_bytes=64 << 20, pids=33, cpu_millis=1500)


def test_limits_and_counters_of_version_1(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu", "cpuacct"):
        (tmp_path / name).mkdir()
    swap = tmp_path / "memory/quorate/lease/memory.memsw.limit_in_bytes"
    swap.parent.mkdir(parents=True)
    swap.touch()
    (swap.parent / "memory.kmem.tcp.limit_in_bytes").touch()
    made = make_lease_groups("lease", LIMITS, tmp_path)
    assert made is not None
    assert set(made.folders) == {
        tmp_path / name / "quorate/lease" for name in ("memory", "pids", "cpu", "cpuacct")
    }
    assert made.kills == tmp_path / "memory/quorate/lease/memory.oom_control"
    read = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert read == {
        "memory.limit_in_bytes": "67108864",
        "memory.memsw.limit_in_bytes": "67108864",
        "memory.kmem.tcp.limit_in_bytes": "16777216",
        "pids.max": "33",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
    }
    (tmp_path / "cpuacct/quorate/lease/cpuacct.usage").write_text("2500000000\n")
    (tmp_path / "memory/quorate/lease/memory.max_usage_in_bytes").write_text("1000\n")
    assert lease_counters("lease", tmp_path) == Counters(2500, 1000)


def test_limits_and_counters_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    made = make_lease_groups("lease", LIMITS, tmp_path)
    assert made is not None
    group = tmp_path / "quorate/lease"
    assert made.folders == (group,)
    assert made.kills == group / "memory.events"
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written == {"memory.max": "67108864", "pids.max": "33", "cpu.max": "150000 100000"}
    for parent in (tmp_path, tmp_path / "quorate"):
        assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (group / "memory.peak").write_text("1000\n")
    assert lease_counters("lease", tmp_path) == Counters(2500, 1000)


def test_no_groups_are_made_where_nothing_can_be_written(tmp_path: Path) -> None:
    assert make_lease_groups("lease", LIMITS, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    (tmp_path / "pids/quorate").touch()  # a file in the way has the effect of a read-only hierarchy
    assert make_lease_groups("lease", LIMITS, tmp_path) is None


def test_groups_go_with_those_that_the_engine_made_below(tmp_path: Path) -> None:
    for name in ("memory/quorate/lease/id/below", "pids/quorate/lease", "quorate/lease", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    remove_lease_groups("lease", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.name in ("lease", "id", "below")]


def test_it_is_known_whether_the_kernel_counts_processes_per_namespace() -> None:
    releases = ("6.18.44-fc", "5.14.0-503.el9.x86_64", "5.13.19", "4.18.0", "4.4.0", "strange")
    assert [counts_by_namespace(release) for release in releases] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def test_buffers_of_sockets_get_a_limit_before_the_container_starts(tmp_path: Path) -> None:
    assert limit_sockets("lease", "id", 64 << 20, tmp_path), "version 2 counts them in memory"
    file = tmp_path / "memory/quorate/lease/id/memory.kmem.tcp.limit_in_bytes"
    (tmp_path / "memory").mkdir()
    assert not limit_sockets("lease", "id", 64 << 20, tmp_path), "the kernel has no such limit"
    file.touch()
    assert limit_sockets("lease", "id", 64 << 20, tmp_path)
    assert file.read_text() == str(16 << 20)
