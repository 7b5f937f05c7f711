"""Tests which GPUs are kept back: what the driver says, whose processes count, and hot GPUs."""

import os
from pathlib import Path

import msgspec
import pytest

from quorate_node.executors.base.slot_users import job_users
from quorate_node.machine.gpu_manners import GpuManners, GpuUse
from support.gpu.recorded_inventories import FakeLibraryProbe, recorded

FOUR = recorded("four-rtx-4090")
UUIDS = [device.uuid for device in FOUR.devices]
READ = (
    "import msgspec, sys; from quorate_node.machine.gpu_manners import read_use; "
    "sys.stdout.buffer.write(msgspec.json.encode(read_use()))"
)
LIMIT = (
    "from quorate_node.machine.gpu_manners import power_lines; "
    "print(power_lines({uuids}, 300, may_set={may_set}), end='')"
)
GIB = 1 << 30
MINE = os.getuid()


@pytest.mark.cc
def test_the_driver_names_processes_temperature_and_energy(tmp_path: Path) -> None:
    driver = FakeLibraryProbe(FOUR, tmp_path)
    driver.use("0 c 41 7", f"0 g 42 {2 * GIB}", f"1 g 43 {GIB // 4}", "1 t 83 0", "1 e 5000 0")
    found = msgspec.json.decode(driver.ask(READ), type=tuple[GpuUse, ...])
    assert found == (
        GpuUse(UUIDS[0], (41, 42)),
        GpuUse(UUIDS[1], (), 83, 5000),  # a desktop draws with less memory than a game
        GpuUse(UUIDS[2]),
        GpuUse(UUIDS[3]),
    )


@pytest.mark.cc
def test_a_power_limit_is_set_or_the_command_for_root_is_named(tmp_path: Path) -> None:
    driver = FakeLibraryProbe(FOUR, tmp_path)
    driver.use("0 p 450000 0", "1 p 300000 0", "2 p 450000 0", "2 r 1 0")

    def lines(may_set: bool) -> str:
        return driver.ask(LIMIT.format(uuids=set(UUIDS), may_set=may_set)).decode()

    told = lines(may_set=True)
    assert f"`sudo nvidia-smi -i {UUIDS[0]} -pl 300`" in told and "450 W" in told
    assert UUIDS[1] not in told and UUIDS[2] not in told
    assert UUIDS[2] in lines(may_set=False), "a check changes nothing"


def processes(folder: Path, *pids: int) -> Path:
    """A /proc with processes of this test's user."""
    for pid in pids:
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "comm").write_text("a-game\n")
    return folder


def manners(folder: Path, uses: list[GpuUse], users: range = range(0), **more: int) -> GpuManners:
    held = frozenset({"A"})
    return GpuManners(users, lambda: held, read=lambda: tuple(uses), proc=folder, **more)


def test_only_the_owners_processes_keep_a_gpu_back(tmp_path: Path) -> None:
    uses = [GpuUse("A", (7,)), GpuUse("B", (8, os.getpid()))]
    proc = processes(tmp_path, 7, os.getpid())
    assert manners(proc, uses).look() == {"A": "your process 7 (a-game) uses it"}
    assert manners(proc, uses, range(MINE, MINE + 1)).look() == {}, "it runs in a lease"


def test_job_users_are_those_of_the_executor(tmp_path: Path) -> None:
    assert len(job_users(tmp_path)) == 1024 and job_users(tmp_path, 5000)[0] == 5000


def test_a_hot_gpu_takes_jobs_again_once_it_is_cool(tmp_path: Path) -> None:
    uses = [GpuUse("A", celsius=80)]
    found = manners(tmp_path, uses, max_celsius=80)
    kept = []
    for celsius in (80, 81, 76, 75, 80, 81):
        uses[0] = GpuUse("A", celsius=celsius)
        kept.append(bool(found.look()))
    assert kept == [False, True, True, False, False, True]
    uses[0] = GpuUse("A", celsius=200)
    assert manners(tmp_path, uses).look() == {}, "the owner named no limit"


def test_energy_counts_while_a_lease_has_the_gpu(tmp_path: Path) -> None:
    uses = [GpuUse("A", millijoules=1000), GpuUse("B", millijoules=1000)]
    found = manners(tmp_path, uses)
    found.look()
    uses[:] = [GpuUse("A", millijoules=4000), GpuUse("B", millijoules=9000)]
    found.look()
    uses[:] = [GpuUse("A", millijoules=10)]  # the driver was loaded again
    found.look()
    assert found.millijoules == 3000
