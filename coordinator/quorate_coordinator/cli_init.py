"""`quorate coordinator init`: makes keys and settings, and prints what has to be funded."""

import json
import os
import shlex
from ipaddress import ip_network
from pathlib import Path

import typer

from quorate_contracts import deploy
from quorate_contracts.money_texts import Currency, currency_of
from quorate_coordinator import cli_options as options
from quorate_coordinator import coordinator_keys, settings
from quorate_coordinator.cli_options import EXIT_REFUSED, EXIT_USAGE, fail, home_of, proxies_of
from quorate_coordinator.config import FEE_CAP_GWEI
from quorate_coordinator.coordinator_keys import CoordinatorKeys
from quorate_protocol.codec import canonical
from quorate_protocol.limits import BY_NAME, DEVNET
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Bps
from quorate_runtime.http.client_networks import X_FORWARDED_FOR
from quorate_runtime.http.urls import web_url
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.passphrase import passphrase_of

CHAIN_URL, BEACON_URL = "http://127.0.0.1:8545", "http://127.0.0.1:8546"
DEPLOYMENT_BYTES_MAX = 1 << 20


def init(
    deployment: options.DeploymentFile,
    chain_url: options.ChainUrl = "",
    beacon_url: options.BeaconUrl = "",
    host: options.Host = "127.0.0.1",
    port: options.Port = 7700,
    public_url: options.PublicUrl = "",
    p2p_listen: options.P2pListen = "",
    p2p_announce: options.P2pAnnounce = None,
    fee_bps: options.FeeBps = 200,
    fee_cap_gwei: options.FeeCapGwei = FEE_CAP_GWEI,
    trusted_proxy: options.TrustedProxies = None,
    proxy_header: options.ProxyHeader = X_FORWARDED_FOR,
    database: options.DatabaseUrl = None,
    metrics_from: options.MetricsFrom = None,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Make keys and settings; print what has to be funded."""
    folder, proxies = home_of(home), tuple(trusted_proxy or ())
    proxies_of(proxies, proxy_header)
    if database:
        options.database(database, folder)
    made, chain, beacon = _read_deployment(deployment)
    try:
        chain_url = web_url("--chain-url", chain_url or chain or CHAIN_URL, CHAIN_URL)
        beacon_url = web_url("--beacon-url", beacon_url or beacon or BEACON_URL, BEACON_URL)
        public_url = (
            web_url("--public-url", public_url, "https://market.example") if public_url else ""
        )
        announce = tuple(dict.fromkeys(p2p_announce or ()))
        settings.check_p2p("--p2p-listen", p2p_listen, "--p2p-announce", announce)
        keys = _make_keys(folder, password_file, made)
    except Refused as error:
        raise fail(error.detail, EXIT_USAGE) from error
    except KeystoreError as error:
        raise fail(str(error), EXIT_REFUSED) from error
    settings.write(
        folder,
        settings.Settings(
            made,
            chain_url,
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
        ),
    )
    bond = BY_NAME[made.limits].coordinator_bond
    if as_json:
        _print_json(folder, keys, bond)
    else:
        is_devnet = made.limits == DEVNET.name and bool(chain)
        _print(folder, home, keys, currency_of(made), bond, is_devnet)


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
    return coordinator_keys.create(Keystore.at(folder / "keys", passphrase, BY_NAME[made.limits]))


def _print_json(folder: Path, keys: CoordinatorKeys, bond: int) -> None:
    facts = {
        "home": str(folder),
        "account": "0x" + keys.account.address.hex(),
        "posting": "0x" + keys.posting.address.hex(),
        "bond": bond,
    }
    typer.echo(json.dumps(facts))


def _print(
    folder: Path,
    home: Path | None,
    keys: CoordinatorKeys,
    currency: Currency,
    bond: int,
    is_devnet: bool,
) -> None:
    typer.echo(f"Coordinator made in {folder}")
    typer.echo(
        f"  account 0x{keys.account.address.hex()}: needs {currency.tokens(bond)} as bond and "
        f"{currency.coin} for gas on {currency.chain}"
    )
    typer.echo(
        f"  posting 0x{keys.posting.address.hex()}: needs {currency.coin} for gas, and the same "
        "token for the bonds of cases"
    )
    fund = f"`quorate devnet fund {shlex.quote(str(home or folder))}`" if is_devnet else "fund both"
    at_home = "" if home is None else f" --home {shlex.quote(str(home))}"
    typer.echo(f"Next: {fund}, then `quorate coordinator up{at_home}`")


def _read_deployment(path: Path) -> tuple[deploy.Deployment, str, str]:
    """(deployment, chain URL, beacon URL). A URL is "" where the file does not name it; a
    devnet.json names both.
    """
    try:
        tree = canonical.parse(path.read_bytes(), DEPLOYMENT_BYTES_MAX)
        if not isinstance(tree, dict) or "deployment" not in tree:
            return canonical.from_json(deploy.Deployment, tree), "", ""
        return (
            canonical.from_json(deploy.Deployment, tree["deployment"]),
            str(tree.get("chainUrl", "")),
            str(tree.get("beaconUrl", "")),
        )
    except OSError as error:
        raise fail(
            f"--deployment {path}: {error.strerror}; on a devnet it is --devnet "
            f"devnet/devnet.json, once it is up",
            EXIT_USAGE,
        ) from error
    except Refused as refused:
        raise fail(f"--deployment {path}: {refused.detail}", EXIT_USAGE) from refused
