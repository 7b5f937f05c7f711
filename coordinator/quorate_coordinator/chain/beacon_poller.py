"""Fetches the beacon rounds that jobs wait for, and looks whether the newest one is there."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class BeaconPoller:
    """Fetches rounds. While the beacon does not answer, jobs wait longer. A round that failed is
    asked for last, so that a beacon that lies about one round does not delay the others.
    """

    wanted: Callable[[], list[Round]]
    submit: Callable[[RoundAppeared], Awaitable[object]]
    beacon: Beacon
    url: str  # for the message on the health board
    board: Board
    clock: Clock
    _failed: set[Round] = field(default_factory=set)
    _newest_problem: str = ""
    _next_newest: float = 0.0
    _throttle: LogThrottle = field(init=False)

    def __post_init__(self) -> None:
        self._throttle = LogThrottle(log, self.clock)

    async def run(self) -> None:
        while True:
            await self.look()
            # The clock may have been set back.
            if not 0 < self._next_newest - self.clock.now() <= NEWEST_SECONDS:
                await self.look_at_newest()
                self._next_newest = self.clock.now() + NEWEST_SECONDS
            await self.clock.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Stops at the first round that fails."""
        wanted = self.wanted()
        self._failed &= set(wanted)
        for number in sorted(wanted, key=lambda number: (number in self._failed, number)):
            try:
                found = await self.beacon.round(number)
            except (Refused, Unavailable) as error:
                # Not re-raised: jobs wait until the round comes, or until it counts as missing.
                log.warning("beacon round %d: %s", number, error)
                self.board.put("beacon", f"{error}; look at the beacon at {self.url}")
                self._failed.add(number)
                return
            self._failed.discard(number)
            if not self._failed:
                self.board.put("beacon", self._newest_problem)
            if found is not None:
                await self.submit(RoundAppeared(found.round, found.signature, found.randomness))

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
                self.board.put("beacon", problem)

    async def _problem_of_newest(self) -> str:
        now = int(self.clock.now())
        number = round_at(self.beacon.info, now - LATE_SECONDS)
        if number < 1:
            return ""  # it has not begun
        try:
            found = await self.beacon.round(number)
        except (Refused, Unavailable) as error:
            # Not re-raised: it is the problem.
            return f"{error}; look at the beacon at {self.url}"
        if found is not None:
            return ""
        late = now - round_time(self.beacon.info, number)
        return (
            f"round {number} is missing {late} s after its time; look at the beacon at {self.url} "
            "and at this machine's clock"
        )
