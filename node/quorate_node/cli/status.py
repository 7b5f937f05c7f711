"""`quorate node status`: what is on offer, what runs, and what it earns."""

import asyncio
import json
from collections import Counter

import typer

from quorate_node.base.dates import date_text
from quorate_node.cli import options
from quorate_node.cli.control import ask_daemon
from quorate_node.owner.own_cases import OwnCase, case_line
from quorate_node.status.diagnostics import profiles_text
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import usd

DAYS_PRINTED = 7
LINES_PRINTED = 5
MILLIJOULES_PER_KWH = 3_600_000_000


def status(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Show what is on offer, running jobs, stake, balances, income by day, unpaid jobs and the
    reasons of declined jobs. Exit 4 when the daemon does not run.
    """
    try:
        tree = asyncio.run(ask_daemon(options.home_of(home), "GET", "/v1/status?balances"))
    except (Refused, Unavailable) as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps(tree))
        return
    for line in status_lines(tree):
        typer.echo(line)


def status_lines(tree: canonical.Json) -> list[str]:
    why = tree.get("notOnOffer", "")
    lines = [
        f"provider {tree['provider']} · {tree['executor']} · gateway {tree['gateway']}",
        f"not on offer: {why}" if why else "on offer",
    ]
    lines += [f"  {slot_line(slot)}" for slot in tree.get("slots", [])]
    if not why:
        lines += [f"  GPU {uuid}: {said}" for uuid, said in tree.get("keptBack", {}).items()]
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
    return f"lease {lease['lease'][:18]} {lease['phase']}{gpus}"


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
