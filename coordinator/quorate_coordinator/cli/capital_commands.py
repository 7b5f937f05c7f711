"""`quorate coordinator deposit|balance|limit|guarantee|payroll`: the capital in Escrow."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from quorate_contracts.encodings import PAIRS_MAX
from quorate_coordinator.base.config import TRANSACTIONS, Settings
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys, MoneyKeys
from quorate_coordinator.chain.own_money import Guarantee, OwnMoney, amount_of, payroll_call
from quorate_coordinator.chain.queries import left_of
from quorate_coordinator.cli import money_commands as money_parts
from quorate_coordinator.cli import options
from quorate_coordinator.cli.stopped_coordinator import stopped
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import tabs
from quorate_protocol.units import Address, Amount, usd

Sum = Annotated[str, typer.Argument(help="USD, such as 500")]
MOST = Amount(2**60)


def deposit(
    amount: Sum,
    accusations: Annotated[
        bool, typer.Option("--accusations", help="For the posting key, which burns it in court")
    ] = False,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_parts.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Put tokens of the account into Escrow. Payrolls and guarantees come from there."""
    with money_parts.sentences():
        sum_ = amount_of(amount, MOST, "AMOUNT")
        folder, settings, keys = money_parts.opened(home, password_file)
        with money_parts.alone(folder):
            held = asyncio.run(_deposit(folder, settings, keys, sum_, accusations, yes))
    if as_json:
        typer.echo(json.dumps({"deposited": sum_, "balance": held}))
        return
    whose = "for accusations" if accusations else "in Escrow"
    typer.echo(f"{usd(sum_)} USD deposited; {usd(held)} USD are {whose}")


async def _deposit(
    folder: Path, settings: Settings, keys: MoneyKeys, sum_: Amount, for_court: bool, yes: bool
) -> Amount:
    async with money_parts.own_money(folder, settings, keys) as money:
        receiver = keys.posting.address if for_court else None
        money_parts.confirm(yes, f"Put {usd(sum_)} USD of the account into Escrow?")
        await money.deposit(sum_, receiver)
        return await money.capital(receiver)


