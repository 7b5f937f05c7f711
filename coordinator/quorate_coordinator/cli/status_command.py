"""`quorate coordinator health|status`: what a running coordinator says of itself."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer
from aiohttp import ClientError, ClientSession, ClientTimeout

from quorate_contracts.money_texts import coins
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import RESTORED, Settings
from quorate_coordinator.base.operator_view import BackupView, ChainView, OperatorView, OrdersView
from quorate_coordinator.cli import options
from quorate_coordinator.cli.options import fail, home_of
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Refused
from quorate_protocol.units import usd
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_UNAVAILABLE

DEFAULT_URL = "http://127.0.0.1:7700"
ANY_ADDRESS = ("0.0.0.0", "::")
TIMEOUT_SECONDS = 5


def health(
    url: options.ServedUrl = "", home: options.Home = None, as_json: options.AsJson = False
) -> None:
    """Say whether it can work: exit 0, 3 with each cause by its name, or 4 when nothing answers."""
    place = served_url(url, home)
    ended = "" if url else why_it_ended(home)
    problems = json.loads(asked(place, "/v1/health", ended))["problems"]
    if as_json:
        typer.echo(json.dumps({"ready": not problems, "problems": problems}))
    else:
        told = retiring_text(*_retirement(place))
        if told:
            typer.echo(f"retiring: {told}")
        for item in problems or [{"name": "ready", "text": place}]:
            typer.echo(f"{item['name']}: {item['text']}")
    raise typer.Exit(EXIT_REFUSED if problems else 0)


def status(
    url: options.ServedUrl = "", home: options.Home = None, as_json: options.AsJson = False
) -> None:
    """Show providers, orders, latency, fees, capital, bond, gas, unpaid work and unmet demand."""
    place = served_url(url, home)
    answer = asked(place, "/v1/operator", "" if url else why_it_ended(home))
    if as_json:
        typer.echo(json.dumps(json.loads(answer)))
        return
    try:
        view = canonical.decode(OperatorView, answer)
    except Refused as refused:
        told = f"{place} is another version of the coordinator ({refused.detail}); use --json"
        raise fail(told, EXIT_REFUSED) from refused
    for line in status_lines(place, view):
        typer.echo(line)


def status_lines(url: str, view: OperatorView) -> list[str]:
    providers, orders, endings = view.providers, view.orders, view.endings
    money, chain = view.money, view.chain
    ended = {name: getattr(endings, name) for name in type(endings).__struct_fields__[:6]}
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ended.items() if count)
    rented = f" (rentals: {orders.rented})" if orders.rented else ""
    under_way = f"{orders.under_way} under way{rented}"
    rows = [
        ("works" if not view.problems else "problems", url),
        *((item.name, item.text) for item in view.problems),
        *(("warning", sentence) for sentence in view.warnings),
        *(("retiring", told) for told in [retiring_text(chain.retired_at, chain.bond_at)] if told),
        ("chain", f"block {view.block}, {view.chain_lag_seconds} s old"),
        (
            "providers",
            (
                f"{providers.connected} connected, {providers.on_offer} on offer with "
                f"{providers.run_slots} run slots, {providers.registered} registered"
            ),
        ),
        ("orders", f"{under_way}, {orders.matching} wait for an offer{_wait(orders)}"),
        ("ended", f"{told or 'none'}, since the start"),
        (
            "latency",
            (
                f"{endings.matched_seconds_median} s to a provider, "
                f"{endings.decided_seconds_median} s to a verdict (medians)"
            ),
        ),
        ("fees", f"{usd(money.fee_final)} USD final, {usd(money.fee_held)} held"),
        (
            "capital",
            (
                f"{usd(money.balance)} USD in Escrow, {usd(money.locked)} locked as guarantees; "
                f"accusations may burn {usd(chain.accusations)}"
            ),
        ),
        (
            "limits",
            (
                f"today the posting key may still pay {usd(money.payroll_left)} USD, and lock or "
                f"give back {usd(money.locks_left)}"
            ),
        ),
        ("bond", bond_text(chain)),
        ("gas", _gas(chain)),
        *(("backup", _backup(each)) for each in [view.backup] if each is not None),
        ("account", f"{usd(chain.account_amount)} USD, {_coins(chain.account_gwei, chain.coin)}"),
        (
            "unpaid",
            (
                f"{usd(money.unpaid)} USD waits for a payroll, {usd(money.provider_held)} USD is "
                f"held, {usd(money.uncovered)} USD waits for clients' vouchers, "
                f"{usd(money.redeemable)} USD of vouchers is not redeemed"
            ),
        ),
    ]
    return [f"{name:10} {text}" for name, text in rows]


def bond_text(chain: ChainView) -> str:
    if not chain.bond_lacks:
        return f"{usd(chain.bond)} USD"
    return (
        f"{usd(chain.bond)} USD, {usd(chain.bond_lacks)} were burned: "
        "`quorate coordinator top-up` restores them"
    )


def _backup(backup: BackupView) -> str:
    lag = "never whole" if backup.lag_seconds is None else f"{backup.lag_seconds} s behind"
    return f"{backup.place}: {lag}, {backup.events_behind} events"


def _wait(orders: OrdersView) -> str:
    if not orders.matching:
        return ""
    return f" (the oldest for {timedelta(seconds=orders.oldest_wait_seconds)})"


def retiring_text(retired_at: int, bond_at: int) -> str:
    """Says that a coordinator has retired, and when its bond can be taken; else ""."""
    if not retired_at:
        return ""
    date = datetime.fromtimestamp(bond_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"takes no new orders; its bond can be taken from {date} on"


def _retirement(url: str) -> tuple[int, int]:
    """(when it retired, when its bond is due); zeros if it has not, or does not tell this host."""
    try:
        status_code, body = asyncio.run(_get(url + "/v1/operator"))
        chain = json.loads(body)["chain"] if status_code == 200 else {}
        return int(chain.get("retiredAt", 0)), int(chain.get("bondAt", 0))
    except (ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, 0  # not re-raised: health itself was answered


def _gas(chain: ChainView) -> str:
    lasts = "" if chain.days_left is None else f", {chain.days_left} days at the present use"
    key = f"the posting key 0x{chain.posting.hex()}"
    return f"{key} has {_coins(chain.posting_gwei, chain.coin)}{lasts}"


def _coins(gwei: int, symbol: str) -> str:
    return f"{coins(gwei * 10**9)} {symbol}"


def served_url(url: str, home: Path | None) -> str:
    """Returns where the coordinator serves: the flag, else what its folder says, else the
    default.
    """
    if url:
        return url.rstrip("/")
    try:
        settings = settings_file.read(home_of(home))
    except Refused as refused:
        if home is not None or os.environ.get("QUORATE_HOME"):
            raise fail(refused.detail, EXIT_REFUSED, refused.code) from refused
        return DEFAULT_URL  # not re-raised: nobody named a folder
    return served_url_of(settings)


def served_url_of(settings: Settings) -> str:
    host = "127.0.0.1" if settings.host in ANY_ADDRESS else settings.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{settings.port}"


def why_it_ended(home: Path | None) -> str:
    """Says that the last start of this folder ended with an older journal, and what to do; else
    "".
    """
    try:
        return (home_of(home) / RESTORED).read_text()
    except OSError:
        return ""  # not re-raised: it did not end so


def asked(url: str, path: str, ended: str = "") -> bytes:
    """Returns the coordinator's answer. Ends the program when nothing answers, or it refuses.
    `ended` says why nothing may answer.
    """
    try:
        status_code, body = asyncio.run(_get(url + path))
    except (ClientError, TimeoutError, OSError, ValueError) as error:
        remedy = "start it: quorate coordinator up; or name another: --url URL"
        if url == DEFAULT_URL and not (home_of(None) / settings_file.FILE).exists():
            remedy = "make one: quorate coordinator init; or name it: --home FOLDER, --url URL"
        told = f"it ended: {ended}" if ended else remedy
        raise fail(f"nothing answers at {url} ({error}); {told}", EXIT_UNAVAILABLE) from error
    if not _is_object(body):
        answered = "" if status_code == 200 else f" (it answers {status_code})"
        told = f"another program serves {url}{answered}, no coordinator: name yours with --url URL"
        raise fail(told, EXIT_REFUSED)
    if status_code != 200:
        raise fail(f"{url}{path} answers {status_code}: {_sentence(body)}", EXIT_REFUSED)
    return body


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False  # not re-raised: the caller says what it is


def _sentence(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")  # not re-raised: shown as it came


async def _get(url: str) -> tuple[int, bytes]:
    async with (
        ClientSession(timeout=ClientTimeout(total=TIMEOUT_SECONDS)) as session,
        session.get(url) as response,
    ):
        return response.status, await response.read()
