"""The machines of a service on the market: rentals, each reached over one SSH connection.

A rental's name holds the service and the revision, so the next run of the program finds those that
an earlier one left. A connection that breaks is made again on the same local port.
"""

import asyncio
import itertools
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quorate.base.errors import QuorateError
from quorate.client.market import Market
from quorate.client.rental import Rental
from quorate.job.job import Job
from quorate.serving.service_file import Revision
from quorate_protocol.units import Hash32

if TYPE_CHECKING:
    from quorate.serving.control import Machine

POLL_SECONDS = 2.0
RECONNECT_SECONDS = 1.0
LOOPBACK = "127.0.0.1"

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RentedMachine:
    """One rental. `port`: of the service, inside."""

    rental: Rental
    port: int
    price: int = 0
    _link: asyncio.Task[None] | None = None
    _opened: "asyncio.Future[int]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def name(self) -> str:
        return self.rental.run.name

    async def url(self) -> str:
        view = await self.rental.started()
        assert view.rental is not None, "a rental that runs has its view"
        self.price = int(view.rental.price_per_hour)
        if self._link is None:
            self._link = asyncio.create_task(self._hold(), name=f"link {self.name}")
        return f"http://{LOOPBACK}:{await asyncio.shield(self._opened)}"

    async def _hold(self) -> None:
        port = 0
        while True:
            try:
                async with self.rental.connect() as connection:
                    listener = await connection.forward_local_port(
                        LOOPBACK, port, LOOPBACK, self.port
                    )
                    port = listener.get_port()
                    if not self._opened.done():
                        self._opened.set_result(port)
                    await connection.wait_closed()
            except (QuorateError, OSError) as error:
                # Not re-raised: probes tell whether the replica is of use, and the rental's end
                # comes by its status.
                log.info("machine %s is not reached: %s", self.name, error)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def why_waits(self) -> str:
        view = await self.rental.run.status()
        if view.rental is not None:
            return ""
        if view.phase == "matching":
            return view.waits or "no provider has taken it yet"
        return "its provider fetches the image and the inputs"

    async def wait_end(self) -> str:
        while True:
            try:
                if why := await self.rental.why_over():
                    return why
            except QuorateError as error:
                log.info("machine %s: %s", self.name, error)  # the coordinator may come again
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        if self._link is not None:
            self._link.cancel()
            await asyncio.gather(self._link, return_exceptions=True)
        await self.rental.stop()


@dataclass(slots=True)
class RentedMachines:
    """Rents the machines of one service."""

    market: Market
    service: str
    port: int
    prepare: Callable[[Job], Job] = lambda job: job  # of each order
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def start(self, revision: Revision) -> "Machine":
        name = f"{self.service}-{revision.digest}-{os.getpid()}-{next(self._numbers)}"
        run = await self.market.submit(replace(self.prepare(revision.job), name=name))
        return RentedMachine(await self.market.rental(run.job_id), self.port)

    async def adopt(self) -> "list[tuple[str, Machine]]":
        found: list[tuple[str, Machine]] = []
        for revision, job_id in self.left():
            rental = await self.market.rental(job_id)
            if not await rental.why_over():
                found.append((revision, RentedMachine(rental, self.port)))
        return found

    def left(self) -> list[tuple[str, Hash32]]:
        """Revision and id of each rental that an earlier run may have left."""
        form = re.compile(re.escape(self.service) + r"-([0-9a-f]{12})-\d+-\d+")
        entries = self.market.open_rentals()
        named = [(form.fullmatch(entry.name), entry.job_id) for entry in entries]
        return [(match[1], job_id) for match, job_id in named if match]
