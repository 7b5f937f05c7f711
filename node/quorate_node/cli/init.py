"""`quorate node init`: makes keys and settings, and prints what has to be funded."""

import json
import shlex
from pathlib import Path

import typer

from quorate_content.store.disk_share import disk_bytes, free_bytes
from quorate_contracts import trusted_deployment
from quorate_node.base import provider_keys
from quorate_node.base import settings as settings_file
from quorate_node.base.config import Settings
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli import options
from quorate_node.cli.options import hex_text
from quorate_node.machine.gpu_slots import LaidOut, lay_out
from quorate_node.machine.host_probe import read_gpus
from quorate_node.owner.registration import network_of
from quorate_protocol.limits import BY_NAME, DEVNET, MAINNET
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import usd
from quorate_runtime.files import private_folder
from quorate_runtime.http.urls import web_url
from quorate_runtime.keys.keystore import KeystoreError
from quorate_runtime.process.program_start import home_flag
from quorate_runtime.process.settings_flags import named_fields, read_flags, with_flags


@with_flags(Settings)
def init(
    ctx: typer.Context,
    coordinator: options.Coordinators = None,
    devnet: options.DevnetFile = None,
    limits: options.LimitsName = MAINNET.name,
    *,
    deployment: options.DeploymentFile = None,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
    **typed: object,
) -> None:
    """Make keys and settings, and print what has to be funded."""
    folder = options.home_of(home)
    try:
        urls, is_devnet = _market(coordinator or [], devnet, limits)
        wanted = Settings(coordinators=urls, is_devnet=is_devnet, **read_flags(Settings, typed))
        _check_public_url(wanted.public_url)
        _check_disk(folder, wanted)
        before = _before(folder)
        settings, keys = _write(folder, wanted, _named(ctx), deployment, password_file)
    except (Refused, Unavailable, KeystoreError) as error:
        options.fail(error)
    if not _printed_json(as_json, folder, settings, keys):
        _print_all(folder, home, settings, keys, before, devnet is not None)


def _printed_json(as_json: bool, folder: Path, settings: Settings, keys: ProviderKeys) -> bool:
    if as_json:
        typer.echo(json.dumps(_facts(folder, settings, keys, _gpus(settings))))
    return as_json


def _write(
    folder: Path,
    typed: Settings,
    named: set[str],
    deployment: Path | None,
    password_file: Path | None,
) -> tuple[Settings, ProviderKeys]:
    """Makes the keys that are missing, then writes the trusted deployment and the settings.

    `named` holds the fields of `typed` that the owner named; the others stay.
    """
    trusted = trusted_deployment.read(deployment) if deployment else None
    private_folder(folder)
    with settings_file.changing(folder):
        settings = settings_file.changed(folder, typed, named)
        settings_file.check_renting(settings)
        is_first = not provider_keys.operator_names(folder / options.KEYS_FOLDER)
        keystore = options.open_keystore(folder, settings, password_file, is_first)
        keys = provider_keys.create(keystore, *options.owner_and_payout(settings))
        # Before the settings: a daemon that had settings only would trust any coordinator's
        # contracts.
        trusted_deployment.keep(folder, trusted)
        settings_file.write(folder, settings)
    return settings, keys


def _stake_of(settings: Settings, gpus: LaidOut) -> int:
    count = settings.cpu_slots + sum(len(item.groups) for item in gpus.classes)
    return count * (DEVNET if settings.is_devnet else MAINNET).slot_stake


def _gpus(settings: Settings) -> LaidOut:
    from quorate_node.machine.nvml_probe import NvmlProbe

    return lay_out(read_gpus(NvmlProbe()), settings)


def _facts(
    folder: Path, settings: Settings, keys: ProviderKeys, gpus: LaidOut
) -> dict[str, object]:
    return {
        "home": str(folder),
        "provider": hex_text(keys.account),
        "operator": hex_text(keys.operator.address),
        "payout": hex_text(keys.payout),
        "stake": _stake_of(settings, gpus),
        "gpu_slots": sum(len(item.groups) for item in gpus.classes),
        "has_owner_key": keys.owner is not None,
    }


