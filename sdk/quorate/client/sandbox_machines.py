"""The machines of sandboxes on a Market: each is a rental of its own."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quorate.base.errors import QuorateError, RefusedError
from quorate.client.rental import Rental
from quorate.job.job import Job
from quorate_protocol.limits import BY_NAME
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.units import Amount, Bps, JobKind, Price, usd

if TYPE_CHECKING:
    from quorate.client.market import Market

OFFERS_MAX = 50


@dataclass(frozen=True, slots=True)
class RentedMachines:
    """Rents them, and says what the market offers and what was spent."""

    market: "Market"

    async def rent(self, job: Job) -> Rental:
        # The least that an order needs (PROTOCOL 12.9): if this program is killed, it ends soon.
        ahead = BY_NAME[self.market.info.limits].rental_ahead
        run = await self.market.submit(replace(job, ahead=f"{ahead}s"))
        return await self.market.rental(run.job_id)

    async def offers(self) -> list[dict[str, Any]]:
        """Returns machines on offer, cheapest first."""
        rows = [
            {
                "gpu": slot.gpu,
                "gpus": slot.pool.gpus,
                "vram_gb": slot.vram_bytes // 10**9,
                "cores": slot.cpu_millis / 1000,
                "memory_gb": slot.memory_bytes // 10**9,
                "disk_gb": slot.scratch_bytes // 10**9,
                "region": view.offer.region,
                "usd_per_hour": usd(slot.on_demand),
                "free": view.free_slots,
            }
            for view in await self.market.offers()
            for slot in view.offer.slots
            if slot.on_demand and JobKind.DEV_ENVIRONMENT in view.offer.kinds
        ]
        return sorted(rows, key=lambda row: float(str(row["usd_per_hour"])))[:OFFERS_MAX]

    async def price(self, job: Job) -> tuple[Price, Bps]:
        """Returns the cheapest price an hour of a free machine that fits, and the fee. Raises
        RefusedError.
        """
        view = (await self.market.plan(job)).view
        if view.price is None or view.refusal or view.free == 0:
            code = Code(view.refusal) if view.refusal in set(Code) else Code.NO_OFFER
            taken = f"{view.offers} fit, and none is free now; try again, or pay more"
            raise RefusedError(code.value, MEANINGS[code].sentence, view.nearest or taken)
        return view.price, view.fee_bps

    async def costs(self, beginning: str) -> tuple[Amount, Amount]:
        """Of all whose names begin so: what ended ones cost, and what others may cost."""
        with suppress(QuorateError):  # what is not settled counts with its whole budget
            await self.market.settle_ended()
        return self.market.costs_of(beginning)
