"""Takes inputs that clients named by CID, and did not upload, into the staging store.

So auditors and jurors find them as long as a run may be executed again. They come from the IPFS
gateways that the job names or the operator configured. They have at most the bytes that the job
declares, and count for the job's client like an upload.
"""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

from quorate_content.dag.cid import Cid, parse
from quorate_content.transfer.fetch_order import Source, gateway_source, in_order
from quorate_coordinator.core.entities import Job
from quorate_coordinator.core.state import State
from quorate_coordinator.storage.staging import Staging
from quorate_protocol.messages.job_spec import is_image_cid
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32

LOOK_SECONDS = 1.0
FETCH_SECONDS = 3_600.0  # then the next try continues
FETCHES_MAX = 4
FETCHES_OF_CLIENT_MAX = 2  # so that one client's slow gateways leave room for others
RETRY_SECONDS, RETRY_SECONDS_MAX = 5.0, 300.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WantedInput:
    """Content that a run names: at most `bytes_max` bytes, for `client`. `gateways` are the URLs
    that the run names.
    """

    cid: Cid
    bytes_max: int
    client: Address
    gateways: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Attempt:
    """The next try of one fetch."""

    wanted: WantedInput
    at: float
    pause_seconds: float = RETRY_SECONDS
    is_done: bool = False


def due(attempts: list[Attempt], running: list[Attempt], now: float) -> list[Attempt]:
    """Returns the attempts to begin now. At most `FETCHES_MAX` run at once, and at most
    `FETCHES_OF_CLIENT_MAX` of one client.
    """
    busy, found = Counter(item.wanted.client for item in running), list[Attempt]()
    for item in attempts:
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
    """Returns the inputs that a run names, and its image if it is named by CID."""
    spec, client = job.submission.spec, job.submission.order.message.client
    named = {item.cid: item.size_bytes for item in spec.inputs}
    if is_image_cid(spec.image):
        named[spec.image] = spec.image_bytes
    return tuple(
        WantedInput(parse(cid), size, client, spec.gateways) for cid, size in sorted(named.items())
    )


class InputFetcher:
    """Follows the runs in the state and fetches what the staging store lacks of their inputs.

    `sources` are the operator's gateways. `may_be_private` allows gateways that a client named in
    the operator's private network.
    """

    def __init__(
        self,
        state: State,
        staging: Staging,
        sources: tuple[Source, ...],
        clock: Clock,
        may_be_private: bool = False,
    ) -> None:
        self._state, self._changed = state, state.jobs.follow()
        self._staging, self._sources, self._clock = staging, sources, clock
        self._may_be_private = may_be_private
        self._known: set[Hash32] = set()  # jobs in the state that were seen
        self._running: list[Attempt] = []  # at most FETCHES_MAX
        self._attempts: dict[Hash32, list[Attempt]] = {}  # by job, while something is missing

    async def run(self) -> None:
        """Fetches until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._follow()
                every = [item for attempts in self._attempts.values() for item in attempts]
                for attempt in due(every, self._running, self._clock.now()):
                    self._running.append(attempt)
                    group.create_task(self._try(attempt), name=f"input {attempt.wanted.cid}")
                await self._clock.sleep(LOOK_SECONDS)

    def _follow(self) -> None:
        """Reads what has changed in the table of runs."""
        now = self._clock.now()
        for job_id in self._changed:
            job = self._state.jobs.get(job_id)
            if job is None:
                self._attempts.pop(job_id, None)
                self._known.discard(job_id)
            elif job_id not in self._known:
                self._known.add(job_id)
                every = [Attempt(wanted, now) for wanted in wanted_by(job)]
                self._attempts[job_id] = [
                    item for item in every if self._sources or item.wanted.gateways
                ]
        self._changed.clear()
        # A run whose inputs are all here is not looked at again.
        for job_id, attempts in list(self._attempts.items()):
            if all(attempt.is_done for attempt in attempts):
                del self._attempts[job_id]

    async def _try(self, attempt: Attempt) -> None:
        wanted = attempt.wanted
        named = (gateway_source("job", url, self._may_be_private) for url in wanted.gateways)
        sources = in_order(named, self._sources)
        try:
            await self._staging.take_in(
                wanted.cid, wanted.client, wanted.bytes_max, sources, FETCH_SECONDS
            )
            attempt.is_done = True
        except (Refused, Unavailable) as error:
            # Not re-raised: the run goes on, and providers may have the input from elsewhere.
            log.info("input %s is not in the staging store: %s", wanted.cid, error)
            attempt.at = self._clock.now() + attempt.pause_seconds
            attempt.pause_seconds = min(2 * attempt.pause_seconds, RETRY_SECONDS_MAX)
        finally:
            self._running.remove(attempt)
