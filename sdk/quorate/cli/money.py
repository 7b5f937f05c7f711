"""Commands about the client's own money: balance, withdraw, reclaim and lead."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from quorate.base.errors import EvidenceError, UnavailableError
from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.client.base.client_ledger import Ledger
from quorate.client.base.profile import (
    Profile,
    account_address,
    lead_setting,
    read_settings,
    set_lead,
)
from quorate.client.market import Market
from quorate.client.money.balances import Balances, CoordinatorBalance, read_balances
from quorate.client.money.chain_access import find_chain, one_at_a_time, open_chain
from quorate.client.money.moments import moment
from quorate.client.money.order_escrow import reclaim as take_back
from quorate.client.money.taking_out import receiver_of, state_lines, take_out
from quorate.client.money.withdrawal import GiveBack, WithdrawalState
from quorate.job.quantities import format_amount, parse_amount
from quorate_contracts.money_texts import Currency
from quorate_runtime.clock import SystemClock

ChainUrl = Annotated[
    str, typer.Option(help="URL of a chain node; default: the one that the coordinator named.")
]


def balance(ctx: typer.Context, chain_url: ChainUrl = "", json: JsonFlag = False) -> None:
    """Shows your money: in the wallet, your balance, your tabs, funded orders. It needs no
    passphrase.
    """
    context = context_of(ctx)
    home = context.readable_home()

    async def work() -> tuple[Balances, Currency]:
        settings = read_settings(home)
        identity, url = await find_chain(home, settings["coordinator"], chain_url)
        ledger = Ledger(home / "ledger.sqlite")
        try:
            async with open_chain(identity, url) as chain:
                account, lead = account_address(home), lead_setting(settings)
                return await read_balances(chain, account, ledger, lead), chain.currency
        finally:
            ledger.close()

    found, currency = run_async(work())
    if json:
        emit(_balance_json(found, currency))
        return
    for line in _balance_lines(found, currency, context.command("reclaim")):
        typer.echo(line)


def lead(
    ctx: typer.Context,
    amount: Annotated[str, typer.Argument(metavar="USD", help="Amount in USD, such as 5.")],
    json: JsonFlag = False,
) -> None:
    """Sets how far your vouchers may run ahead of the results that you checked: the most that your
    coordinator can take and give nothing for. Without it: 1 USD, or a tenth of what the
    coordinator has delivered.
    """
    wanted, home = parse_amount(amount, "lead"), context_of(ctx).readable_home()
    set_lead(home, wanted)
    if json:
        emit({"leadMicroUsd": wanted})
    else:
        typer.echo(f"lead       {format_amount(wanted)}")


def withdraw(
    ctx: typer.Context,
    amount: Annotated[
        str, typer.Argument(help="Amount in USD, such as 25; default: all that is not promised.")
    ] = "",
    to: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Account that gets it; default: your wallet.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the money has arrived.")] = False,
    chain_url: ChainUrl = "",
    json: JsonFlag = False,
) -> None:
    """Takes money back from the escrow, at once if the coordinator gives it back. If it does not,
    your tab closes: repeat the command then. It never asks twice for the same money.
    """
    context, clock = context_of(ctx), SystemClock()
    wanted = parse_amount(amount, "amount") if amount else None
    receiver = receiver_of(to) if to else None
    repeat = context.command("withdraw")
    profile = context.profile()

    async def told(state: WithdrawalState) -> None:
        for line in state_lines(state, ""):
            note(line)

    async def work() -> WithdrawalState:
        ledger = Ledger(profile.ledger_path)
        try:
            async with _asking(profile) as give_back:
                return await take_out(
                    profile,
                    ledger,
                    clock,
                    note,
                    wanted,
                    receiver,
                    give_back=give_back,
                    chain_url=chain_url,
                    told=told if wait else None,
                )
        finally:
            ledger.close()

    with one_at_a_time(profile.home):
        state = run_async(work())
    if json:
        emit(_withdrawal_json(state))
        return
    for line in state_lines(state, repeat):
        typer.echo(line)


def reclaim(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="Run by id or name, as `quorate balance` lists it.")],
    chain_url: ChainUrl = "",
    json: JsonFlag = False,
) -> None:
    """Takes back the budget of an order with an escrow of its own, once nobody can earn it any
    more. It needs no coordinator.
    """
    profile = context_of(ctx).profile()

    async def work() -> str:
        ledger = Ledger(profile.ledger_path)
        try:
            return await take_back(profile, ledger, SystemClock(), run, chain_url)
        finally:
            ledger.close()

    told = run_async(work())
    if json:
        emit({"run": run, "text": told})
    else:
        typer.echo(told)


@asynccontextmanager
async def _asking(profile: Profile) -> AsyncIterator[GiveBack | None]:
    """Settles what ended, so that it is not counted as promised, and yields how to ask the
    coordinator for money. Yields None if it does not answer.
    """
    market = Market(profile, notice=note)
    try:
        await market.__aenter__()
    except UnavailableError:
        note("the coordinator does not answer; open orders count as promised until it does")
        yield None  # not re-raised: the chain and our own ledger are enough
        return
    except EvidenceError as error:
        note(f"{error}. It is not asked to give back")
        yield None  # not re-raised: a stranger in its place must not keep our money
        return
    try:
        await market.settle_ended()
        yield market.give_back
    finally:
        await market.__aexit__(None, None, None)


def _balance_lines(found: Balances, currency: Currency, reclaim: str) -> list[str]:
    lines = [
        f"account    0x{found.account.hex()} on {currency.chain}",
        f"wallet     {format_amount(found.wallet)} in {currency.name}",
        f"gas        {currency.coins(found.coins_wei)}",
        f"balance    {format_amount(found.balance)}, promised to nobody",
    ]
    for item in found.coordinators:
        lines += _coordinator_lines(item)
    for order in found.funded:
        name = f"{order.job_id.hex()[:12]} ({order.name})"
        lines.append(
            f"escrow     {format_amount(order.budget)} of run {name} until {moment(order.until)}: "
            f"then `{reclaim} {order.job_id.hex()[:12]}`"
        )
    return lines


def _coordinator_lines(item: CoordinatorBalance) -> list[str]:
    closing = f"; it closes {moment(item.tab.closes_at)}" if item.tab.closes_at else ""
    name = f"coordinator 0x{item.coordinator.hex()}"
    lines = [f"tab        {format_amount(item.free)} for {name}{closing}"]
    if item.vouched or item.promises.orders:
        lines.append(
            f"promised   {format_amount(item.vouched)} by vouchers, "
            f"{format_amount(item.promises.orders)} more to open orders"
        )
    used = format_amount(item.lead.in_use)
    lines.append(f"lead       {format_amount(item.lead.most)} before results; {used} is in use")
    return lines


def _balance_json(found: Balances, currency: Currency) -> dict[str, Any]:
    return {
        "account": f"0x{found.account.hex()}",
        "chainId": currency.chain_id,
        "token": f"0x{currency.token.hex()}",
        "symbol": currency.symbol,
        "walletMicroUsd": found.wallet,
        "coinsWei": str(found.coins_wei),
        "balanceMicroUsd": found.balance,
        "coordinators": [
            {
                "coordinator": f"0x{item.coordinator.hex()}",
                "lockedMicroUsd": item.tab.locked,
                "paidMicroUsd": item.tab.paid,
                "closesAt": item.tab.closes_at or None,
                "vouchedMicroUsd": item.vouched,
                "openOrdersMicroUsd": item.promises.orders,
                "leadMicroUsd": item.lead.most,
                "leadInUseMicroUsd": item.lead.in_use,
                "withdrawableMicroUsd": item.withdrawable,
            }
            for item in found.coordinators
        ],
        "escrows": [
            {
                "jobId": f"0x{order.job_id.hex()}",
                "name": order.name,
                "budgetMicroUsd": order.budget,
                "until": order.until,
            }
            for order in found.funded
        ],
    }


def _withdrawal_json(state: WithdrawalState) -> dict[str, Any]:
    return {
        "id": state.record.id,
        "amountMicroUsd": state.record.amount,
        "to": f"0x{state.record.receiver.hex()}",
        "paidMicroUsd": state.paid,
        "readyAt": state.ready_at or None,
    }
