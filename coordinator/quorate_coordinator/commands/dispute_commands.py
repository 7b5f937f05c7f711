"""`quorate coordinator revoke|concede`: what an operator gives up before others take more."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate_coordinator import cli_options as options
from quorate_coordinator.commands import money_commands
from quorate_protocol.units import Amount, usd

if TYPE_CHECKING:
    from quorate_contracts.bindings.epochs import Epoch
    from quorate_coordinator.coordinator_keys import MoneyKeys
    from quorate_coordinator.settings import Settings

EpochNumber = Annotated[int, typer.Argument(min=1, help="The first epoch to take back")]
CaseNumber = Annotated[int, typer.Argument(min=1, help="The appeal, as `status` shows it")]


def revoke(
    epoch: EpochNumber,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_commands.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Take back epochs that somebody else posted with the posting key. The bond pays for it."""
    with money_commands.sentences():
        folder, settings, keys = money_commands.opened(home, password_file)
        with money_commands.alone(folder):
            voided, paid = asyncio.run(_revoke(folder, settings, keys, epoch, yes))
    if as_json:
        typer.echo(json.dumps({"voided": voided, "bondPaidMicroUsd": paid}))
        return
    if not voided:
        typer.echo(f"epoch {epoch} is void already")
        return
    typer.echo(f"void        epochs {_listed(voided)}; their vouchers stay in the pool")
    typer.echo(f"bond        paid {usd(paid)} USD; `quorate coordinator top-up` restores it")
    typer.echo("Next: keep `quorate coordinator up` running; it posts the credits again")


def concede(
    case: CaseNumber,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_commands.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Grant a provider's appeal before its jury is drawn. The bond pays what the job had cost."""
    with money_commands.sentences():
        folder, settings, keys = money_commands.opened(home, password_file)
        with money_commands.alone(folder):
            paid = asyncio.run(_concede(folder, settings, keys, case, yes))
    if as_json:
        typer.echo(json.dumps({"case": case, "bondPaidMicroUsd": paid}))
        return
    typer.echo(f"case {case} is granted: the bond paid {usd(paid)} USD, and no jury")


async def _revoke(
    folder: Path, settings: "Settings", keys: "MoneyKeys", number: int, yes: bool
) -> tuple[list[int], Amount]:
    from quorate_coordinator.chain.own_disputes import OwnDisputes

    async with money_commands.own_money(folder, settings, keys) as money:
        disputes = OwnDisputes(money)
        found = await disputes.revocable(number)
        if not found:
            return [], Amount(0)
        for epoch in found:
            money_commands.note(_epoch_line(epoch))
        cost = await disputes.revoke_cost()
        money_commands.note(f"{usd(cost)} USD of the bond are burned for it")
        money_commands.confirm(yes, "Take them back?")
        return [epoch.number for epoch in found], await disputes.revoke(number)


async def _concede(
    folder: Path, settings: "Settings", keys: "MoneyKeys", number: int, yes: bool
) -> Amount:
    from quorate_coordinator.chain.own_disputes import OwnDisputes, granted_cost, lost_cost

    async with money_commands.own_money(folder, settings, keys) as money:
        disputes = OwnDisputes(money)
        case = await disputes.appeal(number)
        money_commands.note(
            f"the bond pays provider 0x{case.accuser.hex()} at most {usd(granted_cost(case))} USD; "
            f"if a jury finds its result, at most {usd(lost_cost(case))} USD"
        )
        money_commands.confirm(yes, "Grant it?")
        return await disputes.concede(number)


def _epoch_line(epoch: "Epoch") -> str:
    return (
        f"epoch {epoch.number} of {money_commands.date(epoch.posted_at)}: "
        f"{usd(epoch.sum_final)} USD final and {usd(epoch.sum_held)} held"
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers)
