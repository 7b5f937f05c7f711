"""Commands that ask the running daemon over its gateway: health, pause, resume and price."""

import asyncio
import json
import shlex
from pathlib import Path
from urllib.parse import quote

import aiohttp
import typer

from quorate_node.base import gpu_settings, typed_values
from quorate_node.base import settings as settings_file
from quorate_node.base.config import Settings
from quorate_node.cli import options
from quorate_node.owner import leaving
from quorate_node.status.node_gateway import TOKEN_HEADER, control_token
from quorate_node.status.pool_market import Standing, offer_books, standing
from quorate_node.status.status import SlotStatus, Status, read_status
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Price, usd
from quorate_protocol.values import replace
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.process.command_errors import EXIT_REFUSED

CONTROL_SECONDS = 5.0
ANSWER_BYTES_MAX = 64 * 1024  # of a refusal


def health(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Say whether the provider can work: exit 0, or 3 with each problem, or 4 when the daemon does
    not answer.
    """
    try:
        tree = asyncio.run(ask_daemon(options.home_of(home), "GET", "/v1/status"))
    except (Refused, Unavailable) as error:
        options.fail(error)
    problems = tree["problems"]
    is_leaving, is_paused = tree.get("isLeaving", False), tree["isDraining"]
    state = "leaving" if is_leaving else "paused" if is_paused else ""
    if as_json:
        facts = {"ready": not problems, "problems": problems, "state": state or "working"}
        typer.echo(json.dumps(facts))
    else:
        for line in health_lines(tree["provider"], problems, state):
            typer.echo(line)
    raise typer.Exit(EXIT_REFUSED if problems else 0)


def health_lines(provider: str, problems: list[canonical.Json], state: str) -> list[str]:
    """Returns the lines of `health`. `state` is "leaving", "paused" or ""."""
    note = f"{state}: takes no new work" if state else ""
    if not problems:
        return [f"ready: provider {provider}" + (f"; {note}" if note else "")]
    lines = [f"{item['name']}: {item['text']}" for item in problems]
    return [*lines, note] if note else lines


def pause(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Take no new work, also after a restart. Running jobs go on."""
    _take_work(options.home_of(home), is_wanted=False, as_json=as_json)


def resume(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Take work again after `pause`, or give up a `leave` that has begun."""
    _take_work(options.home_of(home), is_wanted=True, as_json=as_json)


def drain(
    off: options.TakeWorkAgain = False, home: options.Home = None, as_json: options.AsJson = False
) -> None:
    """The same as `pause`; with --off the same as `resume`."""
    _take_work(options.home_of(home), is_wanted=off, as_json=as_json)


def _take_work(folder: Path, is_wanted: bool, as_json: bool) -> None:
    was_leaving = leaving.is_leaving(folder)
    try:
        if is_wanted and was_leaving:
            leaving.cancel_leaving(folder)
        is_up = asyncio.run(tell_to_take_work(folder, is_wanted))
    except (Refused, Unavailable) as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps({"draining": not is_wanted, "isUp": is_up}))
        return
    text = "taking work again" if is_wanted else "paused: the provider takes no new work"
    typer.echo(text if is_up else f"{text}, from its next start on: it does not run now")
    if is_wanted and was_leaving:
        start = "stop the daemon and start it again" if is_up else "start the daemon"
        typer.echo(f"Next: {start}; it stakes for each run slot again")


async def tell_to_take_work(folder: Path, is_wanted: bool) -> bool:
    """Tells the daemon whether to take work; returns whether it runs.

    If it does not run, its next start does what was asked for. Raises Unavailable if no provider
    lives in `folder`.
    """
    try:
        await ask_daemon(folder, "POST", f"/v1/drain{'?off=1' if is_wanted else ''}")
    except Unavailable:
        # Not re-raised: a provider that does not run takes no work in any case.
        if not (folder / settings_file.FILE).exists() and not (folder / "status.json").exists():
            raise
        leaving.put_wish(folder, leaving.RESUME if is_wanted else leaving.PAUSE)
        return False
    return True


def evict(
    lease: options.EvictedLease,
    why: options.EvictedFor = "",
    home: options.Home = None,
    as_json: options.AsJson = False,
) -> None:
    """End a rental, for example after a report of abuse. Its terminals show the reason, and it ends
    within 15 s. Its client pays until then.
    """
    folder = options.home_of(home)
    try:
        if not why.strip():
            raise Refused(Code.MALFORMED, "--why: say what the rental's client is told")
        tree = asyncio.run(ask_daemon(folder, "GET", "/v1/status"))
        name = _one_lease(lease, [item["lease"] for item in tree["leases"]])
        asyncio.run(ask_daemon(folder, "POST", f"/v1/evict?lease={name}&why={quote(why)}"))
    except Refused as error:
        options.fail(error)
    except Unavailable as error:
        options.fail(Unavailable(f"{error}{_by_engine(folder, lease)}", error.retry_after))
    typer.echo(json.dumps({"evicted": name}) if as_json else f"lease {name[:18]} ends within 15 s")


def _by_engine(folder: Path, lease: str) -> str:
    """How to end a rental while the daemon is down."""
    last = read_status(folder / "status.json")
    names = [f"0x{item.lease.hex()}" for item in last.leases] if last else []
    name = next((name[2:] for name in names if name.startswith(lease)), "LEASE")
    return f"; to end the rental without it: docker stop quorate-{name}"


def _one_lease(text: str, names: list[str]) -> str:
    found = [name for name in names if text and name.removeprefix("0x").startswith(text[2:])]
    if len(found) == 1 and text.startswith("0x"):
        return found[0]
    raise Refused(
        Code.UNKNOWN,
        f"lease: {text[:80]!r} names {len(found)} of the leases here; copy one from "
        "`quorate node status`",
    )


def price(
    amount: options.PriceAmount = "",
    gpu: options.PricedGpu = "",
    home: options.Home = None,
    as_json: options.AsJson = False,
) -> None:
    """Change the price of CPU slots, or of GPUs, also while the provider is up. Running jobs keep
    their price.

    The price is kept in node.json, so it holds after a restart. Without AMOUNT it shows what
    others ask, proposes their median, and changes nothing.
    """
    folder = options.home_of(home)
    if not amount:
        _propose(folder, as_json)
        return
    is_up = True
    try:
        with settings_file.changing(folder):
            before = settings_file.read(folder)
            wanted = _save_price(folder, before, amount, gpu)
            query = f"microUsd={wanted}&gpu={quote(gpu)}" if gpu else f"microUsd={wanted}"
            try:
                asyncio.run(ask_daemon(folder, "POST", f"/v1/price?{query}"))
            except Unavailable as error:
                # Not re-raised: the setting counts from the next start.
                is_up = False
                typer.echo(f"the provider does not run now ({error})", err=True)
            except Refused:
                settings_file.write(folder, before)  # nothing changes, also after a restart
                raise
    except (Refused, Unavailable) as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps({"priceMicroUsd": int(wanted), "isOffered": is_up, "isKept": True}))
    else:
        when = "is offered now" if is_up else "counts from the next start"
        each = f"GPU-hour of {gpu}" if gpu else "slot-hour"
        typer.echo(f"price {usd(wanted)} USD per {each} {when}")


def _propose(folder: Path, as_json: bool) -> None:
    try:
        status = read_status(folder / "status.json")
        settings = settings_file.read(folder)
        if status is None:
            raise Unavailable(f"no provider has run in {folder}; `quorate node check` shows prices")
        found = asyncio.run(_standings(settings.coordinators, status))
    except (Refused, Unavailable) as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps([canonical.to_json(view) for _, view in found]))
        return
    for slot, view in found:
        flag, per = (f" --gpu '{slot.gpu}'", slot.gpus) if slot.gpu else ("", 1)
        typer.echo(f"{slot.gpu or 'cpu'}: you ask {usd(slot.price)} USD per slot-hour; {view}")
        if view.others:
            each = usd(view.quartiles[1] // per)
            typer.echo(f"  their median: quorate node price {each}{flag}")


async def _standings(urls: tuple[str, ...], status: Status) -> list[tuple[SlotStatus, Standing]]:
    async with plain_session() as session:
        book = await offer_books(session, urls)
    return [(slot, standing(book, slot.pool, status.provider)) for slot in status.slots]


def _save_price(folder: Path, before: Settings, amount: str, gpu: str) -> Price:
    """Writes the new price into the settings, after checking it. Returns it in micro-USD."""
    if gpu:
        new = gpu_settings.price_for(amount, gpu)
        prices = gpu_settings.with_price(before.gpu_prices, new)
        wanted, name, after = new.price, "gpu_prices", replace(before, gpu_prices=prices)
    else:
        wanted, name = typed_values.usd_price(amount), "price"
        after = replace(before, price=wanted)
    settings_file.write(folder, settings_file.changed(folder, after, {name}))
    return wanted


def _raise_refusal(body: bytes) -> None:
    """Raises Refused if this is the refusal of a daemon. Other programs answer otherwise."""
    try:
        tree = json.loads(body)
        code, detail = Code(tree["code"]), str(tree["detail"])
    except (ValueError, KeyError, TypeError):
        return  # not re-raised: the caller says what the answer means
    raise Refused(code, detail)


async def ask_daemon(home: Path, method: str, path: str) -> canonical.Json:
    """Returns the JSON answer of the daemon that runs on `home`.

    Raises Unavailable if none answers, and Refused as it does.
    """
    start = f"start it with `quorate node up --home {shlex.quote(str(home))}`"
    last = await asyncio.to_thread(read_status, home / "status.json")
    if last is None:
        if not (home / settings_file.FILE).exists():
            raise Unavailable(settings_file.no_provider(home), 0)
        raise Unavailable(f"no provider has run in {home}; {start}", 0)
    if (home / settings_file.HOME_MARK).exists():
        settings_file.check_not_copied(home)  # its status names the daemon of the original
    token = await asyncio.to_thread(control_token, home)
    timeout = aiohttp.ClientTimeout(total=CONTROL_SECONDS)
    try:
        session = aiohttp.ClientSession(timeout=timeout)
        async with (
            session,
            session.request(method, last.gateway + path, headers={TOKEN_HEADER: token}) as response,
        ):
            if response.status != 200:
                _raise_refusal(await response.content.read(ANSWER_BYTES_MAX))
                raise Unavailable(
                    f"{last.gateway} answered {response.status}: another program uses that port "
                    "now",
                    0,
                )
            return await response.json()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(
            f"the provider of {home} does not answer at {last.gateway}; {start}", 0
        ) from error
