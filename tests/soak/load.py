"""The soak's clients: they submit no-op jobs through the SDK and wait for each end.

A job is acknowledged when `submit` has returned: the client then holds an Ack under the
coordinator's statement key. It is lost if the coordinator, after its last kill and restart, knows
no end of it.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from quorate import Job, Market
from quorate.base.errors import QuorateError, RefusedError, UnavailableError
from quorate.client.background_settlement import is_over
from quorate.client.base.profile import Profile
from quorate.client.run import Run
from quorate_protocol.units import Hash32

IMAGE = "registry.example/soak@sha256:" + "5a" * 32  # the no-op executor needs no image
RETRY_SECONDS = 0.5
PARALLEL = 16
ASK_TRIES = 20


@dataclass(slots=True)
class ClientRecord:
    """What the clients saw, in seconds of the monotonic clock."""

    submitted: dict[Hash32, float] = field(
        default_factory=dict
    )  # acknowledged jobs, and when they were submitted
    owners: dict[Hash32, int] = field(default_factory=dict)  # the client of each job
    ended: dict[Hash32, float] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0  # submissions without an answer, which promised nothing

    def open(self) -> int:
        """Acknowledged jobs without an end."""
        return len(self.submitted) - len(self.ended)

    def milliseconds(self) -> list[float]:
        """Milliseconds from the call of `submit` to the end as the client saw it."""
        return [1000 * (ended - self.submitted[job_id]) for job_id, ended in self.ended.items()]


class Load:
    """Submits jobs at a steady rate from all clients in turn."""

    def __init__(self, profiles: list[Profile], url: str, rate: float, outstanding: int) -> None:
        self._profiles = [replace(profile, coordinator_url=url) for profile in profiles]
        self._rate, self._gate = rate, asyncio.Semaphore(outstanding)
        self._markets: list[Market] = []
        self.told = ClientRecord()

    async def run(self, until: float, drained_by: float) -> None:
        """Submits until `until`, then waits for ends until `drained_by` (both of the monotonic
        clock).
        """
        number, next_at = 0, time.monotonic()
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until:
                await self._gate.acquire()
                group.create_task(self._one(number, drained_by))
                number += 1
                next_at = max(
                    next_at + 1 / self._rate, time.monotonic() - 1
                )  # submissions that a busy second missed are made up for, but no more
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def open(self) -> None:
        """Connects all clients."""
        self._markets = [await Market(profile).__aenter__() for profile in self._profiles]

    async def close(self) -> None:
        """Disconnects all clients."""
        for market in self._markets:
            await market.__aexit__(None, None, None)

    async def _one(self, number: int, drained_by: float) -> None:
        which = number % len(self._markets)
        job = Job(
            image=IMAGE,
            command=["run", str(number)],
            name=f"soak-{number}",
            max_price="5",
            max_duration="20s",
        )
        begun = time.monotonic()
        try:
            run = await self._markets[which].submit(job)
            self.told.submitted[run.job_id], self.told.owners[run.job_id] = begun, which
            await self._end(run, drained_by)
        except RefusedError as error:
            self.told.refused[f"client:{error.code}"] += (
                1  # not re-raised: it is counted, and the soak continues
            )
        except UnavailableError:
            # The coordinator is being killed. The order may exist or not: nothing was promised.
            self.told.unanswered += 1
        finally:
            self._gate.release()

    async def _end(self, run: Run, drained_by: float) -> None:
        while (left := drained_by - time.monotonic()) > 0:
            try:
                view = await asyncio.wait_for(run.wait(), left)
            except (UnavailableError, TimeoutError):
                await asyncio.sleep(
                    RETRY_SECONDS
                )  # not re-raised: the coordinator is away for a moment, or the time is over
            else:
                self.told.ended[run.job_id] = time.monotonic()
                self.told.verdicts[
                    view.verdict.message.outcome.name.lower()
                    if view.verdict is not None
                    else view.phase
                ] += 1
                return

    async def lost(self) -> list[Hash32]:
        """Acknowledged jobs of which the coordinator now knows no end."""
        gate, found = asyncio.Semaphore(PARALLEL), []

        async def look(job_id: Hash32) -> None:
            async with gate:
                if not await self._has_end(job_id):
                    found.append(job_id)

        await asyncio.gather(*(look(job_id) for job_id in self.told.submitted))
        return found

    async def _has_end(self, job_id: Hash32) -> bool:
        market = self._markets[self.told.owners[job_id]]
        for _ in range(ASK_TRIES):
            try:
                return is_over(await (await market.run(job_id)).status())
            except UnavailableError:
                await asyncio.sleep(RETRY_SECONDS)  # not re-raised: it has just started again
            except QuorateError as error:
                self.told.refused[f"end:{type(error).__name__}"] += (
                    1  # not re-raised: a missing end is what we count
                )
                return False
        return False
