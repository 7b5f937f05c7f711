"""Says in words what a rental costs, how it stands, and how to get into it."""

from typing import Any

from quorate.cli.context import Context
from quorate.cli.rendering import limits_text, offers_text, source_rows
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.market import Plan
from quorate.client.money import rental_charges
from quorate.client.money.moments import moment
from quorate.job.job import Job
from quorate.job.quantities import format_amount, format_duration
from quorate_protocol.messages.views import PlanView, RunView
from quorate_protocol.quantity_input import size_text
from quorate_protocol.rules import rentals
from quorate_protocol.units import Amount, Seconds


def rental_rows(plan: Plan, job: Job) -> list[list[str]]:
    packed, view, spec = plan.packed, plan.view, plan.packed.spec
    ahead = format_duration(job.ahead_seconds())
    idle = format_duration(spec.idle_stop) if spec.idle_stop else "never"
    hour = hour_of(view)
    said = f"{format_amount(hour)} an hour with the fee, by the second" if hour else "no offer fits"
    longest = f", or after {format_duration(spec.max_duration)}" if job.max_duration else ""
    signed = f"at most {format_amount(plan.reserved)}, for {ahead} at your max_price"
    if not plan.lead.fits(plan.reserved):
        signed = plan.lead.text(plan.reserved)
    expected = plan.estimate.expected if plan.estimate else None
    return [
        ["rental", f"{job.name} ({job.type})"],
        ["limits", limits_text(spec)],
        ["image", spec.image],
        *source_rows(packed),
        ["upload", f"{size_text(plan.upload_bytes)} of {size_text(packed.upload_bytes)}"],
        ["offers that fit", offers_text(view)],
        ["price", said],
        [f"for {ahead}", "unknown" if expected is None else f"about {format_amount(expected)}"],
        ["you sign ahead", signed],
        ["ends", f"by `quorate stop`, once nothing more is paid, idle for {idle}{longest}"],
        ["fee", f"{view.fee_bps / 100:g} %; you sign no higher fee"],
    ]


def hour_of(view: PlanView) -> Amount | None:
    """What an hour at the cheapest free offer costs with the fee."""
    if view.price is None:
        return None
    return rentals.cost_of(Seconds(3600), view.price, view.fee_bps)


def rental_json(view: RunView, entry: OrderRecord | None) -> dict[str, Any]:
    """What a run's JSON has more if it is a rental."""
    if view.rental is None:
        return {}
    until = 0 if entry is None else rental_charges.paid_until(entry, view.rental)
    return {"paidUntil": until, "usageSeconds": view.rental.usage_ms // 1000}


def rental_lines(view: RunView, entry: OrderRecord | None) -> list[str]:
    """How a rental stands, for people."""
    rental = view.rental
    if rental is None:
        return []
    ran = format_duration(rental.usage_ms // 1000)
    price = format_amount(rental.price_per_hour)
    lines = [f"rented   {ran} by its newest meter, {price} an hour and the fee"]
    if entry is not None and rental.started_at:
        until = moment(rental_charges.paid_until(entry, rental))
        signed = format_amount(entry.reserved)
        lines.append(f"paid     until {until}, for {signed} at most")
    if entry is not None and rental_charges.has_budget(entry):
        lines.append(f"budget   {format_amount(view.budget)}; it ends when that is used up")
    return lines


def ways_in(context: Context, name: str) -> list[str]:
    return [
        f"shell:   {context.command(f'shell {name}')}",
        f"files:   {context.command(f'cp FILE {name}:/home/')}",
        f"ssh:     {context.command('ssh-config')}, then: ssh quorate-{name}",
        f"longer:  {context.command(f'extend {name} 8h')}",
        f"end:     {context.command(f'stop {name}')}, or stop --keep for the next time",
    ]
