"""Tests that only GPUs that a container lists are offered, on recorded machines."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quorate_node.base.config import Config
from quorate_node.base.gpu_settings import GpuPrice
from quorate_node.executors.docker.engine_connection import gpu_problem
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.machine.gpu_slots import LaidOut, lay_out
from quorate_node.machine.run_slots import divide
from quorate_node.status.diagnostics import check_gpus
from quorate_node.status.gpu_container import GpuTrial, without_unreachable
from quorate_protocol.messages.classes import Host
from quorate_protocol.messages.offer import Hardware
from quorate_protocol.messages.ports import Executor, LogPiece, Sandbox, Task
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Price
from support.gpu.recorded_inventories import recorded
from support.virtual_clock import VirtualClock

FOUR = recorded("four-rtx-4090")
UUIDS = [device.uuid for device in FOUR.devices]
PRICED = Config(home=Path(), coordinators=(), gpu_prices=(GpuPrice(Price(500_000)),))


class _Container(NoopExecutor):
    """Lists the GPUs of its task, as nvidia-smi would. `hidden` are those that no container gets,
    `more` are listed in each.
    """

    hidden: Sequence[str] = ()
    more: Sequence[str] = ()
    given: tuple[str, ...] = ()

    async def start(self, task: Task) -> None:
        if set(task.gpus) & set(self.hidden):
            raise Refused(Code.UNSUPPORTED, "unresolvable CDI devices nvidia.com/gpu")
        self.given = task.gpus
        await super().start(task)

    async def logs(self, lease_id: str, follow: bool) -> AsyncIterator[LogPiece]:
        at = 0
        for uuid in (*self.given, *self.more):
            line = f"GPU 0: a model (UUID: {uuid})\n".encode()
            yield LogPiece(at, line)
            at += len(line)


async def tried(
    home: Path,
    hidden: Sequence[str] = (),
    more: Sequence[str] = (),
    engine: str = "",
    sandbox: Sandbox = Sandbox.DOCKER_RUNC,
) -> LaidOut:
    runner = _Container(home / "noop", VirtualClock())
    runner.hidden, runner.more = hidden, more

    @asynccontextmanager
    async def sandboxes(_folder: Path) -> AsyncIterator[list[Executor]]:
        yield [runner]

    async def image() -> str:
        return "python@sha256:" + "0" * 64

    async def engine_problem() -> str:
        return engine

    trial = GpuTrial(engine_problem, image, sandboxes)
    return await without_unreachable(lay_out(FOUR, PRICED), FOUR, sandbox, home, trial)


async def test_gpus_that_a_container_lists_are_offered(tmp_path: Path) -> None:
    assert await tried(tmp_path) == lay_out(FOUR, PRICED)
    assert [path.name for path in tmp_path.iterdir()] == ["noop"], "the trial leaves nothing"


async def test_a_gpu_that_no_container_gets_is_not_offered(tmp_path: Path) -> None:
    found = await tried(tmp_path, hidden=UUIDS[:1])
    [left] = found.classes
    assert [uuid for group in left.groups for uuid in group] == UUIDS[1:]
    assert found.unreachable == (
        "a container reaches the GPUs of 3 of 4 slots: unresolvable CDI devices nvidia.com/gpu"
    )


async def test_a_gpu_whose_container_lists_others_is_not_offered(tmp_path: Path) -> None:
    found = await tried(tmp_path, more=UUIDS[:1])
    [left] = found.classes
    assert left.groups == ((UUIDS[0],),), "the others could be read by a stranger's job"


async def test_without_the_toolkit_no_container_is_tried_and_nothing_is_on_offer(
    tmp_path: Path,
) -> None:
    lacking = gpu_problem({"Runtimes": {"runc": {}}, "CDISpecDirs": []}, has_hook=False)
    found = await tried(tmp_path, engine=lacking)
    assert not found.classes and "neither NVIDIA's container toolkit nor CDI" in found.unreachable
    [result] = [item for item in check_gpus(found, Sandbox.DOCKER_RUNC, PRICED) if not item.is_good]
    assert result.name == "gpu container" and "nvidia-ctk runtime configure" in result.fix
    hardware = Hardware(8, 1 << 36, 1 << 40)
    with pytest.raises(Refused, match="no GPU is on offer: a container reaches the GPUs of 0 of 4"):
        divide(PRICED, hardware, Host("x86_64", "v3"), found.classes, unreachable=found.unreachable)


async def test_where_no_job_gets_a_gpu_none_is_tried(tmp_path: Path) -> None:
    for sandbox in (Sandbox.NOOP, Sandbox.BWRAP):
        assert await tried(tmp_path, engine="down", sandbox=sandbox) == lay_out(FOUR, PRICED)


@pytest.mark.parametrize(
    ("info", "has_hook", "is_good"),
    [
        ({"Runtimes": {"nvidia": {}, "runc": {}}}, False, True),
        ({"Runtimes": {"runc": {}}}, True, True),
        ({"CDISpecDirs": ["/etc/cdi"]}, False, True),
        ({"CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": []}, False, False),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, False, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}]}, False, False),
    ],
)
def test_engine_that_knows_no_gpus_is_recognised(
    info: dict[str, object], has_hook: bool, is_good: bool
) -> None:
    assert (gpu_problem(info, has_hook) == "") == is_good


def test_cpu_slots_beside_gpus_are_chosen() -> None:
    plain = Config(home=Path(), coordinators=())
    assert plain.cpu_slots == 1 and PRICED.cpu_slots == 0
    chosen = Config(home=Path(), coordinators=(), gpu_prices=PRICED.gpu_prices, slots=2)
    assert chosen.cpu_slots == 2
