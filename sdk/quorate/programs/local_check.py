"""Runs a job twice on this machine, as two providers would, and compares the results.

The second run begins in another second, in another sandbox if there is one, with half of the
processor time, and with inputs that were written in another order. Both have the environment of the
pool, as on a provider.
"""

import asyncio
import secrets
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from quorate.base.errors import UnavailableError, UsageError, translated
from quorate.job.packing import PackedJob
from quorate.programs.tree_differences import Difference, tree_differences
from quorate_content.dag.cid import typed_cid
from quorate_content.dag.content_limits import Bounds
from quorate_content.dag.disk_tree import TreeWriter, build_path, cid_of_path
from quorate_content.dag.unixfs import V1_2025
from quorate_protocol.messages.classes import CPU_ENVIRONMENT
from quorate_protocol.messages.job_spec import is_image_cid
from quorate_protocol.messages.ports import Executor, Mount, Sandbox, Task
from quorate_protocol.refusals import Refused
from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_TIMEOUT
from quorate_runtime.clock import SystemClock
from quorate_runtime.process.hook_folder import write_hook

GROUP = "quorate.executors"
FETCH_SECONDS = 1800.0
LOG_BYTES_MAX = 1 << 20
APART_SECONDS = 1.1
Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One run on this machine. `output_cid` is what a provider would commit to."""

    sandbox: str
    exit_status: int
    output: Path
    output_cid: str
    log: bytes
    wall_ms: int
    refusal: str = ""  # why the outputs were refused; the result is then the empty folder


@dataclass(frozen=True, slots=True)
class LocalCheck:
    """Both runs and where their results differ."""

    first: LocalRun
    second: LocalRun
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """True if both runs give the result that providers would agree on."""
        return (self.first.exit_status, self.first.output_cid) == (
            self.second.exit_status,
            self.second.output_cid,
        )


async def check_locally(packed: PackedJob, folder: Path, notice: Notice) -> LocalCheck:
    """Runs the packed job twice below `folder`.

    Raises UsageError for what cannot be run here, UnavailableError if no sandbox works.
    """
    if packed.spec.resources.gpu is not None:
        raise UsageError(
            "resources.gpu: jobs with GPUs cannot be checked here yet; leave gpu out, or add "
            "--on-market"
        )
    opened = _load_executors()
    async with AsyncExitStack() as stack:
        with translated():
            executors: list[Executor] = await stack.enter_async_context(
                opened(folder / "leases", packed.spec.sandbox)
            )
        first = await _run(executors[0], packed, folder, "1", notice)
        await SystemClock().sleep(APART_SECONDS)
        second = await _second_run(executors, packed, folder, notice)
    found = await asyncio.to_thread(tree_differences, first.output, second.output)
    return LocalCheck(first, second, tuple(found))


def _load_executors() -> Any:
    found = list(entry_points(group=GROUP))
    try:
        return found[0].load()
    except (ImportError, IndexError) as error:
        raise UsageError(
            f"check: it needs the provider's sandboxes ({error}); run pip install 'quorate[node]'"
        ) from error


async def _second_run(
    executors: list[Executor], packed: PackedJob, folder: Path, notice: Notice
) -> LocalRun:
    """Runs the job in another sandbox than the first; in the same if that cannot run it. Plain
    processes do not count: they have no /outputs, so their results differ for that reason alone.
    """
    if len(executors) > 1 and executors[1].sandbox is not Sandbox.PROCESS:
        try:
            return await _run(executors[1], packed, folder, "2", notice)
        except UsageError as error:
            notice(f"{executors[1].sandbox.value} cannot run it ({error}); the same sandbox again")
    return await _run(executors[0], packed, folder, "2b", notice)


async def _run(
    executor: Executor, packed: PackedJob, folder: Path, name: str, notice: Notice
) -> LocalRun:
    lease, home = secrets.token_hex(16), folder / name
    notice(f"run {name[0]} in {executor.sandbox.value}")
    is_second = name != "1"
    try:
        with translated():
            task = await asyncio.to_thread(_task, lease, packed, home, is_second)
            if isinstance(task.image, str):
                await executor.fetch_image(lease, task.image, FETCH_SECONDS)
            await executor.start(task)
            ended = await executor.wait(lease)
            log = b""
            async for piece in executor.logs(lease, follow=True):
                log = (log + piece.text)[-LOG_BYTES_MAX:]
    except Refused as refused:
        raise UsageError(f"{executor.sandbox.value}: {refused.detail}") from refused
    output, refusal = home / "outputs", ""
    if ended.status in (EXIT_TIMEOUT, EXIT_MEMORY_KILL):
        output.mkdir()
    else:
        try:
            await executor.collect(lease, output)
        except Refused as refused:
            refusal = refused.detail
            await asyncio.to_thread(_empty, output)
    cid = str(await asyncio.to_thread(cid_of_path, output))
    wall = int(ended.usage.wall_ms)
    return LocalRun(
        sandbox=executor.sandbox.value,
        exit_status=ended.status,
        output=output,
        output_cid=cid,
        log=log,
        wall_ms=wall,
        refusal=refusal,
    )


def _empty(output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()


def _task(lease: str, packed: PackedJob, home: Path, is_second: bool) -> Task:
    """Returns the task, with copies of its inputs as a provider's store holds them."""
    spec, home = packed.spec, home.resolve()
    for item in spec.inputs:
        if item.source:
            raise UsageError(
                f"inputs: {item.mount} comes from {item.source}; to check here, download it and "
                "give its path, or add --on-market"
            )
    (home / "inputs").mkdir(parents=True)
    inputs = list(enumerate(spec.inputs))
    places = {
        number: _copy(packed, item.cid, f"inputs: {item.mount}", home / "inputs" / str(number))
        for number, item in (reversed(inputs) if is_second else inputs)
    }
    image: Path | str = spec.image
    if is_image_cid(spec.image):
        image = _local(packed, spec.image, "image")
    asked = spec.resources
    return Task(
        lease_id=lease,
        image=image,
        argv=spec.command(),
        env=spec.environment(CPU_ENVIRONMENT),
        working_dir=spec.working_dir,
        mounts=tuple(Mount(places[number], item.mount) for number, item in inputs),
        cpu_millis=max(10, asked.cpu_millis // 2) if is_second else asked.cpu_millis,
        memory_bytes=asked.memory_bytes,
        shm_bytes=asked.shm_bytes,
        scratch_bytes=asked.scratch_bytes,
        output_bytes=asked.output_bytes,
        output_inodes=asked.output_inodes,
        pids=asked.pids,
        max_duration=spec.max_duration,
        hook=write_hook(home / "hook", spec.profile()),
    )


def _local(packed: PackedJob, cid: str, field: str) -> Path:
    found = next((item.path for item in packed.uploads if item.cid == cid), None)
    if found is None:
        raise UsageError(
            f"{field}: {cid} is not on this machine; fetch it with `quorate data get`, and give "
            "its path"
        )
    return found


def _copy(packed: PackedJob, cid: str, field: str, target: Path) -> Path:
    """Copies an input with the modes that it has in a provider's store."""
    source = _local(packed, cid, field)
    writer = TreeWriter(target, Bounds())
    built = build_path(source, V1_2025, None, writer, Bounds(), follows_links=True)
    if built.cid != typed_cid(cid):
        raise UnavailableError(f"{field}: {source} has changed since the check began; try again")
    if target.is_dir():
        target.chmod(0o555)
    return target
