"""Commands that rent a machine, and pay for it: rent, extend, keep."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.base.errors import CancelledError, UsageError
from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.cli.job_flags import job_of
from quorate.cli.jobs import Detach, DryRun, ImageName, Yes, start
from quorate.cli.network_flags import NETWORK, NetworkFlags, with_network
from quorate.client.money.moments import moment
from quorate.job.quantities import format_amount
from quorate_runtime.process.settings_flags import Option, with_flags

RENTED = (
    *("max_price", "gpu", "min_compute_capability", "cpu", "memory", "disk", "tmp", "shm"),
    *("inputs", "env", "workdir", "s3_endpoint", "budget", "max_duration", "start_within"),
    *("pool", "attestation"),
)
RentalName = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of a rental.")]


class RentalFlags(NetworkFlags, frozen=True):
    """The flags of `quorate rent`, of which those of RENTED are those of `quorate run`."""

    ahead: Annotated[str, Option("How long it is paid ahead; more with `extend`.", "--for")] = "10m"
    home_from: Annotated[str, Option("Folder, or name of a kept home, that lies in its /home.")] = (
        ""
    )
    idle_stop: Annotated[str, Option("End it after so long without use; 0 for never.")] = "30m"
    spot: Annotated[bool, Option("Let it run where its owner may end it within 30 s; cheaper.")] = (
        False
    )
    access: Annotated[
        list[str] | None, Option("File of a public SSH key that may connect too. Repeatable.")
    ] = None


OWN = ("ahead", "home_from", "idle_stop", "access", "spot")


@with_flags(RentalFlags, names=(*RENTED, *OWN, *NETWORK))
def rent(
    ctx: typer.Context,
    image: ImageName,
    name: Annotated[str, typer.Argument(help="How you call the machine.")] = "dev",
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    json: JsonFlag = False,
    **typed: Any,
) -> None:
    """Rents a machine by the minute: quorate rent python:3.12 dev --max-price 0.50 --for 8h."""
    flags = RentalFlags(**typed)
    made = replace(job_of(flags, image, [], flags.max_price), type="dev-environment")
    job = replace(
        with_network(made, flags),
        name=name,
        ahead=flags.ahead,
        idle_stop=flags.idle_stop,
        spot=flags.spot,
        home=flags.home_from,
        access=tuple(_public_key(Path(path)) for path in flags.access or ()),
    )
    start(context_of(ctx), job, yes, dry_run, detach, json)


def _public_key(path: Path) -> str:
    try:
        return " ".join(path.read_text().split()[:2])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--access: {path}: {error}; name a file such as id_ed25519.pub"
        ) from error


def extend(
    ctx: typer.Context,
    name: RentalName,
    time: Annotated[str, typer.Argument(help='How long it goes on from now, such as "8h".')],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Sign without asking.")] = False,
    json: JsonFlag = False,
) -> None:
    """Pays a rental ahead, so that it goes on without any command."""

    async def work() -> None:
        async with context_of(ctx).market() as market:
            rental = await market.rental(name)
            more = await rental.extension(time)
            if not json and not more:
                note("nothing is added: it is paid for longer already")
            asked = f"Extend {rental.run.called} by signing {format_amount(more)} more?"
            agrees = yes or json or not more or not sys.stdin.isatty()
            if not agrees and not await asyncio.to_thread(typer.confirm, asked, err=True):
                raise CancelledError("nothing was signed")
            until, most = await rental.extend(time), rental.reserved()
        if json:
            emit({"jobId": rental.id, "paidUntil": until, "signedMicroUsd": most})
        else:
            signed = f"; you signed {format_amount(more)} more" if more else ""
            note(f"rental {rental.run.called} is paid until {moment(until)}{signed}")

    run_async(work())


def keep(ctx: typer.Context, name: RentalName, json: JsonFlag = False) -> None:
    """Lets a rental go on until you press Ctrl-C, two minutes at a time."""

    async def work() -> None:
        async with context_of(ctx).market() as market:
            rental = await market.rental(name)
            await rental.running()
            await rental.keep()
            note(f"rental {rental.run.called} goes on while this runs")
            view = await rental.run.wait()
            await market.settle_ended()
        if json:
            emit({"jobId": rental.id, "chargedMicroUsd": view.charged})
        else:
            note(f"rental {rental.run.called} is over")

    run_async(work())
