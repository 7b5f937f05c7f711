"""Tries GPUs in containers: before they are offered and staked, and for the self-test.

A driver that works outside of containers says nothing of the engine: without NVIDIA's container
toolkit, or with an old list of devices, the first job would fail.
"""

import asyncio
import dataclasses
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from quorate_node.executors.selection import local_executors
from quorate_node.machine.gpu_slots import LaidOut
from quorate_protocol.messages.classes import GPU_ENVIRONMENT
from quorate_protocol.messages.determinism import PROFILES, TORCH
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.ports import Executor, Mount, Sandbox, Task
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Seconds
from quorate_runtime.process.hook_folder import write_hook

MIB = 1 << 20
IMAGE = "python:3.12-slim"  # has Python and the C library that NVIDIA's programs need
FETCH_SECONDS = 900.0
RUN_SECONDS = Seconds(120)
LOG_BYTES_MAX = 64 * 1024
LIST_GPUS = ("nvidia-smi", "-L")
TOOLKIT = (
    "install nvidia-container-toolkit, type `nvidia-ctk runtime configure --runtime=docker`, and "
    "restart Docker"
)
_LISTED = re.compile(r"UUID: ((?:GPU|MIG)-[0-9A-Za-z/-]+)")
_PROGRAM = Path(__file__).with_name("reference_program.py")


async def _image() -> str:
    # Docker's SDK is imported only if it is used.
    from quorate_node.executors.docker.engine_connection import digest_name

    return await asyncio.to_thread(digest_name, IMAGE)


async def _engine_problem() -> str:
    from quorate_node.executors.docker.engine_connection import why_no_gpus

    return await asyncio.to_thread(why_no_gpus)


class GpuTrial(Struct, frozen=True):
    """What a trial needs. Tests give it containers that run nothing."""

    engine_problem: Callable[[], Awaitable[str]] = _engine_problem
    image: Callable[[], Awaitable[Path | str]] = _image
    # GPU jobs never run in gVisor (2.27).
    sandboxes: Callable[[Path], AbstractAsyncContextManager[Sequence[Executor]]] = lambda folder: (
        local_executors(folder, Sandbox.DOCKER_RUNC.value)
    )


async def without_unreachable(
    laid_out: LaidOut, inventory: GpuInventory, sandbox: Sandbox, home: Path, trial: GpuTrial
) -> LaidOut:
    """Returns only the slots whose GPUs a container has listed, and why the others are none."""
    if not laid_out.classes or sandbox not in (Sandbox.DOCKER_RUNC, Sandbox.DOCKER_RUNSC):
        return laid_out
    problem = await trial.engine_problem()
    if problem:
        return _kept(laid_out, frozenset(), problem)
    # The engine mounts files of this folder; a service's /tmp is not the engine's.
    with _folder(home) as folder:
        reached: list[tuple[str, ...]] = []
        for group in (group for item in laid_out.classes for group in item.groups):
            try:
                await _try_group(trial, Path(folder), inventory, group)
            except Exception as error:  # noqa: BLE001 - engines have many errors, all say no
                problem = problem or getattr(error, "detail", "") or str(error) or repr(error)
                continue
            reached.append(group)
    return _kept(laid_out, frozenset(reached), problem)


def _kept(laid_out: LaidOut, reached: frozenset[tuple[str, ...]], problem: str) -> LaidOut:
    classes = []
    for item in laid_out.classes:
        groups = tuple(group for group in item.groups if group in reached)
        if groups:
            classes.append(dataclasses.replace(item, groups=groups))
    count = sum(len(item.groups) for item in laid_out.classes)
    kept = sum(len(item.groups) for item in classes)
    if kept == count:
        return laid_out
    text = f"a container reaches the GPUs of {kept} of {count} slots: {problem}"
    return LaidOut(tuple(classes), laid_out.problems, text)


def _folder(home: Path) -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="trial-", dir=home if home.exists() else None)


async def _try_group(
    trial: GpuTrial, folder: Path, inventory: GpuInventory, group: tuple[str, ...]
) -> None:
    wholes = {
        device.uuid
        for device in inventory.devices
        if any(part.uuid in group for part in device.partitions)
    }
    image = await trial.image()
    async with trial.sandboxes(folder / "leases") as runners:
        log, _ = await run_in_container(runners[0], image, LIST_GPUS, folder, group)
    check_listed(log, group, wholes)


def check_listed(log: str, given: Sequence[str], wholes: Collection[str]) -> None:
    """`wholes`: the GPUs of which `given` are partitions. Raises Unavailable."""
    listed = set(_LISTED.findall(log))
    lacking, others = sorted(set(given) - listed), sorted(listed - {*given, *wholes})
    if lacking:
        names = ", ".join(lacking)
        raise Unavailable(f"nvidia-smi in the container does not list {names}: {log[:400]!r}", 0)
    if others:
        names = ", ".join(given)
        raise Unavailable(f"the container has {names} and also lists {', '.join(others)}", 0)


async def run_in_container(
    runner: Executor, image: Path | str, words: tuple[str, ...], folder: Path, gpus: tuple[str, ...]
) -> tuple[str, bytes]:
    """Returns the log and the output files. Raises Unavailable if the program fails."""
    lease = secrets.token_hex(16)
    async with asyncio.timeout(FETCH_SECONDS + RUN_SECONDS):
        if isinstance(image, str):
            await runner.fetch_image(lease, image, FETCH_SECONDS, needs_gpu=True)
        await runner.start(_task(lease, image, words, folder, gpus))
        ended = await runner.wait(lease)
        log = b""
        async for piece in runner.logs(lease, follow=True):
            log = (log + piece.text)[-LOG_BYTES_MAX:]
        text = log.decode(errors="replace")
        if ended.status:
            raise Unavailable(f"{' '.join(words)} ended with {ended.status}: {text[-400:]}", 0)
        await runner.collect(lease, folder / lease)
    files = sorted(path for path in (folder / lease).rglob("*") if path.is_file())
    return text, b"".join(path.read_bytes() for path in files)


def _task(
    lease: str, image: Path | str, words: tuple[str, ...], folder: Path, gpus: tuple[str, ...]
) -> Task:
    profile = PROFILES[TORCH]
    program = folder / _PROGRAM.name
    program.write_bytes(_PROGRAM.read_bytes())
    program.chmod(0o644)
    return Task(
        lease_id=lease,
        image=image,
        argv=words,
        env={**dict(profile.variables), **dict(GPU_ENVIRONMENT)},
        working_dir="/scratch",
        mounts=(Mount(program, f"/inputs/{_PROGRAM.name}"),),
        cpu_millis=1000,
        memory_bytes=2048 * MIB,
        shm_bytes=64 * MIB,
        scratch_bytes=256 * MIB,
        output_bytes=16 * MIB,
        output_inodes=64,
        pids=128,
        max_duration=RUN_SECONDS,
        gpus=gpus,
        hook=write_hook(folder / "hook", profile),
    )
