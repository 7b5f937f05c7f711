"""`quorate coordinator init`: makes keys and settings, and prints what has to be funded."""

import json
import os
import shlex
from ipaddress import ip_network
from pathlib import Path

import typer

from quorate_contracts import deploy, trusted_deployment
from quorate_contracts.money_texts import currency_of
from quorate_coordinator.base import coordinator_keys, settings
from quorate_coordinator.base.config import ACCUSE_USD, FEE_CAP_GWEI
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.cli import options
from quorate_coordinator.cli.options import fail, home_of, proxies_of
from quorate_protocol.codec import canonical
from quorate_protocol.limits import BY_NAME, DEVNET, USD
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Bps
from quorate_runtime.files import private_folder
from quorate_runtime.http.client_networks import X_FORWARDED_FOR
from quorate_runtime.http.urls import chain_urls, web_url
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_USAGE

CHAIN_URL, BEACON_URL = "http://127.0.0.1:8545", "http://127.0.0.1:8546"
DEPLOYMENT_BYTES_MAX = 1 << 20
CAPITAL_FIRST = 200 * USD  # guarantees of ten owners with one slot each, and their first pay
LIMIT_FIRST = 100  # USD a day
FIELD_OF = {"trusted_proxy": "trusted_proxies", "import_log": "import_logs"}
"""The field of the settings that each option sets, where their names differ."""


