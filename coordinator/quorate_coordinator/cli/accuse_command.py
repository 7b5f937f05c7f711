"""`quorate coordinator accuse RECEIPT`: takes a wrong result to court, by hand."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from quorate_contracts.accusations import burned, case_of, least_pay, read_receipt
from quorate_contracts.calls import ask
from quorate_coordinator.base.config import Settings
from quorate_coordinator.base.coordinator_keys import MoneyKeys
from quorate_coordinator.chain.own_money import amount_of
from quorate_coordinator.cli import money_commands as money_parts
from quorate_coordinator.cli import options
from quorate_protocol.limits import BY_NAME
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, UnixSeconds, usd


def accuse(
    receipt: Annotated[Path, typer.Argument(help="A receipt with two different results")],
    provider: Annotated[
        str, typer.Option(help="Whom to accuse; the one whose result fewest gave unless named")
    ] = "",
    pay: Annotated[
        str, typer.Option(help="USD for a juror beside its gas, if the least is too little")
    ] = "",
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_parts.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Take a wrong result to court. It burns what a jury costs, from the balance in Escrow."""
    with money_parts.sentences():
        accused = money_parts.address_of(provider, "--provider") if provider else None
        content = _content(receipt)
        folder, settings, keys = money_parts.opened(home, password_file)
        with money_parts.alone(folder):
            task = _accuse(folder, settings, keys, content, accused, pay, yes)
            execution, who, cost = asyncio.run(task)
    if as_json:
        facts = {"execution": "0x" + execution.hex(), "accused": "0x" + who.hex(), "burned": cost}
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"a case is open against 0x{who.hex()}; {usd(cost)} USD are burned")
    typer.echo("`quorate coordinator up` advances it if it still has the job")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(Code.MALFORMED, f"RECEIPT {path}: {error.strerror}") from error


async def _accuse(
    folder: Path,
    settings: Settings,
    keys: MoneyKeys,
    content: bytes,
    accused: Address | None,
    pay_usd: str,
    yes: bool,
) -> tuple[bytes, Address, Amount]:
    limits, domain = BY_NAME[settings.deployment.limits], settings.deployment.domain()
    async with money_parts.own_money(folder, settings, keys) as money:
        now = UnixSeconds((await money.client.head()).time)
        case = case_of(read_receipt(content), domain, limits, now, accused)
        least, held = least_pay(case, limits), await money.capital()
        pay = amount_of(pay_usd, held, "--pay") if pay_usd else least
        if pay < least:
            raise Refused(Code.BAD_AMOUNT, f"--pay: a juror gets {usd(least)} USD at least")
        cost, execution = burned(pay, limits), case.run.assignment.digest(domain)
        if (await ask(money.client, money.contracts.court.case_of(execution))).phase:
            raise Refused(Code.REPLAYED, "a case over this execution is open, or was decided")
        if held < cost:
            lacks = f"`quorate coordinator deposit {usd(Amount(cost - held))}`"
            told = f"an accusation burns {usd(cost)} USD, and {usd(held)} are in Escrow: {lacks}"
            raise Refused(Code.INSUFFICIENT_FUNDS, told)
        who = case.run.assignment.message.provider
        told = f"{usd(cost)} USD in Escrow are burned, whatever the jury says"
        money_parts.confirm(yes, f"Accuse 0x{who.hex()}? {told}")
        await money.send(money.contracts.court.open_case(case.shown(), pay))
        return execution, who, cost
