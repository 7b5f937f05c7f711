"""Tests the self-test of GPUs on recorded inventories, with an executor that runs nothing."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorate_attestation.provers.numpy_engine import NumpyEngine
from quorate_node.cli import selftest as command
from quorate_node.cli.app import app
from quorate_node.cli.selftest import report_lines
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.status.gpu_selftest import Bench, Report, check_image, selftest
from quorate_protocol.messages.determinism import PROFILES
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.ports import Clock, Executor, GpuProbe, LogPiece, Task
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.values import replace
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_USAGE
from support.gpu.record_inventory import record
from support.gpu.recorded_inventories import (
    NAMES,
    UNKNOWN_ERROR,
    FakeLibraryProbe,
    RecordedProbe,
    recorded,
)
from support.virtual_clock import VirtualClock

FOUR = recorded("four-rtx-4090")
STEPS = ["inventory", "driver", "container", "kernels", "reference"]


class _Container(NoopExecutor):
    """Lists the GPUs of its task, as nvidia-smi would, and remembers its tasks."""

    def __init__(self, folder: Path, clock: Clock, more: Sequence[str] = ()) -> None:
        super().__init__(folder, clock)
        self.more, self.tasks = more, list[Task]()

    async def start(self, task: Task) -> None:
        self.tasks.append(task)
        await super().start(task)

    async def logs(self, lease_id: str, follow: bool, at: int = 0) -> AsyncIterator[LogPiece]:
        for uuid in (*self.tasks[-1].gpus, *self.more):
            yield LogPiece(at, f"GPU 0: a model (UUID: {uuid})\n".encode())


class _Moody(_Container):
    """Gives other bits each time."""

    async def collect(self, lease_id: str, destination: Path) -> None:
        await super().collect(lease_id, destination)
        (destination / "result.txt").write_text(lease_id)


class _WrongEngine(NumpyEngine):
    """A GPU with one wrong bit."""

    def run_chains(self, start_seed: int) -> bytes:
        right = super().run_chains(start_seed)
        return bytes([right[0] ^ 1]) + right[1:]


def bench(folder: Path, probe: GpuProbe, runner: _Container | None = None) -> Bench:
    clock = VirtualClock()
    runner = runner or _Container(folder / "noop", clock)
    (folder / "image.tar").touch()

    @asynccontextmanager
    async def sandboxes() -> AsyncIterator[list[Executor]]:
        yield [runner]

    async def image() -> Path:
        return folder / "image.tar"

    return Bench(probe, sandboxes, clock, image, folder, lambda uuid: NumpyEngine())


def failed(report: Report) -> dict[str, str]:
    assert [step.name for step in report.steps] == STEPS
    assert all(bool(step.remedy) != step.ok for step in report.steps)
    return {step.name: step.detail for step in report.steps if not step.ok}


@pytest.mark.parametrize("name", NAMES)
async def test_every_recorded_machine_passes_and_gives_a_fixture(name: str, tmp_path: Path) -> None:
    inventory = recorded(name)
    runner = _Container(tmp_path / "noop", VirtualClock())
    report = await selftest(bench(tmp_path, RecordedProbe(inventory), runner))
    assert failed(report) == {} and report.inventory == inventory
    assert all(len(task.gpus) == 1 and task.hook is not None for task in runner.tasks)
    tree = json.loads(json.dumps(report.to_json()))
    assert tree["ok"] and tree["profile"]["digest"] == f"0x{PROFILES['torch'].digest().hex()}"
    (tmp_path / "report.json").write_text(json.dumps(tree))
    made = record(tmp_path / "report.json", "sent-one", tmp_path)
    again = json.loads(made.read_text())
    assert [item["model"] for item in again["devices"]] == [
        device.model for device in inventory.devices
    ]
    assert not {device.uuid for device in inventory.devices} & {
        item["uuid"] for item in again["devices"]
    }, "nobody's hardware is named"
    assert (
        "GPU-" in made.read_text()
        and made.read_text() == record(tmp_path / "report.json", "sent-one", tmp_path).read_text()
    )


@pytest.mark.cc
async def test_the_inventory_is_that_of_the_driver_s_library(tmp_path: Path) -> None:
    report = await selftest(bench(tmp_path, FakeLibraryProbe(FOUR, tmp_path)))
    assert failed(report) == {} and len(report.inventory.devices) == 4
    assert report.steps[0].detail.startswith("4 GPUs (NVIDIA GeForce RTX 4090), driver ")


class _Broken:
    def inventory(self) -> GpuInventory:
        raise Unavailable(f"NVIDIA driver: {UNKNOWN_ERROR}; look at `nvidia-smi`", 0)


@pytest.mark.parametrize(
    ("probe", "text"), [(RecordedProbe(GpuInventory()), "there is no GPU"), (_Broken(), "999")]
)
async def test_without_a_gpu_nothing_else_is_tried(
    probe: GpuProbe, text: str, tmp_path: Path
) -> None:
    report = await selftest(bench(tmp_path, probe))
    found = failed(report)
    assert list(found) == STEPS and text in found["inventory"]
    assert {found[name] for name in STEPS[1:]} == {"not tried: there is no GPU"}
    lines = report_lines(report)
    assert sum("fix: install NVIDIA's driver" in line for line in lines) == 1


async def test_an_accelerator_without_slots_is_named_with_what_runs_there(tmp_path: Path) -> None:
    for name, vendor in (("one", "0x1002"), ("two", "0x1002"), ("three", "0x8086")):
        (tmp_path / "pci" / name).mkdir(parents=True)
        (tmp_path / "pci" / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / "pci" / name / "device").write_text("0x74a1\n")
    tried = bench(tmp_path, RecordedProbe(GpuInventory()))
    report = await selftest(replace(tried, pci=tmp_path / "pci"))
    assert failed(report)["inventory"].count("MI300X: nothing runs on it today") == 1
    assert {step.remedy for step in report.steps} == {
        "offer this machine's CPUs: `quorate node init`"
    }
    both = replace(bench(tmp_path, RecordedProbe(FOUR)), pci=tmp_path / "pci")
    assert failed(await selftest(both)) == {}, "NVIDIA's GPUs beside it are tried"


@pytest.mark.parametrize(
    ("version", "cuda", "text"),
    [
        ("470.82.01", "11.4", "jobs need CUDA 12 or newer"),
        ("535.1", "13.0", "which needs branch 580"),
        ("", "", "does not say its version"),
    ],
)
async def test_a_driver_that_does_not_fit_its_cuda_is_named(
    version: str, cuda: str, text: str, tmp_path: Path
) -> None:
    probe = RecordedProbe(replace(FOUR, driver_version=version, cuda_version=cuda))
    assert text in failed(await selftest(bench(tmp_path, probe)))["driver"]


async def test_each_failure_is_named_with_its_step(tmp_path: Path) -> None:
    probe, clock = RecordedProbe(FOUR), VirtualClock()
    second = FOUR.devices[1].uuid
    open_to_all = _Container(tmp_path / "noop", clock, (second,))
    found = failed(await selftest(bench(tmp_path, probe, open_to_all)))
    assert list(found) == ["container"] and f"also lists {second}" in found["container"]
    report = await selftest(bench(tmp_path, probe, _Moody(tmp_path / "noop", clock)))
    found = failed(report)
    assert list(found) == ["reference"] and " gave " in found["reference"]
    assert "take this GPU out of work" in report.steps[-1].remedy
    wrong = replace(bench(tmp_path, probe), engine=lambda uuid: _WrongEngine())
    found = failed(await selftest(wrong))
    assert list(found) == ["kernels"] and "other values than the CPU" in found["kernels"]


def test_the_command_exits_with_3_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NvmlProbe", lambda: RecordedProbe(GpuInventory()))
    result = CliRunner().invoke(app, ["selftest", "--gpu", "--json"])
    assert result.exit_code == EXIT_REFUSED and json.loads(result.stdout)["ok"] is False
    assert "node: selftest: inventory: there is no GPU" in result.stderr
    result = CliRunner().invoke(app, ["selftest"])
    assert result.exit_code == EXIT_USAGE and "--gpu" in result.stderr
    with pytest.raises(Refused, match="no such archive"):
        check_image("./absent.tar")


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("{}", "one", "is no report of"),
        ('{"inventory": {"version": 2}}', "one", "is no report of"),
        ('{"inventory": {}}', "one", "has no GPU"),
        ("{}", "../one", "write lower case words"),
    ],
)
def test_a_file_that_is_no_report_makes_no_fixture(
    text: str, name: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(SystemExit, match=problem):
        record(tmp_path / "report.json", name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
