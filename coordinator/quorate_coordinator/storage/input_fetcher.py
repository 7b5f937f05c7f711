"""Takes inputs that clients named by CID, and did not upload, into the staging store.

No owner is asked before. So content that nobody gets takes no run slot, and what one owner could
fetch all can, auditors and jurors too. It has at most the bytes that the job declares, and counts
for the job's client like an upload.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorate_content.dag.cid import Cid, parse
from quorate_content.store.fetch_order import Source, gateway_source, in_order
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.events import ContentTaken
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.staging import Staging
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32

LOOK_SECONDS = 1.0
FETCHES_MAX = 16  # of the store's threads
FETCHES_OF_CLIENT_MAX = 2  # so that one client's slow gateways leave room for others
TURN_SECONDS = 30.0  # then a fetch lets others begin, and goes on from the blocks that it has
RETRY_SECONDS, RETRY_SECONDS_MAX = 5.0, 300.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WantedInput:
    """At most `bytes_max` bytes, for `client`, by `until`. `gateways` are URLs of the run."""

    job_id: Hash32
    cid: Cid
    bytes_max: int
    client: Address
    until: float
    gateways: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Attempt:
    """The next try of one fetch."""

    wanted: WantedInput
    at: float
    pause_seconds: float = RETRY_SECONDS
    is_done: bool = False

    def try_again(self, began: float, now: float) -> None:
        """Sets the next try after one that brought too little. If it used its turn, it goes on
        after all that wait now; if no source had it, it pauses.
        """
        self.at = now
        if now - began < TURN_SECONDS:
            self.at += self.pause_seconds
            self.pause_seconds = min(2 * self.pause_seconds, RETRY_SECONDS_MAX)


def due(attempts: list[Attempt], running: list[Attempt], now: float) -> list[Attempt]:
    """Returns the attempts to begin now, the longest waiting first. At most `FETCHES_MAX` run at
    once, and at most `FETCHES_OF_CLIENT_MAX` of one client.
    """
    busy, found = Counter(item.wanted.client for item in running), list[Attempt]()
    for item in sorted(attempts, key=lambda each: each.at):
        is_due = not item.is_done and item not in running and item.at <= now
        if (
            is_due
            and busy.total() < FETCHES_MAX
            and busy[item.wanted.client] < FETCHES_OF_CLIENT_MAX
        ):
            busy[item.wanted.client] += 1
            found.append(item)
    return found


def wanted_by(job: Job) -> tuple[WantedInput, ...]:
    spec, client = job.submission.spec, job.order.client
    return tuple(
        WantedInput(job.id, parse(cid), size, client, job.waits_until, spec.gateways)
        for cid, size in sorted(spec.kept().items())
    )


class InputFetcher:
    """Fetches content that runs wait for and tells the core (`submit`). `sources` are the
    operator's gateways. `may_be_private` allows gateways in the operator's private network that a
    client named.
    """

    def __init__(
        self,
        state: State,
        staging: Staging,
        sources: tuple[Source, ...],
        clock: Clock,
        submit: Callable[[ContentTaken], Awaitable[None]],
        may_be_private: bool = False,
    ) -> None:
        self._state, self._changed = state, state.jobs.follow()
        self._staging, self._sources, self._clock = staging, sources, clock
        self._submit, self._may_be_private = submit, may_be_private
        self._running: list[Attempt] = []  # at most FETCHES_MAX
        self._attempts: dict[Hash32, list[Attempt]] = {}  # by job that waits

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._follow()
                every = [item for attempts in self._attempts.values() for item in attempts]
                for attempt in due(every, self._running, self._clock.now()):
                    self._running.append(attempt)
                    group.create_task(self._try(attempt), name=f"input {attempt.wanted.cid}")
                await self._clock.sleep(LOOK_SECONDS)

    def _follow(self) -> None:
        now = self._clock.now()
        for job_id in self._changed:
            job = self._state.jobs.get(job_id)
            if job is None or not job.lacks_content:
                self._attempts.pop(job_id, None)
            elif job_id not in self._attempts:
                self._attempts[job_id] = [Attempt(wanted, now) for wanted in wanted_by(job)]
        self._changed.clear()

    async def _try(self, attempt: Attempt) -> None:
        wanted, began = attempt.wanted, self._clock.now()
        named = (gateway_source("job", url, self._may_be_private) for url in wanted.gateways)
        sources = in_order(named, self._sources)
        try:
            seconds = min(TURN_SECONDS, max(RETRY_SECONDS, wanted.until - self._clock.now()))
            await self._staging.take_in(
                wanted.cid, wanted.client, wanted.bytes_max, sources, seconds
            )
            attempt.is_done = True
            if all(item.is_done for item in self._attempts.get(wanted.job_id, ())):
                await self._submit(ContentTaken(wanted.job_id))
        except (Refused, Unavailable) as error:
            # Not re-raised: the run waits, and ends if no later try brings it in time.
            log.info("input %s is not in the staging store: %s", wanted.cid, error)
            attempt.try_again(began, self._clock.now())
        finally:
            self._running.remove(attempt)
