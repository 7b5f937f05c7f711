"""Deletes old runs from the archive, but none that somebody may still need.

A run is kept for `keep_seconds` after it ended. In a full archive the oldest are deleted earlier,
but none younger than `demanded_seconds`: until then a client may send the same order again and must
get the same Ack, and a court may ask. If only such runs are left, the archive grows, and `health`
says so.

A receipt opens the ciphertext, and only the archive knows who may read it. So the archive keeps the
readers for as long as the content store has the ciphertext.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from quorate_coordinator.base.storage_sizes import Keeping
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.storage.archive import BEFORE_ALL_RUNS, readers_of
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.limits import Limits
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import ZERO_HASH, Hash32
from quorate_runtime.process.health import Board

log = logging.getLogger(__name__)
STEP = 64  # runs in one transaction, which takes some milliseconds in a thread
PAUSE_SECONDS = 0.05
REST_SECONDS = 60.0

IsStored = Callable[[Hash32], Awaitable[bool]]
"""Whether the content store has the ciphertext with this digest."""


def demanded_seconds(limits: Limits) -> int:
    """Somebody may need a run while its session and its order are valid. So may others while
    vouchers and escrows of orders pay for it, while the bond of its coordinator or its providers
    can be taken, and while its evidence counts.
    """
    return max(
        limits.session_max + limits.client_close,
        limits.unbond_after,
        limits.case_evidence_age + limits.jury_window,
        limits.escrow_evidence_age + limits.evidence_window,
        limits.max_hold,
    )


@dataclass(slots=True)
class Retention:
    """One task of the service, which deletes runs and readers in small steps."""

    history: RunReader
    keeping: Keeping
    is_stored: IsStored
    hide: Callable[[Sequence[ArchivedRun]], Awaitable[None]]  # deletes runs from the SQL tables
    clock: Clock
    board: Board
    _output: Hash32 = field(default=ZERO_HASH)

    async def run(self) -> None:
        while True:
            try:
                is_done = await self.step()
            except Unavailable as error:
                # Not re-raised: nothing was deleted, and the next step tries again.
                log.warning("finished runs are kept longer: %s", error)
                is_done = True
            await self.clock.sleep(REST_SECONDS if is_done else PAUSE_SECONDS)

    async def step(self) -> bool:
        """Returns whether nothing more is to delete for now."""
        archive, now = self.history.archive, int(self.clock.now())
        is_full = archive.used_bytes() > self.keeping.bytes_max
        moment = now - (
            self.keeping.least_seconds
            if is_full
            else max(self.keeping.keep_seconds, self.keeping.least_seconds)
        )
        found = await asyncio.to_thread(archive.ended_before, moment, BEFORE_ALL_RUNS, STEP)
        self._tell(is_full and not found)
        runs = [run for _, run in found]
        if runs:
            stored = [
                digest
                for run in runs
                for digest, _ in readers_of(run)
                if await self.is_stored(digest)
            ]
            await self.hide(runs)
            await asyncio.to_thread(archive.forget, runs, frozenset(stored))
            self.history.gone(runs)
        is_swept = await self._sweep()
        return len(runs) < STEP and is_swept

    async def _sweep(self) -> bool:
        """Continues where it last ended. Returns whether it reached the end of the list."""
        archive = self.history.archive
        found = await asyncio.to_thread(archive.forgotten_outputs, self._output, STEP)
        away = [digest for digest in found if not await self.is_stored(digest)]
        if away:
            await asyncio.to_thread(archive.forget_outputs, away)
        self._output = found[-1] if len(found) == STEP else ZERO_HASH
        return len(found) < STEP

    def _tell(self, is_stuck: bool) -> None:
        days = self.keeping.least_seconds // 86_400
        told = (
            f"over its {self.keeping.bytes_max} bytes, with no run older than {days} days: "
            f"`quorate coordinator up --archive-size SIZE`"
        )
        self.board.put("archive", told if is_stuck else "")
