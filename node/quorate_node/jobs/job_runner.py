"""Where an execution is carried out: inputs fetched and pinned, the task started, its output
collected, sealed and kept.

Used for leases and for jury service alike. Every call may be repeated after a crash. Plain
outputs never enter the content store, because the store is served to everybody; they lie in
`<home>/outputs/<lease>` until sealed.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate_content.dag.cid import Cid, from_digest, parse
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.sealed import seal_directory
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.fetch import Source
from quorate_node.executors.outputs import delete_tree
from quorate_protocol.limits import DAY, SPEC_BYTES_MAX
from quorate_protocol.messages.job_spec import JobSpec, decode, is_image_cid
from quorate_protocol.ports import Clock, Executor, Mount, Task
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.classes import HostClass
from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_TIMEOUT, ExitStatus, Hash32
from quorate_runtime.process.crash_points import crash_point

_LEASE = "lease:"  # before the name of whom inputs are pinned for
CIPHERTEXT_KEEP_SECONDS = 14 * DAY  # the verdict's seven days and the wait for it


@dataclass(frozen=True, slots=True)
class Output:
    """What was collected: the directory's digest, and what was forbidden in it ("" = nothing)."""

    digest: Hash32
    note: str


class JobRunner:
    """One machine's hands. `classes`: the host classes offered, for their determinism
    environments.
    """

    def __init__(
        self,
        executor: Executor,
        store: ContentStore,
        home: Path,
        clock: Clock,
        classes: Mapping[Hash32, HostClass],
        gpus: tuple[str, ...] = (),
    ) -> None:
        self.executor, self.store = executor, store
        self._outputs, self._clock, self._classes, self._gpus = (
            home / "outputs",
            clock,
            classes,
            gpus,
        )
        self._outputs.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def spec(
        self, digest: Hash32, sources: Sequence[Source], deadline_seconds: float, owner: str
    ) -> JobSpec:
        """A job spec by its digest, for a juror."""
        async with await self.store.get(
            from_digest(digest), sources, SPEC_BYTES_MAX, deadline_seconds, owner
        ) as lease:
            return decode(await asyncio.to_thread(lease.path.read_bytes))

    async def fetch(
        self, lease_id: str, spec: JobSpec, sources: Sequence[Source], deadline_seconds: float
    ) -> None:
        """Image and inputs, verified and pinned for the lease. Unavailable when no source has
        them in time; Refused when the registry's image cannot be had here.
        """
        limit = self._clock.now() + deadline_seconds
        for cid, size in _needed(spec):
            left = max(0.1, limit - self._clock.now())
            async with await self.store.get(cid, sources, size, left, _owner(lease_id)):
                await self.store.pin(cid, _owner(lease_id))
        if not is_image_cid(spec.image):
            await self.executor.fetch_image(
                lease_id, spec.image, max(0.1, limit - self._clock.now())
            )

    async def start(self, lease_id: str, spec: JobSpec, host_class: Hash32) -> None:
        """Starts the container unless it was started. Refused(UNSUPPORTED | UNKNOWN) when this
        image can never run here.
        """
        await self.executor.start(await self._task(lease_id, spec, host_class))

    async def collect(self, lease_id: str, status: ExitStatus) -> Output:
        """The output directory and its digest. A time-out, a memory kill and forbidden content
        give the empty directory.
        """
        target = self._outputs / lease_id
        note = "" if target.exists() else await self._collect_into(target, lease_id, status)
        try:
            cid = await asyncio.to_thread(cid_of_path, target)
        except Refused as refused:
            # Not re-raised: content addressing has bounds of its own, and what lies beyond them is
            # the job's own doing as well.
            note = f"outputs refused: {refused.detail}"
            await asyncio.to_thread(delete_tree, target)
            target.mkdir(mode=0o700)
            cid = await asyncio.to_thread(cid_of_path, target)
        return Output(cid.digest, note)

    async def seal(self, lease_id: str, output_digest: Hash32, salt: Hash32) -> Cid:
        """Ciphertext of the collected output, in the store; the same salt always gives the same
        one.
        """
        target, sealed = self._outputs / lease_id, self._outputs / f"{lease_id}.sealed"
        sealed.unlink(missing_ok=True)
        crash_point("output.before-seal")
        digest, cid, _ = await asyncio.to_thread(seal_directory, target, salt, sealed)
        if digest != output_digest:
            raise Refused(
                Code.DOES_NOT_OPEN,
                f"the output of {lease_id} changed on disk after it was collected",
            )
        until = self._clock.now() + CIPHERTEXT_KEEP_SECONDS
        crash_point("output.before-store")
        stat = await self.store.put(sealed, _kept(lease_id), until)
        crash_point("output.after-store")
        assert stat.cid == cid, "sealing and the store name the same bytes alike"
        sealed.unlink(missing_ok=True)
        return cid

    async def remove(self, lease_id: str) -> None:
        """Forgets container, plain output and the pins of inputs; the ciphertext stays until its
        pin's own date.
        """
        await self.executor.remove(lease_id)
        for name in (
            lease_id,
            f"{lease_id}.part",
            f"{lease_id}.sealed",
        ):  # the last two are what a crash leaves
            await asyncio.to_thread(delete_tree, self._outputs / name)
        await self.store.unpin_all(_owner(lease_id))

    async def pinned(self) -> tuple[str, ...]:
        """Leases for which inputs are kept. Their pins have no date: whoever comes back has to
        end those that nothing wants any more.
        """
        return tuple(
            name.removeprefix(_LEASE)
            for name in await self.store.owned()
            if name.startswith(_LEASE)
        )

    async def _collect_into(self, target: Path, lease_id: str, status: ExitStatus) -> str:
        part, note = target.with_name(target.name + ".part"), ""
        await asyncio.to_thread(delete_tree, part)
        if status in (EXIT_TIMEOUT, EXIT_MEMORY_KILL):
            part.mkdir(mode=0o700)
        else:
            try:
                await self.executor.collect(lease_id, part)
            except Refused as refused:
                # Not re-raised: what the job left is the job's own doing, so it is a result, with
                # nothing in it.
                await asyncio.to_thread(delete_tree, part)
                part.mkdir(mode=0o700)
                note = f"outputs refused: {refused.detail}"
        os.replace(part, target)
        crash_point("output.after-collect")
        return note

    async def _task(self, lease_id: str, spec: JobSpec, host_class: Hash32) -> Task:
        host, asked = self._classes[host_class], spec.resources
        image: Path | str = (
            await self._path(parse(spec.image)) if is_image_cid(spec.image) else spec.image
        )
        mounts = [Mount(await self._path(parse(item.cid)), item.mount) for item in spec.inputs]
        # The determinism environment wins: it is part of the class that the commit names.
        env = {**{item.name: item.value for item in spec.env}, **dict(host.environment())}
        return Task(
            lease_id=lease_id,
            image=image,
            argv=spec.command(),
            env=env,
            working_dir=spec.working_dir,
            mounts=tuple(mounts),
            cpu_millis=asked.cpu_millis,
            memory_bytes=asked.memory_bytes,
            shm_bytes=asked.shm_bytes,
            scratch_bytes=asked.scratch_bytes,
            output_bytes=asked.output_bytes,
            output_inodes=asked.output_inodes,
            pids=asked.pids,
            max_duration=spec.max_duration,
            gpus=self._gpus[: asked.gpu.count] if asked.gpu else (),
        )

    async def _path(self, cid: Cid) -> Path:
        # The lease's pin keeps it in place; this only finds it.
        async with await self.store.lease(cid) as lease:
            return lease.path


def _needed(spec: JobSpec) -> list[tuple[Cid, int]]:
    image = [(parse(spec.image), spec.image_bytes)] if is_image_cid(spec.image) else []
    return image + [(parse(item.cid), item.size_bytes) for item in spec.inputs]


def _owner(lease_id: str) -> str:
    return f"{_LEASE}{lease_id}"


def _kept(lease_id: str) -> str:
    return f"sealed:{lease_id}"
