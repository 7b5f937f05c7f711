"""Says what the replicas of a service cost before any is rented."""

from collections.abc import Callable

from quorate.cli import attach, rental_text
from quorate.cli.context import Context, note
from quorate.client.market import Market
from quorate.job.job import Job
from quorate.job.quantities import format_amount
from quorate.serving.service_file import Service
from quorate_protocol.rules import rentals
from quorate_protocol.units import Amount, Bps, Seconds

HOUR = Seconds(3600)


async def plan_service(context: Context, service: Service, is_json: bool) -> None:
    async with context.market() as market:
        if is_json:  # of one replica
            attach.show_plan(service.stable.job, await market.plan(service.stable.job), True)
        else:
            await show_service(market, service)


async def show_service(
    market: Market, service: Service, prepare: Callable[[Job], Job] = lambda job: job
) -> None:
    """Prints the plan of one replica of each revision, and what all of them cost."""
    hours = []
    for job in service.jobs():
        plan = await market.plan(prepare(job))
        attach.show_plan(job, plan, False)
        hours.append(rental_text.hour_of(plan.view))
    scale = service.scale
    now = "no offer fits now"
    if None not in hours:
        hour = sum(filter(None, hours))
        least, most = (format_amount(Amount(count * hour)) for count in (scale.least, scale.most))
        now = f"{least} to {most} an hour at the cheapest offer"
    note(f"{scale.least} to {scale.most} replicas: {now}; at most {most_of(service)} an hour")


def most_of(service: Service) -> str:
    """What all its replicas cost an hour at their `max_price`, and the fee."""
    cost = sum(rentals.cost_of(HOUR, job.price(), Bps(job.max_fee_bps)) for job in service.jobs())
    return format_amount(Amount(service.scale.most * cost))
