"""Fetches the beacon rounds that jobs wait for, and looks whether the newest one is there."""

import logging
from collections.abc import Awaitable, Callable

from quorate_coordinator.core.model.events import RoundAppeared
from quorate_protocol.messages.beacon_rounds import round_at, round_time
from quorate_protocol.messages.ports import Beacon, Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Round
from quorate_runtime.process.health import Board
from quorate_runtime.process.log_throttle import LogThrottle

POLL_SECONDS = 0.25
NEWEST_SECONDS = 10.0  # between looks at the newest round
LATE_SECONDS = 5  # how late a round may appear

log = logging.getLogger(__name__)


class BeaconPoller:
    """Fetches rounds. While the beacon does not answer, jobs wait longer. A round that failed is
    asked for last, so that a beacon that lies about one round does not delay the others.
    """

    def __init__(
        self,
        wanted: Callable[[], list[Round]],
        submit: Callable[[RoundAppeared], Awaitable[object]],
        beacon: Beacon,
        url: str,
        board: Board,
        clock: Clock,
    ) -> None:
        """`url` is only for the message on the health board."""
        self._wanted, self._submit, self._beacon, self._url, self._board, self._clock = (
            wanted,
            submit,
            beacon,
            url,
            board,
            clock,
        )
        self._failed: set[Round] = set()
        self._newest_problem = ""
        self._next_newest = 0.0
        self._throttle = LogThrottle(log, clock)

    async def run(self) -> None:
        while True:
            await self.look()
            # The clock may have been set back.
            if not 0 < self._next_newest - self._clock.now() <= NEWEST_SECONDS:
                await self.look_at_newest()
                self._next_newest = self._clock.now() + NEWEST_SECONDS
            await self._clock.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Stops at the first round that fails."""
        wanted = self._wanted()
        self._failed &= set(wanted)
        for number in sorted(wanted, key=lambda number: (number in self._failed, number)):
            try:
                found = await self._beacon.round(number)
            except (Refused, Unavailable) as error:
                # Not re-raised: jobs wait until the round comes, or until it counts as missing.
                log.warning("beacon round %d: %s", number, error)
                self._board.put("beacon", f"{error}; look at the beacon at {self._url}")
                self._failed.add(number)
                return
            self._failed.discard(number)
            if not self._failed:
                self._board.put("beacon", self._newest_problem)
            if found is not None:
                await self._submit(RoundAppeared(found.round, found.signature, found.randomness))

    async def look_at_newest(self) -> None:
        """So an idle coordinator notices a beacon that is away."""
        problem = await self._problem_of_newest()
        if problem:
            self._throttle.failed(problem)
        else:
            self._throttle.recovered("the beacon answers again")
        if problem != self._newest_problem:
            self._newest_problem = problem
            if problem or not self._failed:
                self._board.put("beacon", problem)

    async def _problem_of_newest(self) -> str:
        now = int(self._clock.now())
        number = round_at(self._beacon.info, now - LATE_SECONDS)
        if number < 1:
            return ""  # it has not begun
        try:
            found = await self._beacon.round(number)
        except (Refused, Unavailable) as error:
            # Not re-raised: it is the problem.
            return f"{error}; look at the beacon at {self._url}"
        if found is not None:
            return ""
        late = now - round_time(self._beacon.info, number)
        return (
            f"round {number} is missing {late} s after its time; look at the beacon at {self._url} "
            "and at this machine's clock"
        )
