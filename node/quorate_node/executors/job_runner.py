"""Runs one job on this machine: fetches and pins inputs, starts the task, and collects, seals and
keeps its output.

Leases and jury duty both use it. Every call may be repeated after a crash. Plain outputs never
enter the content store, because anybody can read that store. They lie in `<home>/outputs/<lease>`
until the ciphertext is in the store.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from quorate_content.dag.cid import Cid, from_digest, parse
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source, host_name
from quorate_content.store.web_fetch import WebContent, WebFile, folder_of, one_file
from quorate_content.transfer.sealed import seal
from quorate_node.executors.base.hardened_profile import WAIT_TARGET
from quorate_node.executors.base.outputs import delete_tree
from quorate_node.market.content_sources import JobSources, OwnerGateways
from quorate_node.rentals.egress_proxy import VARIABLES
from quorate_node.rentals.secrets import SecretStore
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DAY, SPEC_BYTES_MAX
from quorate_protocol.messages.classes import Host
from quorate_protocol.messages.input_sources import decode as decode_folder
from quorate_protocol.messages.input_sources import is_folder
from quorate_protocol.messages.job_spec import Input, JobSpec, decode, is_image_cid
from quorate_protocol.messages.ports import Clock, Executor, Exit, Mount, Task
from quorate_protocol.messages.rental_secrets import RentalSecrets
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_TIMEOUT, ExitStatus, Hash32, JobKind
from quorate_runtime.files import write_atomic
from quorate_runtime.process.crash_points import crash_point
from quorate_runtime.process.hook_folder import write_hook

MEASURED_BYTES_LEAST = 64 << 20
_LEASE = "lease:"  # prefix of the name under which the content store pins a lease's inputs
CIPHERTEXT_KEEP_SECONDS = 14 * DAY  # at most seven days until the verdict, and seven after it


class Output(Struct, frozen=True):
    """The output directory's digest, and why the empty one replaced it ("" if it did not)."""

    digest: Hash32
    note: str


