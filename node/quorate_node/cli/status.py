"""`quorate node status`: what is on offer, what runs, and what it earns."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import typer

from quorate_node.base import settings as settings_file
from quorate_node.base.config import Config
from quorate_node.base.dates import date_text
from quorate_node.cli import options
from quorate_node.cli.control import ask_daemon
from quorate_node.cli.owner_desk import owner_desk
from quorate_node.owner.own_cases import OwnCase, case_line
from quorate_node.status.diagnostics import profiles_text
from quorate_node.status.pool_market import decline_counts, offer_books, standing
from quorate_node.status.status import read_status
from quorate_protocol.codec import canonical
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32, usd
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.keys.keystore import KeystoreError
from quorate_runtime.process.command_errors import EXIT_UNAVAILABLE

DAYS_PRINTED = 7
LINES_PRINTED = 5
FAILURES = (Refused, Unavailable, KeystoreError, BaseExceptionGroup)
MILLIJOULES_PER_KWH = 3_600_000_000


def status(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Show what is on offer, running jobs, stake, balances, income by day, unpaid jobs and why
    jobs may stay away. Without the daemon it shows its last status and the chain, with exit 4.
    """
    folder, down = options.home_of(home), ""
    try:
        try:
            tree = asyncio.run(ask_daemon(folder, "GET", "/v1/status?balances"))
        except Unavailable as error:
            down, tree = str(error), asyncio.run(_without_daemon(folder, error))
        market = asyncio.run(_market(folder, tree))
    except FAILURES as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps(tree))
    else:
        for line in [*([f"the daemon does not run: {down}"] if down else []), *status_lines(tree)]:
            typer.echo(line)
        for line in market:
            typer.echo(line)
    if down:
        raise typer.Exit(EXIT_UNAVAILABLE)


async def _without_daemon(folder: Path, error: Unavailable) -> canonical.Json:
    """Returns the last status that a daemon wrote, with what the chain says now. Raises `error` if
    none has run here.
    """
    last = read_status(folder / "status.json")
    if last is None:
        raise error
    settings = settings_file.read(folder)
    keys = options.locked_keys(folder, settings, None)
    account = last.account
    try:
        async with owner_desk(Config.of(settings, folder), keys, SystemClock()) as desk:
            account = await desk.state()
    except (Refused, Unavailable) as problem:
        # Not re-raised: the last status says what the chain said then.
        typer.echo(f"the chain does not answer ({problem})", err=True)
    tree = canonical.to_json(
        replace(last, account=account, connected=(), transports={}, not_on_offer="it does not run")
    )
    assert isinstance(tree, dict)
    return tree


async def _market(folder: Path, tree: canonical.Json) -> list[str]:
    """Says why jobs may stay away: the place of the price, other owners, reasons of declines."""
    urls = settings_file.read(folder).coordinators
    async with plain_session() as session:
        book = await offer_books(session, urls)
    provider = Address(bytes.fromhex(tree["provider"][2:]))
    lines = [
        f"  {slot['gpu'] or 'cpu'}: "
        f"{standing(book, Hash32(bytes.fromhex(slot['pool'][2:])), provider)}"
        for slot in tree["slots"]
    ]
    if declined := decline_counts(tree["declined"]):
        lines.append(f"  declined lately: {declined}")
    return ["market:", *lines] if lines and book else []


def status_lines(tree: canonical.Json) -> list[str]:
    why = tree.get("notOnOffer", "")
    lines = [
        f"provider {tree['provider']} · {tree['executor']} · gateway {tree['gateway']}",
        f"not on offer: {why}" if why else "on offer",
    ]
    lines += [f"  {slot_line(slot)}" for slot in tree.get("slots", [])]
    if not why:
        lines += [f"  GPU {uuid}: {said}" for uuid, said in tree.get("keptBack", {}).items()]
    if rentals := tree.get("rentals"):
        lines.append(f"rentals: {rentals}")
    if profiles := tree.get("profiles"):
        lines.append(f"profiles: {profiles_text(profiles)}")
    ended = f"{tree.get('jobsPaid', 0)} paid, {tree.get('jobsUnpaid', 0)} not paid"
    lines.append(f"jobs: {len(tree['leases'])} live, {ended} · jury duties {len(tree['jury'])}")
    lines += [f"  {lease_line(lease)}" for lease in tree["leases"]]
    lines += _coordinators(tree)
    lines += account_lines(tree["account"]) if tree.get("account", {}).get("readAt") else []
    lines += income_lines(tree.get("income", []), int(tree.get("electricity", 0)))
    lines += [
        f"  declined: {item['reason']}: {item['text']}"
        for item in tree["declined"][-LINES_PRINTED:]
    ]
    lines += [
        f"  unpaid: lease {item['lease'][:18]}: {item['why']}"
        for item in tree.get("unpaid", [])[-LINES_PRINTED:]
    ]
    return lines


def lease_line(lease: canonical.Json) -> str:
    gpus = f" on {', '.join(lease['gpus'])}" if lease.get("gpus") else ""
    came, went = lease.get("bytesIn", 0), lease.get("bytesOut", 0)
    egress = f", egress {size_text(came)} in, {size_text(went)} out" if came or went else ""
    kind = "rental" if lease.get("isRental") else "lease"
    return f"{kind} {lease['lease'][:18]} {lease['phase']}{gpus}{egress}"


