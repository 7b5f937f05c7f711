"""Commands that ask the running daemon over its gateway: health, status, drain and price."""

import asyncio
import json
import shlex
from pathlib import Path
from urllib.parse import quote

import typer

from quorate_node import cli_options as options
from quorate_node import gpu_settings
from quorate_node import settings as settings_file
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Price, usd
from quorate_protocol.values import replace

CONTROL_SECONDS = 5.0
ANSWER_BYTES_MAX = 64 * 1024  # of a refusal


def health(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Say whether the provider can work: exit 0, or 3 with each problem, or 4 when the daemon does
    not answer.
    """
    try:
        tree = asyncio.run(_ask_daemon(options.home_of(home), "GET", "/v1/status"))
    except (Refused, Unavailable) as error:
        options.fail(error, as_json)
    problems = tree["problems"]
    if as_json:
        typer.echo(json.dumps({"ready": not problems, "problems": problems}))
    else:
        for item in problems or [{"name": "ready", "text": f"provider {tree['provider']}"}]:
            typer.echo(f"{item['name']}: {item['text']}")
    raise typer.Exit(options.EXIT_REFUSED if problems else 0)


def status(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """Show running jobs, earnings, unpaid jobs and the reasons of declined jobs. Exit 4 when the
    daemon does not run.
    """
    try:
        tree = asyncio.run(_ask_daemon(options.home_of(home), "GET", "/v1/status"))
    except (Refused, Unavailable) as error:
        options.fail(error, as_json)
    if as_json:
        typer.echo(json.dumps(tree))
        return
    draining = " · draining" if tree["isDraining"] else ""
    typer.echo(
        f"provider {tree['provider']} · {tree['executor']} · gateway {tree['gateway']}{draining}"
    )
    typer.echo(f"coordinators connected {len(tree['connected'])} · jury duties {len(tree['jury'])}")
    for coordinator, transport in tree.get("transports", {}).items():
        typer.echo(f"  coordinator {coordinator[:12]} over {transport}")
    for slot in tree.get("slots", []):
        typer.echo(f"  {slot_line(slot)}")
    for lease in tree["leases"]:
        typer.echo(f"  {lease_line(lease)}")
    for item in tree["earnings"]:
        final, held, claimed = (usd(int(item[name])) for name in ("final", "held", "claimed"))
        typer.echo(
            f"  earned {final} USD final, {held} held, {claimed} claimed (coordinator "
            f"{item['coordinator'][:12]})"
        )
    for item in tree["declined"][-5:]:
        typer.echo(f"  declined: {item['reason']}: {item['text']}")
    for item in tree.get("unpaid", [])[-5:]:
        typer.echo(f"  unpaid: lease {item['lease'][:18]}: {item['why']}")


def lease_line(lease: canonical.Json) -> str:
    """Returns one line about a lease, with the GPUs that it has."""
    gpus = f" on {', '.join(lease['gpus'])}" if lease.get("gpus") else ""
    return f"lease {lease['lease'][:18]} {lease['phase']}{gpus}"


def slot_line(slot: canonical.Json) -> str:
    """Returns one line about the run slots of a host class: "1/2 run slots free at 0.10 USD"."""
    gpus = f" of {slot['gpus']} x {slot['gpu']}" if slot["gpu"] else ""
    each = f" ({usd(int(slot['pricePerGpu']))} per GPU-hour)" if slot["gpu"] else ""
    return (
        f"{slot['free']}/{slot['count']} run slots{gpus} free, at {usd(int(slot['price']))} USD "
        f"per slot-hour{each}"
    )


def drain(
    off: options.TakeWorkAgain = False, home: options.Home = None, as_json: options.AsJson = False
) -> None:
    """Take no new work. Running jobs go on."""
    path = f"/v1/drain{'?off=1' if off else ''}"
    try:
        asyncio.run(_ask_daemon(options.home_of(home), "POST", path))
    except (Refused, Unavailable) as error:
        options.fail(error, as_json)
    if as_json:
        typer.echo(json.dumps({"draining": not off}))
    else:
        typer.echo("taking work again" if off else "draining: the provider takes no new work")


def price(
    amount: options.PriceAmount,
    gpu: options.PricedGpu = "",
    home: options.Home = None,
    as_json: options.AsJson = False,
) -> None:
    """Change the price of CPU slots, or of GPUs, also while the provider is up. Running jobs keep
    their price.

    The price is kept in node.json, so it holds after a restart. A provider of a devnet has no such
    file: its price holds until it stops.
    """
    folder = options.home_of(home)
    is_up, is_kept = True, not _is_of_a_devnet(folder)
    try:
        wanted = _save_price(folder, amount, gpu) if is_kept else _price_of(amount, gpu)
        query = f"microUsd={wanted}&gpu={quote(gpu)}" if gpu else f"microUsd={wanted}"
        try:
            asyncio.run(_ask_daemon(folder, "POST", f"/v1/price?{query}"))
        except Unavailable as error:
            if not is_kept:
                raise
            # Not re-raised: the setting counts from the next start.
            is_up = False
            typer.echo(f"the provider does not run now ({error})", err=True)
    except (Refused, Unavailable) as error:
        options.fail(error, as_json)
    if as_json:
        typer.echo(
            json.dumps({"priceMicroUsd": int(wanted), "isOffered": is_up, "isKept": is_kept})
        )
    else:
        when = "is offered now" if is_up else "counts from the next start"
        each = f"GPU-hour of {gpu}" if gpu else "slot-hour"
        until = "" if is_kept else ", until the provider stops"
        typer.echo(f"price {usd(wanted)} USD per {each} {when}{until}")


def _is_of_a_devnet(folder: Path) -> bool:
    """Whether a provider has run here that was not made by `init`."""
    return (folder / "status.json").exists() and not (folder / settings_file.FILE).exists()


def _price_of(amount: str, gpu: str) -> Price:
    """Returns a typed price in micro-USD. Raises Refused for anything else."""
    return gpu_settings.price_for(amount, gpu).price if gpu else settings_file.usd_price(amount)


def _save_price(folder: Path, amount: str, gpu: str) -> Price:
    """Writes the new price into the settings, after checking it. Returns it in micro-USD."""
    before = settings_file.read(folder)
    if gpu:
        new = gpu_settings.price_for(amount, gpu)
        prices = gpu_settings.with_price(before.gpu_prices, new)
        wanted, name, after = new.price, "gpu_prices", replace(before, gpu_prices=prices)
    else:
        wanted, name = settings_file.usd_price(amount), "price"
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


async def _ask_daemon(home: Path, method: str, path: str) -> canonical.Json:
    """Returns the JSON answer of the daemon that runs on `home`.

    Raises Unavailable if none answers, and Refused as it does.
    """
    import aiohttp

    from quorate_node.ops.node_gateway import TOKEN_HEADER, control_token
    from quorate_node.ops.status import read_status

    start = f"start it with `quorate node up --home {shlex.quote(str(home))}`"
    last = await asyncio.to_thread(read_status, home / "status.json")
    if last is None:
        raise Unavailable(f"no provider has run in {home}; {start}", 0)
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