class JobRunner:
    """Runs tasks on one machine. `check_gpus` asks the driver what it still lists."""

    def __init__(
        self,
        executor: Executor,
        store: ContentStore,
        home: Path,
        clock: Clock,
        hosts: Mapping[Hash32, Host],
        check_gpus: Callable[[], Awaitable[None]] | None = None,
        gateways: OwnerGateways | None = None,
        secrets: SecretStore | None = None,
    ) -> None:
        self.executor, self.store = executor, store
        self._outputs, self._clock = home / "outputs", clock
        self._hooks = home / "hooks"
        self._hosts, self._check_gpus = hosts, check_gpus
        self._gateways, self._secrets = gateways or OwnerGateways(), secrets
        # Lease id -> ciphertext, so that a retried upload seals only once.
        self._sealed: dict[str, Cid] = {}
        self._outputs.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def spec(
        self, digest: Hash32, sources: JobSources, deadline_seconds: float, owner: str
    ) -> JobSpec:
        """For a juror; pins it for `owner`. Coordinators keep specs, so their stores come before
        the owner's gateways.
        """
        ordered = (*sources.stores, *await self._gateways.sources(self._clock))
        async with await self.store.get(
            from_digest(digest), ordered, SPEC_BYTES_MAX, deadline_seconds, owner
        ) as lease:
            return decode(await asyncio.to_thread(lease.path.read_bytes))

    async def fetch(
        self, lease_id: str, spec: JobSpec, sources: JobSources, deadline_seconds: float
    ) -> int:
        """Returns the bytes a second that came in meanwhile, 0 if they were too few to tell. Raises
        Unavailable if no source has them in time, Refused if it can never be.
        """
        limit = self._clock.now() + deadline_seconds
        secrets = await self._await_secrets(lease_id, spec, limit)
        began, before = self._clock.now(), self.store.fetched.total()
        named = sources.with_gateways(spec.gateways)
        ordered = await self._gateways.in_order(named, self._clock)
        for cid, size in spec.kept().items():
            left = max(0.1, limit - self._clock.now())
            async with await self.store.get(parse(cid), ordered, size, left, _owner(lease_id)):
                await self.store.pin(parse(cid), _owner(lease_id))
        for item in spec.inputs:
            if item.source:
                left = max(0.1, limit - self._clock.now())
                headers = secrets.headers_for(item.source)
                await self._fetch_from_source(lease_id, item, headers, named, ordered, left)
        fetched, lasted = self.store.fetched.total() - before, self._clock.now() - began
        if not is_image_cid(spec.image):
            await self.executor.fetch_image(
                lease_id,
                spec.image,
                max(0.1, limit - self._clock.now()),
                needs_gpu=spec.resources.gpu is not None,
                login=secrets.registry,
            )
        return round(fetched / max(lasted, 0.001)) if fetched >= MEASURED_BYTES_LEAST else 0

    async def _await_secrets(self, lease_id: str, spec: JobSpec, limit: float) -> RentalSecrets:
        """Until the client's have come. Raises Unavailable at the limit."""
        if not spec.is_sealed:
            return RentalSecrets()
        while True:
            try:
                return self._sealed_secrets().get(lease_id)
            except Unavailable as error:
                if self._clock.now() >= limit:
                    raise
                await self._clock.sleep(error.retry_after)

    def _sealed_secrets(self) -> SecretStore:
        if self._secrets is None:
            raise Refused(Code.UNSUPPORTED, "sealKey: secrets need root, and a container engine")
        return self._secrets

    async def _fetch_from_source(
        self,
        lease_id: str,
        item: Input,
        headers: tuple[tuple[str, str], ...],
        named: JobSources,
        others: Sequence[Source],
        deadline_seconds: float,
    ) -> None:
        """A file goes into the store under its own CID, a folder under that of its tree."""
        content, owner = await self._content_of(item), _owner(lease_id)
        if content.size > item.size_bytes:
            raise Refused(
                Code.OVERSIZE,
                f"inputs: {item.source} lists {content.size} bytes, and {item.size_bytes} are "
                "declared",
            )
        origin = Source(
            item.source, headers, named.may_be_private, host_name("source", item.source)
        )
        async with await self.store.get_from_web(content, origin, others, deadline_seconds, owner):
            await self.store.pin(content.root, owner)

    async def _content_of(self, item: Input) -> WebContent:
        """Which files a source has, by the spec or by the folder's document, which is stored."""
        if not is_folder(item.source):
            return one_file(parse(item.cid), item.size_bytes)
        async with await self.store.lease(parse(item.cid)) as lease:
            folder = decode_folder(await asyncio.to_thread(lease.path.read_bytes))
        files = [
            WebFile(tuple(file.path.encode().split(b"/")), parse(file.cid), file.size_bytes)
            for file in folder.files
        ]
        return await asyncio.to_thread(folder_of, files)

    async def start(
        self, lease_id: str, spec: JobSpec, pool: Hash32, gpus: tuple[str, ...] = ()
    ) -> None:
        """Raises Refused(UNSUPPORTED | UNKNOWN) if it can never run here."""
        await self.executor.start(await self._task(lease_id, spec, pool, gpus))

    async def wait(self, lease_id: str, gpus: tuple[str, ...] = ()) -> Exit:
        """Asks the driver again, so that the core learns of a lost GPU before the exit."""
        exited = await self.executor.wait(lease_id)
        if gpus and self._check_gpus is not None:
            await self._check_gpus()
        return exited

    async def collect(self, lease_id: str, status: ExitStatus) -> Output:
        """May be repeated. Time-out, memory kill and forbidden content give the empty directory.
        Raises Unavailable if the executor does not have the outputs.
        """
        target, record = self._outputs / lease_id, self._record(lease_id)
        known = await asyncio.to_thread(_read_record, record)
        if known is not None:
            return known
        note = await self._collect_into(target, lease_id, status)
        try:
            cid = await asyncio.to_thread(cid_of_path, target)
        except Refused as refused:
            # Not re-raised: the job made a tree beyond the bounds of content addressing, so its
            # result is the empty directory.
            note = f"outputs refused: {refused.detail}"
            await asyncio.to_thread(delete_tree, target)
            target.mkdir(mode=0o700)
            cid = await asyncio.to_thread(cid_of_path, target)
        output = Output(cid.digest, note)
        await asyncio.to_thread(_write_record, record, output)
        return output

    async def seal(self, lease_id: str, output_digest: Hash32, salt: Hash32) -> Cid:
        """Same output and salt, same ciphertext. Raises Refused(DOES_NOT_OPEN) if the disk has not
        what `collect` found.
        """
        known = self._sealed.get(lease_id)
        if known is not None and await self.store.stat(known) is not None:
            return known
        crash_point("output.before-seal")
        digest, pieces = await asyncio.to_thread(seal, self._outputs / lease_id, salt)
        if digest != output_digest:
            raise Refused(
                Code.DOES_NOT_OPEN,
                f"the output of {lease_id} changed on disk after it was collected",
            )
        until = self._clock.now() + CIPHERTEXT_KEEP_SECONDS
        crash_point("output.before-store")
        # Straight into the store, because another copy of a large output may not fit on the disk.
        stat = await self.store.put(_stream(pieces), _ciphertext_owner(lease_id), until)
        crash_point("output.after-store")
        self._sealed[lease_id] = stat.cid
        return stat.cid

    async def remove(self, lease_id: str) -> None:
        """The ciphertext stays until its pin expires."""
        await self.executor.remove(lease_id)
        if self._secrets is not None:
            self._secrets.remove(lease_id)
        self._sealed.pop(lease_id, None)
        # The record goes first. Without it, a later call does not take a half deleted output for a
        # whole one.
        await asyncio.to_thread(self._record(lease_id).unlink, missing_ok=True)
        for name in (lease_id, f"{lease_id}.part"):
            await asyncio.to_thread(delete_tree, self._outputs / name)
        await self.store.unpin_all(_owner(lease_id))

    async def pinned(self) -> tuple[str, ...]:
        """These pins do not expire, so a restarted daemon removes those that no lease needs."""
        names = (name for name in await self.store.owned() if name.startswith(_LEASE))
        held = () if self._secrets is None else self._secrets.leases()
        return (*(name.removeprefix(_LEASE) for name in names), *held)

    def _record(self, lease_id: str) -> Path:
        return self._outputs / f"{lease_id}.collected"

    async def _collect_into(self, target: Path, lease_id: str, status: ExitStatus) -> str:
        """Replaces what a crash may have left. Returns why it is the empty directory, or ""."""
        part, note = target.with_name(target.name + ".part"), ""
        await asyncio.to_thread(delete_tree, part)
        if status in (EXIT_TIMEOUT, EXIT_MEMORY_KILL):
            part.mkdir(mode=0o700)
        else:
            try:
                await self.executor.collect(lease_id, part)
            except Refused as refused:
                # Not re-raised: the job made outputs that are forbidden, so its result is the empty
                # directory.
                await asyncio.to_thread(delete_tree, part)
                part.mkdir(mode=0o700)
                note = f"outputs refused: {refused.detail}"
        await asyncio.to_thread(delete_tree, target)
        os.replace(part, target)
        crash_point("output.after-collect")
        return note

    async def _task(
        self, lease_id: str, spec: JobSpec, pool: Hash32, gpus: tuple[str, ...]
    ) -> Task:
        host, asked = self._hosts.get(pool), spec.resources
        if host is None:
            # The owner changed the slots, or the driver changed, since the lease was accepted.
            raise Refused(Code.UNSUPPORTED, "pool: this machine has no slot of this class any more")
        image: Path | str = (
            await self._path(parse(spec.image)) if is_image_cid(spec.image) else spec.image
        )
        mounts = []
        for item in spec.inputs:
            cid = (await self._content_of(item)).root if item.source else parse(item.cid)
            mounts.append(Mount(await self._path(cid), item.mount))
        # The pool's variables override all others: they are part of the determinism class
        # that the Commit names.
        env, profile = spec.environment(host.environment()), spec.profile()
        env = {**VARIABLES, **env} if spec.egress else env
        is_machine = spec.kind is JobKind.DEV_ENVIRONMENT
        return Task(
            lease_id=lease_id,
            image=image,
            argv=spec.command() or ((WAIT_TARGET,) if is_machine else ()),
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
            gpus=gpus,
            hook=write_hook(self._hooks / profile.name, profile),
            disk_scratch_bytes=(
                asked.scratch_bytes
                if spec.kind.is_rental and self.executor.has_volumes
                else asked.disk_scratch_bytes
            ),
            is_rental=spec.kind.is_rental,
            secrets=self._secret_files(lease_id) if spec.is_sealed else None,
        )

    def _secret_files(self, lease_id: str) -> Path:
        """Raises Unavailable if the machine restarted since they came: its client sends them."""
        self._sealed_secrets().get(lease_id)
        return self._sealed_secrets().files(lease_id)

    async def _path(self, cid: Cid) -> Path:
        # The lease's pin keeps the content in place after this returns.
        async with await self.store.lease(cid) as lease:
            return lease.path


async def _stream(pieces: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
    try:
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece
    finally:
        pieces.close()


def _owner(lease_id: str) -> str:
    return f"{_LEASE}{lease_id}"


def _ciphertext_owner(lease_id: str) -> str:
    return f"sealed:{lease_id}"


def _read_record(path: Path) -> Output | None:
    return canonical.decode(Output, path.read_bytes()) if path.exists() else None


def _write_record(path: Path, output: Output) -> None:
    """Durably: a later call compares the output on disk with its digest."""
    write_atomic(path, canonical.encode(output))
