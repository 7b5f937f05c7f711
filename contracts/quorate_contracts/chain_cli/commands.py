"""The functions of the commands of `quorate chain`."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from quorate_contracts.account.relaying import read_file
from quorate_contracts.chain_cli import deploy_command
from quorate_contracts.chain_cli.funding import accounts_of
from quorate_contracts.chain_cli.networks import NETWORKS, network_of
from quorate_protocol.limits import BY_NAME, MAINNET
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Amount
from quorate_runtime.files import file_lock
from quorate_runtime.http.urls import web_url
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.keys.keystore import KEY_FILE_BYTES_MAX, Keystore, KeystoreError, read_private
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process.command_errors import (
    EXIT_FAILED,
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    remember_json,
    say_error,
)

FEE_CAP_GWEI = 100


KeyFile = Annotated[
    Path, typer.Option("--key", help="Key that pays: a wallet's key file (JSON), or 64 hex digits")
]
NetworkName = Annotated[
    str, typer.Option("--network", help=f"Chain by name: {', '.join(NETWORKS)}")
]
ChainUrl = Annotated[
    str, typer.Option("--chain-url", help="Chain node (default: a public one of --network)")
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="File with the key's passphrase (mode 0600)")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON line on stdout", callback=remember_json)
]


def deploy(
    key: KeyFile,
    network: NetworkName = "",
    chain_url: ChainUrl = "",
    chain_id: Annotated[
        int, typer.Option("--chain-id", min=0, help="Id of the chain, if --network does not say it")
    ] = 0,
    token: Annotated[
        str, typer.Option("--token", help="Stablecoin with six decimals, such as USDC: its address")
    ] = "",
    test_token: Annotated[
        bool, typer.Option("--test-token", help="Make a test token that anybody can mint")
    ] = False,
    beacon: Annotated[
        str, typer.Option("--beacon", help="quicknet (drand's), or the URL of a beacon of your own")
    ] = "quicknet",
    beacon_key: Annotated[
        str, typer.Option("--beacon-key", help="Public key that the beacon must have, in hex")
    ] = "",
    limits: Annotated[
        str, typer.Option("--limits", help=f"Rules: {', '.join(BY_NAME)} (default: the network's)")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="File to write")] = Path("deployment.json"),
    fee_cap_gwei: Annotated[
        int, typer.Option("--fee-cap-gwei", min=1, help="The most that it may pay per gas")
    ] = FEE_CAP_GWEI,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before paying")] = False,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Deploy the contracts, and write deployment.json. Repeat it after an interruption."""
    with _sentences(), _alone(out):
        known = network_of(network) if network else None
        url = _chain_url(network, chain_url)
        name = limits or (known.limits if known else "")
        if name not in BY_NAME:
            raise Refused(Code.MALFORMED, f"--limits {name!r}: give one of {', '.join(BY_NAME)}")
        if bool(token) == test_token:
            raise Refused(
                Code.MALFORMED, "give either --token ADDRESS or --test-token, which anybody mints"
            )
        typed = deploy_command.Typed(
            chain_url=url,
            chain_id=known.chain_id if known else chain_id,
            token=token,
            beacon=beacon,
            beacon_key=beacon_key,
            limits=name,
            out=out,
        )
        signer: Signer = open_key(key, password_file)
        asyncio.run(deploy_command.deploy(typed, signer, fee_cap_gwei, _ask(yes), _note, as_json))


