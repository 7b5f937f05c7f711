"""Commands about the client's own money: balance, withdraw and lead."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.errors import EvidenceError, UnavailableError

if TYPE_CHECKING:
    from quorate.client.money.balances import Balances, CoordinatorBalance
    from quorate.client.money.withdrawal import WithdrawalState
    from quorate.client.profile import Profile
    from quorate_contracts.money_texts import Currency
    from quorate_protocol.messages.views import AccountView

SETTLE_SECONDS = 60.0
ChainUrl = Annotated[
    str, typer.Option(help="URL of a chain node; default: the one that the coordinator named.")
]


def balance(ctx: typer.Context, chain_url: ChainUrl = "", json: JsonFlag = False) -> None:
    """Shows your money: in the wallet, deposited, promised, on its way out. It needs no
    passphrase.
    """
    from quorate.client.client_ledger import Ledger
    from quorate.client.money.balances import read_balances
    from quorate.client.money.chain_access import find_chain, open_chain
    from quorate.client.profile import account_address, lead_setting, read_settings
    from quorate_runtime.clock import SystemClock

    context = context_of(ctx)
    home = context.readable_home()

    async def work() -> "tuple[Balances, Currency]":
        settings = read_settings(home)
        identity, url = await find_chain(home, settings["coordinator"], chain_url)
        ledger = Ledger(home / "ledger.sqlite")
        try:
            async with open_chain(identity, url) as chain:
                account, now = account_address(home), SystemClock().now()
                lead = lead_setting(settings)
                return await read_balances(chain, account, ledger, now, lead), chain.currency
        finally:
            ledger.close()

    found, currency = run_async(work())
    if json:
        emit(_balance_json(found, currency))
        return
    for line in _balance_lines(found, currency, context.command("withdraw")):
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
    from quorate.client.profile import set_lead
    from quorate.job.quantities import format_amount, parse_amount

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
    """Takes money back from the escrow. Repeat it after the waiting time; it never asks twice for
    the same money.
    """
    from quorate.client.client_ledger import Ledger
    from quorate.client.money.chain_access import one_at_a_time
    from quorate.client.money.taking_out import receiver_of, state_lines, take_out
    from quorate.job.quantities import parse_amount
    from quorate_runtime.clock import SystemClock

    context, clock = context_of(ctx), SystemClock()
    wanted = parse_amount(amount, "amount") if amount else None
    receiver = receiver_of(to) if to else None
    repeat = context.command("withdraw")
    profile = context.profile()

    async def told(state: "WithdrawalState") -> None:
        for line in state_lines(state, ""):
            note(line)

    async def work() -> "WithdrawalState":
        seen = await _settled(profile)
        ledger = Ledger(profile.ledger_path)
        try:
            return await take_out(
                profile,
                ledger,
                clock,
                note,
                wanted,
                receiver,
                seen=seen,
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


async def _settled(profile: "Profile") -> "AccountView | None":
    """Settles what ended, so that it is not counted as promised, and returns the coordinator's
    account of this client. Returns None if the coordinator does not answer.
    """
    from quorate.client.market import Market

    try:
        async with Market(profile, notice=note) as market:
            await market.settle_ended()
            return await market.account()
    except UnavailableError:
        note("the coordinator does not answer; open orders count as promised until it does")
        return None  # not re-raised: the chain and our own ledger are enough
    except EvidenceError as error:
        note(f"{error}. It is not asked what you owe")
        return None  # not re-raised: a stranger in its place must not keep our money


def _balance_lines(found: "Balances", currency: "Currency", withdraw: str) -> list[str]:
    from quorate.client.money.moments import moment
    from quorate.job.quantities import format_amount

    unallocated = format_amount(found.unallocated)
    lines = [
        f"account    0x{found.account.hex()} on {currency.chain}",
        f"wallet     {format_amount(found.wallet)} in {currency.name}",
        f"gas        {currency.coins(found.coins_wei)}",
        f"deposited  {format_amount(found.deposited)}, {unallocated} of it unallocated",
    ]
    for item in found.coordinators:
        lines += _coordinator_lines(item)
    pending = found.withdrawal
    if pending.ready_at:
        releases = [c.allocation.release_at for c in found.coordinators]
        ready_at = max([pending.ready_at, *releases])
        amount = format_amount(pending.amount)
        lines.append(f"waiting    {amount} until {moment(ready_at)}: then `{withdraw}`")
    return lines


def _coordinator_lines(item: "CoordinatorBalance") -> list[str]:
    from quorate.job.quantities import format_amount

    lines = [f"allocated  {format_amount(item.left)} to coordinator 0x{item.coordinator.hex()}"]
    if item.vouched or item.promises.orders:
        lines.append(
            f"promised   {format_amount(item.vouched)} by vouchers, "
            f"{format_amount(item.promises.orders)} more to open orders"
        )
    used = format_amount(item.lead.in_use)
    lines.append(f"lead       {format_amount(item.lead.most)} before results; {used} is in use")
    return lines


def _balance_json(found: "Balances", currency: "Currency") -> dict[str, Any]:
    return {
        "account": f"0x{found.account.hex()}",
        "chainId": currency.chain_id,
        "token": f"0x{currency.token.hex()}",
        "symbol": currency.symbol,
        "walletMicroUsd": found.wallet,
        "coinsWei": str(found.coins_wei),
        "depositedMicroUsd": found.deposited,
        "unallocatedMicroUsd": found.unallocated,
        "coordinators": [
            {
                "coordinator": f"0x{item.coordinator.hex()}",
                "allocatedMicroUsd": item.left,
                "vouchedMicroUsd": item.vouched,
                "openOrdersMicroUsd": item.promises.orders,
                "leadMicroUsd": item.lead.most,
                "leadInUseMicroUsd": item.lead.in_use,
                "withdrawableMicroUsd": item.withdrawable,
                "releasingMicroUsd": item.allocation.releasing,
                "releaseAt": item.allocation.release_at,
            }
            for item in found.coordinators
        ],
        "withdrawingMicroUsd": found.withdrawal.amount,
        "withdrawalAt": found.withdrawal.ready_at,
    }


def _withdrawal_json(state: "WithdrawalState") -> dict[str, Any]:
    return {
        "id": state.record.id,
        "amountMicroUsd": state.record.amount,
        "to": f"0x{state.record.receiver.hex()}",
        "paidMicroUsd": state.paid,
        "readyAt": state.ready_at or None,
        "unpostedMicroUsd": state.unposted,
    }
