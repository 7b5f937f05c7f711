"""`quorate node check|init|up|health|status|drain|rotate`: the owner's commands. The only place
that reads flags and environment.
"""

import asyncio
import json
import logging
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import aiohttp
import typer

from quorate_node import settings as stored
from quorate_node.config import FEE_CAP_GWEI, STORE_GIB, Config, ExecutorKind
from quorate_node.keys import provider_keys
from quorate_node.keys.operator_keys import FILE as KEYRING_FILE
from quorate_node.keys.operator_keys import OperatorKeys
from quorate_node.keys.provider_keys import ProviderKeys
from quorate_node.ops.node_gateway import TOKEN_HEADER, control_token
from quorate_node.ops.status import read_status
from quorate_node.settings import Settings
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.ports import Sandbox
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address, usd
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.urls import web_url
from quorate_runtime.journal.journal_port import JournalError
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process import crash_points, gc_tuning, logs
from quorate_runtime.process.shutdown import serve_until_signal
from quorate_runtime.process.systemd_notify import Notifier
from quorate_runtime.sqlite.durable import FileDamaged

app = typer.Typer(
    help="Run the provider: check the machine, stake, execute jobs, earn.",
    no_args_is_help=True,
    add_completion=False,
)
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_UNAVAILABLE = 4
CONTROL_SECONDS = 5.0
LEAVE_SECONDS = 3  # to tell the coordinators
KEYS = "keys"  # the keystore's folder
OPTIONS_OF = {
    "coordinators": {"coordinator", "devnet"},
    "is_devnet": {"limits", "devnet"},
    "images": {"image"},
    "listen_host": {"host"},
    "listen_port": {"port"},
}
"""Options of `init` by the settings they make, where the names differ."""

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of this provider (default: $QUORATE_HOME/node or XDG)"),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", help="File with the keystore's passphrase (mode 0600)"),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file", help="Log there, turned over at 16 MiB, five old files kept (default: stderr)"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON line on stdout")]


def home_of(home: Path | None) -> Path:
    """The role's folder, absolute because engine and mounts name it: flag, $QUORATE_HOME, else
    XDG data home.
    """
    if home is not None:
        return home.absolute()
    base = os.environ.get("QUORATE_HOME")
    if base:
        return Path(base).absolute() / "node"
    return (
        Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "quorate" / "node"
    )