def init(
    ctx: typer.Context,
    deployment: options.DeploymentFile = None,
    chain_url: options.ChainUrls = None,
    beacon_url: options.BeaconUrl = "",
    host: options.Host = "127.0.0.1",
    port: options.Port = 7700,
    public_url: options.PublicUrl = "",
    p2p_listen: options.P2pListen = "",
    p2p_announce: options.P2pAnnounce = None,
    fee_bps: options.FeeBps = 200,
    fee_cap_gwei: options.FeeCapGwei = FEE_CAP_GWEI,
    accuse_usd: options.AccuseUsd = ACCUSE_USD,
    trusted_proxy: options.TrustedProxies = None,
    proxy_header: options.ProxyHeader = X_FORWARDED_FOR,
    database: options.DatabaseUrl = None,
    metrics_from: options.MetricsFrom = None,
    import_log: options.ImportLogs = None,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Make keys and settings; print what to fund. Again: change the settings that you name."""
    folder = home_of(home)
    kept, proxies = _kept(folder), tuple(trusted_proxy or ())
    proxies_of(proxies, proxy_header)
    if database:
        options.database(database, folder)
    made, chain, beacon = _deployment_of(deployment, kept)
    named = _named_fields(ctx, {"chain_url": chain, "beacon_url": beacon})
    try:
        first, second = chain_urls(chain_url or (chain or CHAIN_URL,), CHAIN_URL)
        beacon_url = web_url("--beacon-url", beacon_url or beacon or BEACON_URL, BEACON_URL)
        public_url = public_url and web_url("--public-url", public_url, "https://market.example")
        announce = tuple(dict.fromkeys(p2p_announce or ()))
        settings.check_p2p("--p2p-listen", p2p_listen, "--p2p-announce", announce)
        keys = _make_keys(folder, password_file, made)
    except Refused as error:
        raise fail(error.detail, EXIT_USAGE, error.code) from error
    except KeystoreError as error:
        raise fail(str(error), EXIT_REFUSED) from error
    typed = settings.Settings(
        made,
        first,
        beacon_url,
        host,
        port,
        public_url,
        Bps(fee_bps),
        proxies,
        proxy_header,
        fee_cap_gwei,
        database or "",
        p2p_listen,
        announce,
        _networks(metrics_from),
        options.log_urls(import_log),
        second,
        accuse_usd=accuse_usd,
    )
    after = typed if kept is None else settings.changed(kept, typed, named)
    proxies_of(after.trusted_proxies, after.proxy_header)
    settings.write(folder, after)
    changes = [] if kept is None else settings.differences(kept, after)
    if as_json:
        _print_json(folder, keys, made, changes)
    elif kept is None:
        _print(folder, home, keys, made, made.limits == DEVNET.name and bool(chain))
    else:
        _print_changes(folder, home, after, changes)


def _deployment_of(
    file: Path | None, kept: settings.Settings | None
) -> tuple[deploy.Deployment, str, str]:
    """(deployment, chain URL, beacon URL) of the file, else of the folder, which names no URL."""
    if file is not None:
        return _read_deployment(file)
    if kept is None:
        told = "a new coordinator needs --deployment deployment.json, or --devnet devnet.json"
        raise fail(told, EXIT_USAGE)
    return kept.deployment, "", ""


def _kept(folder: Path) -> settings.Settings | None:
    """The settings of a folder that exists; None without a file, or if it is damaged."""
    try:
        return settings.read(folder)
    except Refused:
        return None  # not re-raised: this command makes the file again


def _named_fields(ctx: typer.Context, nodes: dict[str, str]) -> set[str]:
    """The fields of the settings whose options the user typed, and the nodes of a devnet's file."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    typed = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    return {FIELD_OF.get(name, name) for name in typed} | {name for name in nodes if nodes[name]}


def _networks(texts: list[str] | None) -> tuple[str, ...]:
    try:
        return tuple(str(ip_network(text)) for text in texts or ())
    except ValueError as error:
        raise fail(f"--metrics-from: {error}", EXIT_USAGE) from error


def _make_keys(
    folder: Path, password_file: Path | None, made: deploy.Deployment
) -> CoordinatorKeys:
    is_first = not (folder / "keys" / "account.json").exists()
    passphrase = passphrase_of(password_file, os.environ, "coordinator", is_first)
    private_folder(folder)
    return coordinator_keys.create(Keystore.at(folder / "keys", passphrase, BY_NAME[made.limits]))


def _print_json(
    folder: Path, keys: CoordinatorKeys, made: deploy.Deployment, changes: list[str]
) -> None:
    facts = {
        "home": str(folder),
        "account": "0x" + keys.account.address.hex(),
        "posting": "0x" + keys.posting.address.hex(),
        "bond": BY_NAME[made.limits].coordinator_bond,
        "changed": changes,
    }
    typer.echo(json.dumps(facts))


def _print(
    folder: Path, home: Path | None, keys: CoordinatorKeys, made: deploy.Deployment, is_devnet: bool
) -> None:
    currency, bond = currency_of(made), BY_NAME[made.limits].coordinator_bond
    typer.echo(f"Coordinator made in {folder}")
    typer.echo(
        f"  account 0x{keys.account.address.hex()}: needs {currency.tokens(bond)} as bond and "
        f"{currency.coin} for gas on {currency.chain}"
    )
    typer.echo(f"  posting 0x{keys.posting.address.hex()}: needs {currency.coin} for gas")
    fund = f"`quorate devnet fund {shlex.quote(str(home or folder))}`" if is_devnet else "fund both"
    capital = currency.tokens(CAPITAL_FIRST)
    typer.echo(f"  capital, for pay and guarantees: {capital} to begin with, in the account too")
    at = _at(home)
    typer.echo(f"Next: {fund}, then `quorate coordinator up{at}`. Then give it capital:")
    typer.echo(f"  quorate coordinator deposit {CAPITAL_FIRST // USD}{at}")
    typer.echo(f"  quorate coordinator limit --payroll {LIMIT_FIRST} --locks {LIMIT_FIRST}{at}")
    typer.echo(f"  quorate coordinator deposit {ACCUSE_USD} --accusations{at}")


def _print_changes(
    folder: Path, home: Path | None, after: settings.Settings, changes: list[str]
) -> None:
    if not changes:
        typer.echo(f"Nothing changed in {folder}: keys and settings stay")
        typer.echo(f"Next: `quorate coordinator status{_at(home)}` says how it is")
        return
    typer.echo(f"Coordinator changed in {folder}: its keys and its other settings stay")
    for name in changes:
        value = getattr(after, name.replace("-", "_"))
        # A database's URL may hold a password, and a deployment is a page long.
        shown = "" if name in ("database", "deployment") else f" {_shown(value)}"
        typer.echo(f"  {name}{shown}")
    typer.echo(
        f"Next: start `quorate coordinator up{_at(home)}` again if it runs, because it keeps the "
        f"old settings until then; `quorate coordinator status{_at(home)}` says how it is"
    )


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "(none)"


def _at(home: Path | None) -> str:
    return "" if home is None else f" --home {shlex.quote(str(home))}"


def _read_deployment(named: Path) -> tuple[deploy.Deployment, str, str]:
    """(deployment, chain URL, beacon URL). A URL is "" where the file does not name it; a
    devnet.json names both.
    """
    path, wanted = trusted_deployment.split(named)
    try:
        tree = canonical.parse(path.read_bytes(), DEPLOYMENT_BYTES_MAX)
        urls = "", ""
        if isinstance(tree, dict) and "deployment" in tree:
            urls = str(tree.get("chainUrl", "")), str(tree.get("beaconUrl", ""))
            tree = tree["deployment"]
        made = canonical.from_json(deploy.Deployment, tree)
        trusted_deployment.check_hash(path, made, wanted)
        return made, *urls
    except OSError as error:
        raise fail(
            f"--deployment {path}: {error.strerror}; on a devnet it is --devnet "
            f"devnet/devnet.json, once it is up",
            EXIT_USAGE,
        ) from error
    except Refused as refused:
        raise fail(f"--deployment {path}: {refused.detail}", EXIT_USAGE) from refused
