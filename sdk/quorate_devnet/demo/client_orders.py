"""Places the demo clients' orders in turns, collects their results, and orders more until the liar
is caught.
"""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from quorate.base.errors import UnavailableError
from quorate.client.base.result import Result
from quorate.client.market import Market
from quorate.client.run import Run
from quorate.job.job import Job
from quorate_devnet.demo.scenario import PRICINGS, Scene, pricing_job, tile_job

RENDERER, PRICER = 0, 1  # the client that renders, and the one that prices
EXTRA_MAX = 24
KEPT_PARTS = 1  # of each client, so that runs are under way when the coordinator is killed
AWAY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PlacedOrder:
    """One run and its part: the tile or the seed. Extra orders repeat a part."""

    client: int
    part: int
    run: Run
    is_extra: bool = False


@dataclass(slots=True)
class Orders:
    """Both clients' runs. `results` fills as runs end.

    Image and inputs are at the IPFS gateway `gateway`, so nothing is uploaded.
    """

    markets: tuple[Market, Market]
    scene: Scene
    folder: Path
    image_cid: str
    gateway: str
    placed: list[PlacedOrder] = field(default_factory=list)
    results: dict[bytes, Result] = field(default_factory=dict)
    _waiting: list[asyncio.Task[None]] = field(default_factory=list)

    async def place_first(self) -> None:
        """Places two orders of each client, because a case must concern both."""
        for client, part in ((RENDERER, 0), (PRICER, 1), (RENDERER, 1), (PRICER, 2)):
            await self._place(client, part)

    async def place_rest(self) -> int:
        """Returns how many orders it placed."""
        tiles = [(RENDERER, tile) for tile in self._not_placed(RENDERER)]
        pricings = [(PRICER, seed) for seed in self._not_placed(PRICER)]
        for client, part in interleaved(pricings, tiles):
            await self._place(client, part)
        return len(tiles) + len(pricings)

    @property
    def are_all_placed(self) -> bool:
        return sum(1 for item in self.placed if not item.is_extra) == self.scene.tiles + PRICINGS

    async def place_extra(self, client: int) -> str:
        """Places one more order of a client that the liar has not lied to yet. It is for the next
        part, and once few are left for a part again. Returns its name, or "" after too many.
        """
        left = self._not_placed(client)
        if len(left) > KEPT_PARTS:
            return await self._place(client, left[0])
        extras = sum(1 for item in self.placed if item.is_extra)
        if extras >= EXTRA_MAX:
            return ""
        part = extras % self.scene.tiles if client == RENDERER else PRICINGS + 1 + extras
        return await self._place(client, part, is_extra=True)

    async def place_escrowed(self) -> Run:
        part = PRICINGS + 1 + sum(1 for item in self.placed if item.is_extra)
        await self._place(PRICER, part, is_extra=True, escrow=True)
        return self.placed[-1].run

    def _not_placed(self, client: int) -> list[int]:
        parts = range(self.scene.tiles) if client == RENDERER else range(1, PRICINGS + 1)
        placed = {it.part for it in self.placed if it.client == client and not it.is_extra}
        return [part for part in parts if part not in placed]

    def finish(self) -> "asyncio.Future[list[None]]":
        """Waits until every result is in. Raises the first error."""
        return asyncio.gather(*self._waiting)

    async def cancel(self) -> None:
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    def failed(self) -> BaseException | None:
        ended = (task for task in self._waiting if task.done() and not task.cancelled())
        return next((error for task in ended if (error := task.exception()) is not None), None)

    def output(self, client: int) -> list[Path]:
        """Returns the output folders of a client's own parts in order."""
        wanted = sorted(
            (item.part, item.run.job_id)
            for item in self.placed
            if item.client == client and not item.is_extra
        )
        return [self.results[job_id].output for _, job_id in wanted]

    async def _place(
        self, client: int, part: int, is_extra: bool = False, escrow: bool = False
    ) -> str:
        job = replace(self._job(client, part), escrow=escrow)
        run = await self.markets[client].submit(job)
        placed_order = PlacedOrder(client, part, run, is_extra)
        self.placed.append(placed_order)
        self._waiting.append(asyncio.create_task(self._await(placed_order), name=run.name))
        return run.name

    def _job(self, client: int, part: int) -> Job:
        job = (
            tile_job(self.scene, part, self.image_cid)
            if client == RENDERER
            else pricing_job(self.folder, part, self.image_cid)
        )
        return replace(job, source="ipfs", ipfs_gateway=self.gateway)

    async def _await(self, placed_order: PlacedOrder) -> None:
        run = placed_order.run
        while run.job_id not in self.results:
            try:
                self.results[run.job_id] = await run.result()
            except UnavailableError:
                # Not re-raised: the demo kills the coordinator, also between verdict and receipt.
                await asyncio.sleep(AWAY_SECONDS)


def interleaved(few: list[tuple[int, int]], many: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merges both lists evenly."""
    placed = [
        ((2 * index + 1) / (2 * len(items)), item)
        for items in (few, many)
        for index, item in enumerate(items)
    ]
    return [item for _, item in sorted(placed)]