def fail(error: BaseException, as_json: bool = False) -> NoReturn:
    """Says what is wrong and ends with the kind's exit code: 3 refused, 4 unavailable."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    code = (
        error.code.value
        if isinstance(error, Refused)
        else "unavailable"
        if isinstance(error, Unavailable)
        else "refused"
    )
    if as_json:
        typer.echo(json.dumps({"error": code, "detail": str(error)}))
    # What these codes mean to a peer says nothing to whoever typed the command; the detail does.
    is_typed = isinstance(error, Refused) and error.code in (
        Code.MALFORMED,
        Code.UNKNOWN,
        Code.UNSUPPORTED,
    )
    typer.echo(
        f"node: {error.detail if isinstance(error, Refused) and is_typed else error}", err=True
    )
    raise typer.Exit(EXIT_UNAVAILABLE if isinstance(error, Unavailable) else EXIT_REFUSED)


def _address(text: str, name: str) -> Address:
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""  # told below with the length
    if text and len(value) != 20:
        raise Refused(
            Code.MALFORMED, f"{name} {text!r}: an address is 0x and 40 hexadecimal digits"
        )
    return Address(value) if text else ZERO_ADDRESS


def _keys(
    folder: Path, settings: Settings, password_file: Path | None, is_new: bool
) -> ProviderKeys:
    is_first = is_new and not provider_keys.operator_names(folder / KEYS)
    keystore = _keystore(folder, settings, password_file, is_first)
    work = provider_keys.create if is_new else provider_keys.load
    return work(keystore, _or_none(settings.owner), _or_none(settings.payout))


def _keystore(
    folder: Path, settings: Settings, password_file: Path | None, is_first: bool = False
) -> Keystore:
    passphrase = passphrase_of(password_file, os.environ, "provider", is_first)
    return Keystore.at(folder / KEYS, passphrase, DEVNET if settings.is_devnet else MAINNET)


def _or_none(address: Address) -> Address | None:
    return None if address == ZERO_ADDRESS else address


@app.command()
def init(
    ctx: typer.Context,
    coordinator: Annotated[
        list[str] | None,
        typer.Option("--coordinator", help="Base URL of a coordinator to serve; repeatable"),
    ] = None,
    devnet: Annotated[
        Path | None,
        typer.Option(
            "--devnet", help="devnet.json of a devnet to join: its coordinator, its limits"
        ),
    ] = None,
    limits: Annotated[
        str,
        typer.Option(
            "--limits", help="mainnet, or devnet: cheap keys, allows the process executor"
        ),
    ] = MAINNET.name,
    price: Annotated[str, typer.Option("--price", help="USD per slot-hour")] = "0.10",
    price_floor: Annotated[str, typer.Option("--price-floor", help="Never work for less")] = "0",
    slots: Annotated[
        int, typer.Option("--slots", min=1, max=16, help="Run slots, each with its stake slot")
    ] = 1,
    owner: Annotated[
        str,
        typer.Option("--owner", help="Account whose key is kept elsewhere (default: made here)"),
    ] = "",
    payout: Annotated[
        str, typer.Option("--payout", help="Where the money goes (default: the owner)")
    ] = "",
    image: Annotated[
        list[str] | None, typer.Option("--image", help="Run only this image; repeatable")
    ] = None,
    region: Annotated[str, typer.Option("--region", help="Shown in the offer")] = "",
    executor: Annotated[ExecutorKind, typer.Option("--executor")] = ExecutorKind.AUTO,
    host: Annotated[str, typer.Option("--host", help="Where the gateway listens")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Gateway port; 0 = any")
    ] = 7710,
    public_url: Annotated[
        str, typer.Option("--public-url", help="How others reach the gateway")
    ] = "",
    store_gib: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Disk for inputs, and for outputs of two weeks")
    ] = STORE_GIB,
    chain_url: Annotated[
        str,
        typer.Option(
            "--chain-url", help="Your own chain node (default: what the coordinator names)"
        ),
    ] = "",
    fee_cap_gwei: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="The most that a transaction may pay per gas")
    ] = FEE_CAP_GWEI,
    deployment: Annotated[
        Path | None,
        typer.Option(help="deployment.json that you trust: no coordinator is believed another"),
    ] = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Make keys and settings; print what has to be funded."""
    from quorate_contracts import (
        trusted_deployment,
    )  # here, because it loads the contracts, which `health` need not wait for

    folder = home_of(home)
    try:
        known = trusted_deployment.read(deployment) if deployment else None
        urls, is_devnet = _market(coordinator or [], devnet, limits)
        typed = Settings(
            coordinators=urls,
            owner=_address(owner, "--owner"),
            payout=_address(payout, "--payout"),
            slots=slots,
            price=stored.usd_price(price),
            price_floor=stored.usd_price(price_floor),
            images=tuple(_image(item) for item in image or ()),
            region=region,
            executor=executor,
            is_devnet=is_devnet,
            listen_host=host,
            listen_port=port,
            public_url=_public(public_url) if public_url else "",
            store_gib=store_gib,
            chain_url=web_url("--chain-url", chain_url, "http://127.0.0.1:8545")
            if chain_url
            else "",
            fee_cap_gwei=fee_cap_gwei,
        )
        is_first, settings = (
            not (folder / stored.FILE).exists(),
            stored.changed(folder, typed, _named(ctx)),
        )
        keys = _keys(folder, settings, password_file, is_new=True)
        trusted_deployment.keep(
            folder, known
        )  # first: settings without it would believe whoever answers
        stored.write(folder, settings)
    except (Refused, KeystoreError) as error:
        fail(error, as_json)
    stake = settings.slots * (DEVNET if settings.is_devnet else MAINNET).slot_stake
    facts = {
        "home": str(folder),
        "provider": _hex(keys.account),
        "operator": _hex(keys.operator.address),
        "payout": _hex(keys.payout),
        "stake": stake,
        "has_owner_key": keys.owner is not None,
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(
        f"Provider {'made' if is_first else 'changed'} in "
        f"{folder}{'' if is_first else ': keys, and what you did not name, stay'}"
    )
    typer.echo(f"  owner {_hex(keys.account)}: needs {usd(stake)} USD of stake and gas to register")
    typer.echo(f"  operator {_hex(keys.operator.address)}: signs; `up` gives it gas from the owner")
    where = "" if home is None else f" --home {shlex.quote(str(home))}"
    faucet = (
        f"`quorate devnet fund {shlex.quote(str(home or folder))}`" if devnet else "fund the owner"
    )
    typer.echo(f"Next: {faucet}, then `quorate node check{where}` and `quorate node up{where}`")


def _named(ctx: typer.Context) -> set[str]:
    """Fields of the settings whose options were typed."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    typed = {
        name
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }
    return typed | {field for field, options in OPTIONS_OF.items() if typed & options}


def _market(
    coordinators: list[str], devnet: Path | None, limits: str
) -> tuple[tuple[str, ...], bool]:
    """(URLs of the coordinators to serve, whether devnet's limits hold)."""
    if limits not in (MAINNET.name, DEVNET.name):
        raise Refused(Code.MALFORMED, f"--limits {limits!r}: it is {MAINNET.name} or {DEVNET.name}")
    urls = [stored.devnet_coordinator(devnet)] if devnet else []
    urls += [web_url("--coordinator", url, "http://127.0.0.1:7700") for url in coordinators]
    return tuple(dict.fromkeys(urls)), devnet is not None or limits == DEVNET.name


def _public(text: str) -> str:
    from quorate_node.chain.registration import network_of

    url = web_url("--public-url", text, "http://203.0.113.7:7710")
    network_of(url)
    return url


def _image(text: str) -> str:
    """Jobs name images so, and only so: a tag would match none."""
    try:
        image_digest(text)
    except Refused as error:
        raise Refused(
            Code.MALFORMED, f"--image {text!r}: name@sha256:digest, or the CID of an archive"
        ) from error
    return text


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


@app.command()
def check(home: Home = None, password_file: PasswordFile = None, as_json: AsJson = False) -> None:
    """Look at machine, engine, market and money; each failure comes with its fix. Exit 3 when
    something is missing.
    """
    from quorate_node.ops.diagnostics import (
        check_up,
    )  # here as below: what is not needed by each command takes a moment to load

    folder = home_of(home)
    try:
        settings = stored.read(folder)
        config = settings.config(folder, None, None, stop_on_exit=False)
        keys: ProviderKeys | None = _keys(folder, settings, password_file, is_new=False)
    except (Refused, KeystoreError) as error:
        if not isinstance(error, Refused) or error.code is not Code.UNKNOWN:
            fail(error, as_json)
        config, keys = (
            Config(folder, ()),
            None,
        )  # before init: the machine can be looked at all the same
    found = asyncio.run(check_up(config, keys, SystemClock()))
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "good": all(item.is_good for item in found),
                    "findings": [asdict(item) for item in found],
                }
            )
        )
    else:
        for item in found:
            typer.echo(f"{'ok ' if item.is_good else 'NO '} {item.name:12} {item.text}")
            if not item.is_good and item.fix:
                typer.echo(f"                 fix: {item.fix}")
    raise typer.Exit(0 if all(item.is_good for item in found) else EXIT_REFUSED)


