"""`quorate node health|status|drain`: commands that ask the running daemon over its gateway."""

import asyncio
import json
import shlex
from pathlib import Path

import typer

from quorate_node import cli_options as options
from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import usd

CONTROL_SECONDS = 5.0


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
    typer.echo(
        f"free run slots {tree['freeSlots']} · coordinators connected {len(tree['connected'])} · "
        f"jury duties {len(tree['jury'])}"
    )
    for lease in tree["leases"]:
        typer.echo(f"  lease {lease['lease'][:18]} {lease['phase']}")
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


async def _ask_daemon(home: Path, method: str, path: str) -> canonical.Json:
    """Returns the JSON answer of the daemon that runs on `home`.

    Raises Unavailable if none answers.
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
