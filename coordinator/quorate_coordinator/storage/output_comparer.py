"""Opens two sealed outputs and compares them (PROTOCOL §5 Batches).

Strangers wrote both. So at most two are open at a time, in a folder that a start empties, and a
process of its own with limits reads them.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from quorate_content.comparators.report import DIFFERENT
from quorate_content.comparators.worker import compare_apart
from quorate_content.dag.disk_tree import remove_tree
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.sealed import open_sealed
from quorate_coordinator.core.audit.comparisons import is_wanted
from quorate_coordinator.core.model.effects import CompareOutputs
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.events import OutputsCompared
from quorate_coordinator.core.model.lease import Revealed
from quorate_coordinator.core.model.state import State
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.files import private_folder

AT_ONCE_MAX = 2
WAITING_MAX = 64  # of the outbox's places, so that other effects have the rest
SPARE_BYTES = 1 << 30  # of disk
SECONDS_MIN = 60
BYTES_PER_SECOND = 16 << 20  # that a comparison reads at least
RETRY_SECONDS = 5.0
log = logging.getLogger(__name__)


@dataclass(slots=True)
class OutputComparer:
    """Performs `CompareOutputs`. Repeating does no harm: the core takes the first answer."""

    state: State
    store: ContentStore
    folder: Path
    clock: Clock
    submit: Callable[[OutputsCompared], Awaitable[object]]
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE_MAX))
    _waiting: int = 0

    def clear(self) -> None:
        """Removes what a process left that ended while it compared."""
        remove_tree(self.folder)
        private_folder(self.folder)

    async def __call__(self, effect: CompareOutputs) -> None:
        """Raises `Unavailable` while this machine lacks something, until `effect.until`."""
        job = self.state.jobs.get(effect.job_id)
        if job is None or not is_wanted(job, effect.one, effect.other):
            return  # it was reported before a crash
        if self._waiting >= WAITING_MAX:
            raise Unavailable("many outputs wait to be compared", RETRY_SECONDS)
        self._waiting += 1
        try:
            async with self._places:
                ppb = await self._distance(job, effect)
        finally:
            self._waiting -= 1
        await self.submit(OutputsCompared(effect.job_id, effect.one, effect.other, ppb))

    async def _distance(self, job: Job, effect: CompareOutputs) -> int | None:
        """None if no tolerance lets them agree, or if they cannot be compared."""
        pair = f"outputs 0x{effect.one.hex()} and 0x{effect.other.hex()}"
        try:
            ppb = await self._compare(job, effect)
        except Refused as refused:
            # Not re-raised: who writes an output that cannot be read gives another result.
            log.info("%s: %s", pair, refused)
            return None
        except (Unavailable, OSError) as error:
            if self.clock.now() < effect.until:
                raise Unavailable(f"{pair}: {error}", RETRY_SECONDS) from error
            log.error("%s count as different, because they cannot be compared: %s", pair, error)
            return None
        return ppb if ppb < DIFFERENT else None

    async def _compare(self, job: Job, effect: CompareOutputs) -> int:
        work = Path(mkdtemp(dir=self.folder))
        try:
            one = await self._open(job, effect.one, work / "one")
            other = await self._open(job, effect.other, work / "other")
            compare = job.submission.spec.compare
            seconds = SECONDS_MIN + (one + other) // BYTES_PER_SECOND
            report = await compare_apart(
                work / "one", work / "other", compare.comparator, compare.include, seconds
            )
            return report.ppb
        finally:
            await asyncio.to_thread(remove_tree, work)

    async def _open(self, job: Job, name: Hash32, folder: Path) -> int:
        """Returns the bytes of the ciphertext."""
        phase = self.state.leases[name].phase
        assert isinstance(phase, Revealed), "only revealed outputs are compared"
        reveal, bytes_max = phase.reveal, job.submission.spec.resources.output_bytes
        cid = await self.store.resolve(phase.commit.message.encrypted_output)
        if cid is None:
            raise Unavailable("a ciphertext is not in the store", RETRY_SECONDS)
        async with await self.store.lease(cid) as held:
            size = held.path.stat().st_size
            if shutil.disk_usage(self.folder).free < size + SPARE_BYTES:
                raise Unavailable("the disk has no room to open an output", RETRY_SECONDS)
            await asyncio.to_thread(
                open_sealed, held.path, reveal.salt, reveal.output_digest, folder, bytes_max
            )
        return size
