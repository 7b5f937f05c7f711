"""`quorate coordinator init`: makes keys and settings, and prints what has to be funded."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import typer

from quorate_contracts import deploy, trusted_deployment
from quorate_contracts.money_texts import currency_of
from quorate_coordinator.base import coordinator_keys, settings
from quorate_coordinator.base.config import ACCUSE_USD, BEACON_URL, CHAIN_URL, Settings
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.cli import options
from quorate_coordinator.cli.options import fail, home_of, proxies_of
from quorate_protocol.codec import canonical
from quorate_protocol.limits import BY_NAME, DEVNET, USD
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.files import private_folder
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_USAGE
from quorate_runtime.process.program_start import home_flag
from quorate_runtime.process.settings_flags import named_fields, read_flags, with_flags, with_named

DEPLOYMENT_BYTES_MAX = 1 << 20
CAPITAL_FIRST = 200 * USD  # guarantees of ten owners with one slot each, and their first pay
LIMIT_FIRST = 100  # USD a day


@with_flags(Settings)
def init(
    ctx: typer.Context,
    deployment: options.DeploymentFile = None,
    *,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
    **typed: Any,
) -> None:
    """Make keys and settings; print what to fund. Again: change the settings that you name."""
    folder = home_of(home)
    kept = _kept(folder)
    proxies_of(tuple(typed["trusted_proxies"] or ()), typed["proxy_header"])
    if typed["database"]:
        options.database(typed["database"], folder)
    made, chain, beacon = _deployment_of(folder, deployment, kept)
    named = named_fields(ctx, Settings)
    if chain:
        named |= {"chain_url", "second_chain_url"}
    if beacon:
        named |= {"beacon_url"}
    typed["chain_url"] = typed["chain_url"] or [chain or CHAIN_URL]
    typed["beacon_url"] = typed["beacon_url"] or beacon or BEACON_URL
    try:
        wanted = Settings(deployment=made, **read_flags(Settings, typed))
        settings.check_p2p("--p2p-listen", wanted.p2p_listen, "--p2p-announce", wanted.p2p_announce)
        keys = _make_keys(folder, password_file, made)
    except Refused as error:
        raise fail(error.detail, EXIT_USAGE, error.code) from error
    except ValueError as error:
        raise fail(str(error), EXIT_USAGE) from error
    except KeystoreError as error:
        raise fail(str(error), EXIT_REFUSED) from error
    after = wanted if kept is None else with_named(kept, wanted, named)
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
    folder: Path, file: Path | None, kept: Settings | None
) -> tuple[deploy.Deployment, str, str]:
    """(deployment, chain URL, beacon URL) of the file, else of the folder, which names no URL."""
    if file is not None:
        found = _read_deployment(file)
        if kept is not None and found[0] != kept.deployment and (folder / "journal").exists():
            told = f"{folder} has the journal of another deployment; name a new folder with --home"
            raise fail(f"--deployment {file}: {told}", EXIT_REFUSED)
        return found
    if kept is None:
        told = "a new coordinator needs --deployment deployment.json, or --devnet devnet.json"
        raise fail(told, EXIT_USAGE)
    return kept.deployment, "", ""


def _kept(folder: Path) -> Settings | None:
    """The settings of a folder; None without a file. Ends the program if it cannot be read."""
    try:
        return settings.read(folder)
    except Refused as refused:
        if refused.code is Code.UNKNOWN:
            return None  # not re-raised: this command makes the file
        raise fail(refused.detail, EXIT_REFUSED, refused.code) from refused


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
    at = home_flag(home)
    typer.echo(f"Next: {fund}, then `quorate coordinator up{at}`. Then give it capital:")
    typer.echo(f"  quorate coordinator deposit {CAPITAL_FIRST // USD}{at}")
    typer.echo(f"  quorate coordinator limit --payroll {LIMIT_FIRST} --locks {LIMIT_FIRST}{at}")
    typer.echo(f"  quorate coordinator deposit {ACCUSE_USD} --accusations{at}")


def _print_changes(folder: Path, home: Path | None, after: Settings, changes: list[str]) -> None:
    if not changes:
        typer.echo(f"Nothing changed in {folder}: keys and settings stay")
        typer.echo(f"Next: `quorate coordinator status{home_flag(home)}` says how it is")
        return
    typer.echo(f"Coordinator changed in {folder}: its keys and its other settings stay")
    for name in changes:
        value = getattr(after, name.replace("-", "_"))
        # A database's URL may hold a password, and a deployment is a page long.
        shown = "" if name in ("database", "deployment") else f" {_shown(value)}"
        typer.echo(f"  {name}{shown}")
    typer.echo(
        f"Next: start `quorate coordinator up{home_flag(home)}` again if it runs, because it keeps "
        f"the old settings until then; `quorate coordinator status{home_flag(home)}` says how it is"
    )


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "(none)"


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
