"""What follows the order of a rental: it waits for the machine and says how to get in."""

import asyncio

import typer

from quorate.base.errors import UsageError
from quorate.cli import openssh
from quorate.cli.context import Context, emit, note
from quorate.cli.rental_text import ways_in
from quorate.client.market import Market
from quorate.client.money.moments import moment
from quorate.client.rental import Rental
from quorate.client.run import Run
from quorate.client.secret_sender import until_delivered
from quorate.rentals.homes import HOME_MOUNT, UNPACK
from quorate_protocol.messages import job_spec


async def check_name(market: Market, name: str) -> None:
    """Raises UsageError if an open rental has the name: plain `ssh` finds machines by it."""
    if any(entry.name == name for entry in market.open_rentals()):
        await market.settle_ended()
    if any(entry.name == name for entry in market.open_rentals()):
        raise UsageError(
            f"name: you rent {name} already: `quorate shell {name}`; or choose another name"
        )


async def follow(context: Context, market: Market, run: Run, detach: bool, is_json: bool) -> None:
    rental = await market.rental(run.job_id)
    if detach:  # nobody may be there when it starts
        await rental.session.api.allow(run.job_id, rental.reserved())
        await until_delivered(rental.session, run.job_id)
        emit({"jobId": run.id, "name": run.name}) if is_json else typer.echo(run.id)
        return
    note(f"rental {run.name} ({run.id[:14]}) is ordered; waiting for its machine")
    view = await rental.started()
    await prepare(context, market, rental)
    assert view.rental is not None, "it has started"
    until = rental.paid_until(view.rental)
    if is_json:
        words = openssh.words_of(rental, "ssh", rental.host.alias)
        price = view.rental.price_per_hour
        emit(
            {
                "jobId": run.id,
                "name": run.name,
                "ssh": words,
                "pricePerHourMicroUsd": price,
                "paidUntil": until,
            }
        )
        return
    note(f"it runs, and is paid until {moment(until)}; a shell or a copy lets it go on")
    for line in ways_in(context, run.name):
        note(line)


async def prepare(context: Context, market: Market, rental: Rental) -> None:
    """Pins the host key, writes the configuration of `ssh`, and unpacks the home, each once."""
    openssh.need("ssh")
    await rental.running()
    await rental.pin()
    openssh.write_config(context, market)
    spec = job_spec.decode(market.entry(rental.run.job_id).spec)
    mark = rental.files.unpacked(rental.run.job_id)
    if any(item.mount == HOME_MOUNT for item in spec.inputs) and not mark.exists():
        note("unpacking your home")
        await asyncio.to_thread(openssh.output, rental, UNPACK)
        mark.touch()