def balance(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what is in Escrow, what is locked, and what the keys hold."""
    with money_parts.sentences():
        folder, settings, keys = money_parts.opened(home, password_file)
        facts = asyncio.run(_balance(folder, settings, keys))
    if as_json:
        typer.echo(json.dumps(facts))
        return
    names = {
        "balance": "in Escrow, for pay and guarantees",
        "locked": "locked as guarantees",
        "accusations": "in Escrow for accusations",
        "account": "tokens of the account",
        "unpaid": "signed and not paid",
    }
    for name, amount in facts.items():
        told = "unknown: nothing answers" if amount is None else f"{usd(Amount(amount))} USD"
        typer.echo(f"{name:12} {told}  {names[name]}")


async def _balance(folder: Path, settings: Settings, keys: MoneyKeys) -> dict[str, Amount | None]:
    async with money_parts.own_money(folder, settings, keys) as money:
        view = await money_parts.running(settings)
        return {
            "balance": await money.capital(),
            "locked": Amount(sum(each.free for each in await money.guarantees())),
            "accusations": await money.capital(keys.posting.address),
            "account": await money.balance(),
            "unpaid": None if view is None else view.money.unpaid,
        }


def limit(
    payroll_usd: Annotated[str, typer.Option("--payroll", help="USD of payrolls in a day")] = "",
    locks_usd: Annotated[
        str, typer.Option("--locks", help="USD to lock and to give back in a day")
    ] = "",
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_parts.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Show or set what the posting key may move in a day, which is what a thief of it may move."""
    with money_parts.sentences():
        folder, settings, keys = money_parts.opened(home, password_file)
        wanted = payroll_usd, locks_usd
        with money_parts.alone(folder):
            facts = asyncio.run(_limit(folder, settings, keys, wanted, yes))
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name in ("payroll", "locks"):
        row = facts[name]
        typer.echo(
            f"{name:8} {usd(row['limit'])} USD a day, {usd(row['moved'])} of it today; suggested: "
            f"{usd(row['suggested'])}"
        )


async def _limit(
    folder: Path, settings: Settings, keys: MoneyKeys, wanted: tuple[str, str], yes: bool
) -> dict[str, dict[str, Amount]]:
    async with money_parts.own_money(folder, settings, keys) as money:
        now = await money.limits()
        if any(wanted):
            before = Amount(now.payroll), Amount(now.locks)
            names = "--payroll", "--locks"
            payroll, locks = (
                amount_of(text, MOST, name) if text else old
                for text, name, old in zip(wanted, names, before, strict=True)
            )
            told = f"{usd(payroll)} USD of payrolls and {usd(locks)} USD of locks in a day"
            money_parts.confirm(yes, f"Let the posting key move {told}?")
            await money.send(money.contracts.escrow.set_limits(payroll, locks))
            now = await money.limits()
        pays, locked = await money.limits_suggested()
        return {
            "payroll": {"limit": Amount(now.payroll), "moved": now.paid, "suggested": pays},
            "locks": {"limit": Amount(now.locks), "moved": Amount(now.moved), "suggested": locked},
        }


def guarantee(
    provider: Annotated[str, typer.Argument(help="Address of the provider; none shows all")] = "",
    amount: Annotated[str, typer.Option("--raise", help="USD to lock beside what is locked")] = "",
    close: Annotated[bool, typer.Option("--close", help="Begin to take it back")] = False,
    finish: Annotated[bool, typer.Option("--finish", help="Take it back after its delay")] = False,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_parts.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what is locked for providers; raise, close or finish one."""
    with money_parts.sentences():
        acts = sum(map(bool, (amount, close, finish)))
        if acts > 1 or bool(acts) != bool(provider):
            raise Refused(Code.MALFORMED, "name a provider and one of --raise, --close, --finish")
        payee = money_parts.address_of(provider, "PROVIDER") if provider else None
        folder, settings, keys = money_parts.opened(home, password_file)
        with money_parts.alone(folder):
            act = "close" if close else "finish" if finish else amount
            found = asyncio.run(_guarantee(folder, settings, keys, payee, act, yes))
    if as_json:
        rows = [
            {"provider": "0x" + it.payee.hex(), "free": it.free, "closesAt": it.tab.closes_at}
            for it in found
        ]
        typer.echo(json.dumps({"guarantees": rows}))
        return
    for it in found:
        ends = f", ends {money_parts.date(it.tab.closes_at)}" if it.tab.closes_at else ""
        typer.echo(f"0x{it.payee.hex()}  {usd(it.free)} USD{ends}")
    if not found:
        typer.echo("nothing is locked")


async def _guarantee(
    folder: Path, settings: Settings, keys: MoneyKeys, payee: Address | None, act: str, yes: bool
) -> list[Guarantee]:
    async with money_parts.own_money(folder, settings, keys) as money:
        if payee is not None:
            await _change(money, payee, act, yes)
        return await money.guarantees()


async def _change(money: OwnMoney, payee: Address, act: str, yes: bool) -> None:
    escrow = money.contracts.escrow
    if act == "close":
        told = "its provider takes no more work of this coordinator beyond its own trust"
        money_parts.confirm(yes, f"Close this guarantee? {told}")
        await money.send(escrow.close(payee))
    elif act == "finish":
        await money.send(escrow.finish(money.account, payee))
    else:
        sum_ = amount_of(act, await money.capital(), "--raise")
        money_parts.confirm(yes, f"Lock {usd(sum_)} USD more?")
        await money.send(escrow.lock(payee, sum_))


def payroll(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_parts.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Pay now what is signed and unpaid, while the coordinator does not run. It pays by itself."""
    with money_parts.sentences():
        folder, settings, _ = money_parts.opened(home, password_file)
        whole = money_parts.opened_whole(folder, settings, password_file)
        count, sum_ = asyncio.run(_payroll(folder, settings, whole, yes))
    if as_json:
        typer.echo(json.dumps({"paid": sum_, "accounts": count}))
        return
    typer.echo(f"{usd(sum_)} USD paid to {count} accounts" if count else "nothing is unpaid")


async def _payroll(
    folder: Path, settings: Settings, keys: CoordinatorKeys, yes: bool
) -> tuple[int, Amount]:
    """Pays from the chain's present tabs, so that a repeat pays nothing twice."""
    account, money_keys = keys.account.address, MoneyKeys(keys.account, keys.posting)
    async with (
        stopped(folder, settings, keys) as there,
        money_parts.own_money(folder, settings, money_keys, TRANSACTIONS) as money,
    ):
        contracts, state = money.contracts, there.core.state
        owed: dict[Address, tuple[Amount, Amount]] = {}
        for payee in state.payees.values():
            paid = (await money.tab(payee.account, account)).paid
            if payee.vouched > paid:
                owed[payee.account] = payee.vouched, paid
        left, _ = left_of(await money.limits(account))
        pays = tabs.payroll(owed, min(left, await money.capital(account)), PAIRS_MAX)
        sum_ = Amount(sum(pay.cumulative - owed[pay.payee][1] for pay in pays))
        if owed and not pays:
            raise Refused(Code.BAD_AMOUNT, "balance or today's limit leave nothing to pay with")
        if pays:
            money_parts.confirm(yes, f"Pay {usd(sum_)} USD to {len(pays)} accounts?")
            call = payroll_call(contracts, account, state.own.log.root(), pays)
            await money.send(call)
        return len(pays), sum_