def make_key(
    path: Annotated[Path, typer.Argument(help="File to make, such as deployer.json")],
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key to deploy with. It has no rights in the market; it only pays."""
    with _sentences():
        address = "0x" + create_key(path, password_file).address.hex()
    if as_json:
        typer.echo(json.dumps({"address": address, "key": str(path)}))
        return
    typer.echo(f"{address}  {path}")
    where = shlex.quote(str(path))
    typer.echo(f"Next: send it coins for gas, then `quorate chain deploy --key {where} ...`")


def fund(
    accounts: Annotated[
        list[str], typer.Argument(help="Addresses, or folders of a provider, coordinator or client")
    ],
    key: KeyFile,
    deployment: Annotated[
        Path, typer.Option("--deployment", help="The market's deployment.json")
    ] = Path("deployment.json"),
    network: NetworkName = "",
    chain_url: ChainUrl = "",
    coins: Annotated[
        str, typer.Option("--coins", help="Coins for gas that each account shall have")
    ] = "0.05",
    usd: Annotated[
        int, typer.Option("--usd", min=0, max=10**9, help="Tokens that each account shall have")
    ] = 2_000,
    again: Annotated[
        bool, typer.Option("--again", help="Send the whole sums, whatever the accounts have")
    ] = False,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Send what accounts that join lack of coins and tokens. A test token is minted."""
    with _sentences():
        url = _chain_url(network, chain_url)
        wanted, wei = accounts_of(accounts), _wei(coins)
        if network:
            deploy_command.check_network(deployment, network_of(network))
        signer: Signer = open_key(key, password_file)
        money = (wanted, wei, usd, again)
        gifts = asyncio.run(deploy_command.fund(url, deployment, signer, *money, _note))
    if as_json:
        sent = [
            {"account": "0x" + each.account.hex(), "coinsWei": str(each.wei), "tokens": each.amount}
            for each in gifts
        ]
        typer.echo(json.dumps({"funded": ["0x" + each.hex() for each in wanted], "sent": sent}))
        return
    for each in gifts:
        typer.echo(deploy_command.gift_line(each))


def relay(
    requests: Annotated[Path, typer.Argument(help="File that `quorate node request` wrote")],
    key: KeyFile,
    deployment: Annotated[
        Path, typer.Option("--deployment", help="The market's deployment.json")
    ] = Path("deployment.json"),
    network: NetworkName = "",
    chain_url: ChainUrl = "",
    fee: Annotated[
        str, typer.Option("--fee", help="USD to take for each request (default: what was signed)")
    ] = "",
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Send what an account without coins signed. It pays you in tokens, at most what it signed."""
    with _sentences():
        url, file = _chain_url(network, chain_url), read_file(requests)
        if network:
            deploy_command.check_network(deployment, network_of(network))
        signer: Signer = open_key(key, password_file)
        wanted = Amount(_wei(fee, "--fee", 6)) if fee else None
        found, sentence = asyncio.run(
            deploy_command.relay(url, deployment, signer, file, wanted, _note)
        )
    if as_json:
        facts = {"sent": found.sent, "gasWei": str(found.wei), "microUsd": found.amount}
        typer.echo(json.dumps(facts))
        return
    typer.echo(sentence)


def networks(as_json: AsJson = False) -> None:
    """List the chains that --network knows."""
    if as_json:
        rows = {
            item.name: {"chainId": item.chain_id, "chainUrl": item.chain_url, "limits": item.limits}
            for item in NETWORKS.values()
        }
        typer.echo(json.dumps(rows))
        return
    for item in NETWORKS.values():
        typer.echo(f"{item.name:13} {item.chain_id:>9}  {item.limits:8} {item.chain_url}")


def _chain_url(network: str, chain_url: str) -> str:
    known = network_of(network) if network else None
    if known is None and not chain_url:
        told = f"name the chain: --network {'|'.join(NETWORKS)}, or --chain-url URL"
        raise Refused(Code.MALFORMED, told)
    return web_url("--chain-url", chain_url or (known.chain_url if known else ""), "https://...")


def _wei(text: str, flag: str = "--coins", decimals: int = 18) -> int:
    """Returns coins in wei, or USD in millionths. Raises Refused for another text."""
    whole, _, part = text.partition(".")
    is_number = (whole + part).isascii() and (whole + part).isdecimal() and len(text) <= 40
    if not is_number or not whole or len(part) > decimals:
        told = f"{flag} {text[:40]!r}: a number with at most {decimals} decimals"
        raise Refused(Code.MALFORMED, told)
    return int(whole + part.ljust(decimals, "0"))


def _ask(is_yes: bool) -> bool | None:
    """Returns whether to go on without a question; None if a person is there to answer one."""
    if is_yes:
        return True
    return None if sys.stdin.isatty() else False


def _note(sentence: str) -> None:
    typer.echo(f"chain: {sentence}", err=True)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Lets one command at a time work on a file. Raises Refused if another one does."""
    if not out.parent.is_dir():
        raise Refused(Code.MALFORMED, f"--out {out}: there is no folder {out.parent}")
    place = out.with_name(out.name + ".lock")
    told = f"another `quorate chain deploy` works on {out}: wait until it has ended"
    with file_lock(place, Refused(Code.BUSY, told)):
        yield
        place.unlink(missing_ok=True)


@contextmanager
def _sentences() -> Iterator[None]:
    """Turns errors into one sentence on stderr and an exit code."""
    try:
        yield
    except Refused as refused:
        is_usage = refused.code is Code.MALFORMED
        status = EXIT_USAGE if is_usage else EXIT_REFUSED
        raise _fail(refused.detail, status, refused.code) from refused
    except KeystoreError as error:
        raise _fail(str(error), EXIT_REFUSED) from error
    except Unavailable as error:
        # A node that nothing reaches has most often never been asked for a transaction.
        is_away = "Cannot connect" in str(error)
        first = "Start the node, or name it: --chain-url URL; then repeat" if is_away else "Repeat"
        raise _fail(f"{error}. {first} the command: it goes on", EXIT_UNAVAILABLE) from error
    except OSError as error:
        raise _fail(f"{error.filename or ''}: {error.strerror}", EXIT_FAILED) from error


def _fail(message: str, status: int, code: Code | None = None) -> typer.Exit:
    say_error("chain", message, status, code.value if code else "")
    return typer.Exit(status)


WHOSE = "deployer"


def open_key(path: Path, password_file: Path | None) -> KeySigner:
    """Opens the key. Raises KeystoreError, which names the file and the remedy.

    A version 3 file needs its passphrase; a file with 64 hex digits needs none.
    """
    if not path.exists():
        raise KeystoreError(f"--key {path}: no such file; make one: quorate chain key {path}")
    text = read_private(path, KEY_FILE_BYTES_MAX).strip()
    if not text.startswith(b"{"):
        return _from_hex(path, text)
    passphrase = passphrase_of(password_file, os.environ, WHOSE)
    _check_name(path)
    return Keystore.at(path.parent, passphrase, MAINNET).account(path.stem)


def create_key(path: Path, password_file: Path | None) -> KeySigner:
    """Makes a new key file, never over another file. Raises KeystoreError or Refused."""
    _check_name(path)
    if path.exists():
        raise KeystoreError(f"{path} exists. Move it away first if you really want a new key.")
    passphrase = passphrase_of(password_file, os.environ, WHOSE, is_new=True)
    return Keystore.at(path.parent, passphrase, MAINNET).create_account(path.stem)


def _check_name(path: Path) -> None:
    if path.suffix != ".json" or not path.stem.replace("-", "").isalnum():
        raise Refused(
            Code.MALFORMED,
            f"{path}: a key file's name has letters, digits and dashes, and ends in .json",
        )


def _from_hex(path: Path, text: bytes) -> KeySigner:
    try:
        secret = bytes.fromhex(text.decode("ascii").removeprefix("0x"))
        if len(secret) == 32:
            return KeySigner(secret)
    except ValueError:
        pass  # not re-raised: the sentence below says what the file should hold
    raise KeystoreError(
        f"--key {path}: it holds neither a wallet's key file (JSON, version 3) nor 64 hex digits"
    )