@app.command()
def up(
    executor: Annotated[
        ExecutorKind | None, typer.Option("--executor", help="Overrides the setting")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Gateway port; 0 = any")
    ] = None,
    stop_on_exit: Annotated[
        bool, typer.Option("--stop-on-exit", help="End running jobs too (they go on otherwise)")
    ] = False,
    noop_ms: Annotated[int, typer.Option("--noop-ms", hidden=True)] = 0,
    drain_seconds: Annotated[
        int, typer.Option("--drain-seconds", min=0, help="At the end wait so long for what runs")
    ] = 0,
    log_json: Annotated[bool, typer.Option("--log-json")] = False,
    log_file: LogFile = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C; registers and stakes first when the owner's key is here and
    funded. Twice ends it at once.
    """
    folder = home_of(home)
    crash_points.configure(os.environ.get("QUORATE_CRASH_AT", ""))
    try:
        logs.setup(is_json=log_json or as_json, file=log_file)
    except OSError as error:
        fail(Refused(Code.UNSUPPORTED, f"--log-file {log_file}: {error.strerror}"), as_json)
    logging.getLogger("aiohttp.access").setLevel(
        logging.WARNING
    )  # a line a request would be most of the log
    try:
        settings = stored.read(folder)
        keys = _keys(folder, settings, password_file, is_new=False)
        asyncio.run(
            _serve(
                settings.config(folder, executor, port, stop_on_exit, noop_ms, drain_seconds), keys
            )
        )
    except (
        Refused,
        Unavailable,
        KeystoreError,
        JournalError,
        FileDamaged,
        BaseExceptionGroup,
    ) as error:
        fail(error, as_json)


async def _serve(config: Config, keys: ProviderKeys) -> None:
    """Until a signal. What was acknowledged is in the journal, so stopping is just stopping,
    once coordinators know of it.
    """
    from quorate_node.daemon import ProviderDaemon
    from quorate_node.executors.selection import BANNER, choose

    clock = SystemClock()
    executor = await choose(config, keys.account.hex(), clock)
    if executor.sandbox is Sandbox.PROCESS:
        typer.echo(BANNER, err=True)
    daemon = ProviderDaemon(config, keys, executor, clock, notifier=Notifier(os.environ))
    try:
        gc_tuning.settle()
        if await serve_until_signal(
            daemon.run(), daemon.leave, max(LEAVE_SECONDS, config.drain_seconds)
        ):
            typer.echo("node: stopped", err=True)
    finally:
        await executor.close()


@app.command()
def health(home: Home = None, as_json: AsJson = False) -> None:
    """Whether it can work: exit 0, or 3 with each cause by its name, or 4 when nothing answers."""
    try:
        tree = asyncio.run(_control(home_of(home), "GET", "/v1/status"))
    except (Refused, Unavailable) as error:
        fail(error, as_json)
    problems = tree["problems"]
    if as_json:
        typer.echo(json.dumps({"ready": not problems, "problems": problems}))
    else:
        for item in problems or [{"name": "ready", "text": f"provider {tree['provider']}"}]:
            typer.echo(f"{item['name']}: {item['text']}")
    raise typer.Exit(EXIT_REFUSED if problems else 0)


@app.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """What the daemon does now, what it earned, what was not paid, and why it declined jobs.
    Exit 4 when it does not run.
    """
    try:
        tree = asyncio.run(_control(home_of(home), "GET", "/v1/status"))
    except (Refused, Unavailable) as error:
        fail(error, as_json)
    if as_json:
        typer.echo(json.dumps(tree))
        return
    typer.echo(
        f"provider {tree['provider']} · {tree['executor']} · gateway "
        f"{tree['gateway']}{' · draining' if tree['isDraining'] else ''}"
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


@app.command()
def drain(
    off: Annotated[bool, typer.Option("--off", help="Take work again")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take no new work; what runs goes on."""
    try:
        asyncio.run(_control(home_of(home), "POST", f"/v1/drain{'?off=1' if off else ''}"))
    except (Refused, Unavailable) as error:
        fail(error, as_json)
    typer.echo(
        json.dumps({"draining": not off})
        if as_json
        else "taking work again"
        if off
        else "draining: no new work is taken"
    )


@app.command()
def rotate(home: Home = None, password_file: PasswordFile = None, as_json: AsJson = False) -> None:
    """Make the next operator key. The daemon changes to it when it starts again, and keeps the
    old one as long as a job needs it.
    """
    folder = home_of(home)
    try:
        settings = stored.read(folder)
        keystore = _keystore(folder, settings, password_file)
        keys = provider_keys.load(keystore, _or_none(settings.owner), _or_none(settings.payout))
        waiting = OperatorKeys(keys, folder / KEYRING_FILE).is_changing
        new = keys.operator if waiting else provider_keys.add_operator(keystore)
    except (Refused, KeystoreError) as error:
        fail(error, as_json)
    where = "" if home is None else f" --home {shlex.quote(str(home))}"
    if as_json:
        typer.echo(json.dumps({"operator": _hex(new.address), "is_new": not waiting}))
        return
    typer.echo(
        f"operator {_hex(new.address)} {'was made before, and waits' if waiting else 'is made'}"
    )
    if keys.owner is None:
        typer.echo(
            f"Its gas comes from you; then, with the key of {_hex(keys.account)}: call "
            f"rotate_key({_hex(new.address)}) of Stakes"
        )
    typer.echo(f"Next: stop the daemon and `quorate node up{where}`; jobs go on meanwhile")


async def _control(home: Path, method: str, path: str) -> canonical.Json:
    last = await asyncio.to_thread(read_status, home / "status.json")
    if last is None:
        raise Unavailable(
            (
                f"no provider has run in {home}; start it with `quorate node up --home "
                f"{shlex.quote(str(home))}`"
            ),
            0,
        )
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
                    f"{last.gateway} answered {response.status}: another program has that port now",
                    0,
                )
            return await response.json()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(
            (
                f"the provider of {home} does not answer at {last.gateway}; start it with `quorate "
                f"node up --home {shlex.quote(str(home))}`"
            ),
            0,
        ) from error