def _print_result(
    folder: Path, settings: Settings, keys: ProviderKeys, gpus: LaidOut, is_first: bool
) -> None:
    if is_first:
        typer.echo(f"Provider made in {folder}")
    else:
        typer.echo(f"Provider changed in {folder}: its keys and its other settings stay")
    stake, operator = usd(_stake_of(settings, gpus)), hex_text(keys.operator.address)
    needs = f"needs {stake} USD of stake and gas to register"
    if settings.probation:
        needs = "needs gas to register; its pay is held until it is "
        needs += f"{stake} USD, and becomes the stake"
    told = f"{needs}; `quorate node check` names token, coin and chain"
    if not is_first:  # it may have staked since
        told = f"{stake} USD of stake in all; `quorate node check` says what is missing"
    typer.echo(f"  owner {hex_text(keys.account)}: {told}")
    typer.echo(f"  operator {operator}: signs; `up` gives it gas from the owner")
    for item in gpus.classes:
        slots = f"{len(item.groups)} slots of {item.pool}"
        typer.echo(f"  GPUs: {slots} at {usd(item.price)} USD per slot-hour")
    for problem in gpus.problems:
        typer.echo(f"  GPUs: {problem}")


def _before(folder: Path) -> tuple[bool, int]:
    is_first = not (folder / settings_file.FILE).exists()
    return is_first, 0 if is_first else settings_file.read(folder).cpu_slots


def _print_all(
    folder: Path,
    home: Path | None,
    settings: Settings,
    keys: ProviderKeys,
    before: tuple[bool, int],
    is_devnet: bool,
) -> None:
    is_first, slots_before = before
    _print_result(folder, settings, keys, _gpus(settings), is_first)
    _print_surplus(slots_before - settings.cpu_slots, settings)
    if is_first:
        _print_next_step(folder, home, is_devnet=is_devnet)
    else:
        typer.echo(f"Next: `quorate node check{home_flag(home)}`")
        typer.echo("A running daemon takes the change at its next start.")


def _print_surplus(count: int, settings: Settings) -> None:
    if count <= 0:
        return
    limits = DEVNET if settings.is_devnet else MAINNET
    stake, seconds = usd(count * limits.slot_stake), limits.unbond_after
    after = f"{seconds // 86_400} days" if seconds >= 86_400 else f"{seconds} seconds"
    fewer = "1 slot fewer" if count == 1 else f"{count} slots fewer"
    typer.echo(
        f"  {fewer}: the next start of `up` closes what is too much; {stake} USD of stake come "
        f"back to the owner {after} later"
    )


def _print_next_step(folder: Path, home: Path | None, is_devnet: bool) -> None:
    flag, fund = home_flag(home), "fund the owner"
    if is_devnet:
        fund = f"`quorate devnet fund {shlex.quote(str(home or folder))}`"
    typer.echo(f"Next: {fund}, then `quorate node check{flag}` and `quorate node up{flag}`")


def _named(ctx: typer.Context) -> set[str]:
    """Returns the fields of the settings whose options the user typed."""
    named = named_fields(ctx, Settings)
    markets = {"coordinators": {"coordinator", "devnet"}, "is_devnet": {"limits", "devnet"}}
    return named | {field for field, names in markets.items() if named & names}


def _market(
    coordinators: list[str], devnet: Path | None, limits: str
) -> tuple[tuple[str, ...], bool]:
    """Returns (URLs of the coordinators to serve, whether the limits of a devnet apply)."""
    if limits not in BY_NAME:
        raise Refused(Code.MALFORMED, f"--limits {limits!r}: use one of {', '.join(BY_NAME)}")
    urls = [settings_file.devnet_coordinator(devnet)] if devnet else []
    urls += [web_url("--coordinator", url, "http://127.0.0.1:7700") for url in coordinators]
    return tuple(dict.fromkeys(urls)), devnet is not None or limits == DEVNET.name


def _check_disk(folder: Path, typed: Settings) -> None:
    sized = typed.job_disk_bytes + typed.store_bytes
    if sized > (size := disk_bytes(folder)):
        raise Refused(
            Code.MALFORMED,
            f"--job-disk and --store-size name {size_text(sized)}; the disk has {size_text(size)}, "
            f"{size_text(free_bytes(folder))} of it free",
        )


def _check_public_url(url: str) -> None:
    """Raises Refused for a name, because the IP address decides the provider's network on chain."""
    if url:
        network_of(url)
