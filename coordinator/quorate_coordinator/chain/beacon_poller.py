"""Fetches the beacon rounds that jobs wait for."""

import logging
from collections.abc import Awaitable, Callable

from quorate_coordinator.core.events import RoundAppeared
from quorate_protocol.ports import Beacon, Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Round
from quorate_runtime.process.health import Board

POLL_SECONDS = 0.25

log = logging.getLogger(__name__)


class BeaconPoller:
    """One task of the service, which fetches rounds. While the beacon does not answer, jobs wait
    longer. A round that failed is asked for last, so that a beacon that lies about one round does
    not delay the others.
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
        """`url` is used only in the message on the health board."""
        self._wanted, self._submit, self._beacon, self._url, self._board, self._clock = (
            wanted,
            submit,
            beacon,
            url,
            board,
            clock,
        )
        self._failed: set[Round] = set()

    async def run(self) -> None:
        """Fetches rounds until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Asks once for each round that jobs wait for, and stops at the first that fails."""
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
                self._board.put("beacon")
            if found is not None:
                await self._submit(RoundAppeared(found.round, found.signature, found.randomness))