def slot_line(slot: canonical.Json) -> str:
    """Returns one line about the run slots of a pool: "1/2 run slots free at 0.10 USD"."""
    gpus = f" of {slot['gpus']} x {slot['gpu']}" if slot["gpu"] else ""
    each = f" ({usd(int(slot['pricePerGpu']))} per GPU-hour)" if slot["gpu"] else ""
    level = f", attested L{slot['level']}" if slot.get("level") else ""
    offered = slot.get("offered", slot["count"])
    kept_back = f", {offered} of them on offer" if offered < slot["count"] else ""
    return (
        f"{slot['free']}/{slot['count']} run slots{gpus} free{kept_back}, at "
        f"{usd(int(slot['price']))} USD per slot-hour{each}{level}"
    )


def _coordinators(tree: canonical.Json) -> list[str]:
    lines = [f"coordinators: {len(tree['connected'])} connected"]
    for coordinator, transport in tree.get("transports", {}).items():
        lines.append(f"  coordinator {coordinator[:12]} over {transport}")
    for item in tree["earnings"]:
        lines += earning_lines(item)
    return lines


def earning_lines(item: canonical.Json) -> list[str]:
    names = ("earned", "held", "vouched", "paid", "room")
    earned, held, vouched, paid, room = (usd(int(item[name])) for name in names)
    closes_at, free = int(item["closesAt"]), usd(int(item["locked"]) - int(item["paid"]))
    tab = f"guarantees {free} USD"
    if closes_at:
        tab = f"guarantees nothing and ends at {date_text(closes_at, closes_at)}"
    name = item["coordinator"][:12]
    return [
        f"  pay of {name}: {earned} USD earned, {held} held, {vouched} by voucher, {paid} paid",
        f"    its tab {tab}; jobs of up to {room} USD are taken",
    ]


def account_lines(account: canonical.Json) -> list[str]:
    now = int(account["readAt"])
    closed, coin = [slot for slot in account["slots"] if int(slot["backAt"])], account["coin"]
    count = f"{counted(len(account['slots']) - len(closed), 'slot')} open, {len(closed)} closed"
    lines = [f"stake: {usd(int(account['stake']))} USD, {count}"]
    dates = Counter(int(slot["backAt"]) for slot in closed)
    for at in sorted(dates)[:LINES_PRINTED]:
        when = "is due now" if at <= now else f"comes back from {date_text(at, now)} on"
        lines.append(f"  the stake of {counted(dates[at], 'closed slot')} {when}")
    if lacks := int(account.get("lacks", 0)):
        lines.append(f"  {usd(lacks)} USD were burned: `quorate node top-up` restores them")
    for item in account.get("cases", []):
        case: OwnCase = canonical.from_json(OwnCase, item)
        lines.append(f"  {case_line(case, now)}")
    lines.append(
        f"wallet {account['account']}: {usd(int(account['tokens']))} USD, "
        f"{coins(int(account['coins']))} {coin} for gas on {account['chain']}"
    )
    if balance := int(account.get("balance", 0)):
        lines.append(f"balance in Escrow: {usd(balance)} USD; `quorate node withdraw` takes it out")
    if account["payout"] != account["account"]:
        tokens = usd(int(account["payoutTokens"]))
        lines.append(f"payout {account['payout']}: {tokens} USD")
    lines.append(
        f"operator {account['operator']}: {coins(int(account['operatorCoins']))} {coin} for gas"
    )
    return lines


def income_lines(days: list[canonical.Json], electricity: int = 0) -> list[str]:
    """Returns one line for each of the newest days with income."""
    lines = []
    for day in days[-DAYS_PRINTED:]:
        back = int(day["takenBack"])
        lost = f", {usd(back)} taken back" if back else ""
        unpaid = f", {day['unpaid']} not paid" if day["unpaid"] else ""
        paid = counted(day["paid"], "job")
        power = _energy(day, electricity) if electricity else ""
        lines.append(f"  {day['day']}: {usd(int(day['earned']))} USD, {paid}{unpaid}{lost}{power}")
    return ["income by day (UTC):", *lines] if lines else []


def _energy(day: canonical.Json, electricity: int) -> str:
    """What GPUs took while jobs ran, and what is left of the earnings after it."""
    millijoules = int(day.get("gpuMillijoules", 0))
    if not millijoules:
        return ""  # only GPUs are measured
    cost = -(-millijoules * electricity // MILLIJOULES_PER_KWH)
    left = int(day["earned"]) - int(day["takenBack"]) - cost
    kwh = millijoules / MILLIJOULES_PER_KWH
    sign = "-" if left < 0 else ""
    return f"; {kwh:.2f} kWh cost {usd(cost)} USD, {sign}{usd(abs(left))} USD are left"


def coins(wei: int) -> str:
    """An amount of wei in coins of the chain, rounded down to millionths of a coin."""
    return f"{wei // 10**18}.{wei % 10**18 // 10**12:06d}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
