"""Connects `quorate chain deploy` with the chain and the beacon, and prints what comes of it."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from aiohttp import ClientSession

from quorate_contracts.chain_cli.deployment_run import Cost, DeploymentRun, Wanted
from quorate_contracts.chain_cli.funding import Funding, Gift
from quorate_contracts.chain_cli.networks import Network
from quorate_contracts.chain_cli.relaying import Relay, Relayed, told
from quorate_contracts.chain_cli.token_check import address_of
from quorate_contracts.chain_cli.verification import folder_of
from quorate_contracts.deploy import Contracts, Deployment, digest
from quorate_contracts.money_texts import Currency, coins
from quorate_contracts.relayed_requests import RequestFile
from quorate_contracts.trusted_deployment import read as read_deployment
from quorate_protocol.limits import BY_NAME, USD, Limits
from quorate_protocol.messages.ports import BeaconInfo, Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Seconds, usd
from quorate_runtime.beacon.beacon_client import fetch_info
from quorate_runtime.beacon.bls import PUBLIC_KEY_BYTES
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.urls import web_url

# The beacon of a new deployment: drand's quicknet, or one that serves rounds in drand's format.
#
# The contracts keep its key, start and period for ever. They prove signatures of the scheme `bls-
# unchained-g1-rfc9380` only, so drand's older chains cannot be used.

QUICKNET = "quicknet"
QUICKNET_URL = (
    "https://api.drand.sh/52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971"
)
# The last part of the URL is the hash of these values and of the group, as drand defines it.
QUICKNET_INFO = BeaconInfo(
    bytes.fromhex(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c"
        "8c4b450b6a0a6c3ac6a5776a2d1064510d1fec758c921cc22b0e17e63aaf4bcb"
        "5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
    ),
    Seconds(3),
    1_692_803_367,
)


@dataclass(frozen=True, slots=True)
class BeaconChoice:
    """A beacon, and where the coordinator reads its rounds."""

    url: str
    info: BeaconInfo
    is_own_word: bool  # the key came from the beacon itself, and nothing confirms it


async def choose_beacon(
    text: str, key: str, limits: Limits, session: ClientSession
) -> BeaconChoice:
    """Returns the beacon that `--beacon` (quicknet or a URL) and `--beacon-key` name.

    Raises Refused for another key or another period than the limits have, Unavailable if the
    beacon does not answer.
    """
    wanted = _key(key)
    if text == QUICKNET:
        found = BeaconChoice(QUICKNET_URL, QUICKNET_INFO, is_own_word=False)
    else:
        url = web_url("--beacon", text, "http://127.0.0.1:8546, or it is `quicknet`")
        found = BeaconChoice(url, await fetch_info(url, session), is_own_word=not wanted)
    if wanted and wanted != found.info.public_key:
        said = found.info.public_key.hex()
        raise Refused(Code.MALFORMED, f"--beacon-key: the beacon {text} has another key, {said}")
    if found.info.period != limits.beacon_period:
        raise Refused(
            Code.MALFORMED,
            f"--beacon {text} has a round every {found.info.period} s, and --limits {limits.name} "
            f"needs one every {limits.beacon_period} s: choose other limits or another beacon",
        )
    return found


def _key(text: str) -> bytes:
    if not text:
        return b""
    try:
        key = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        key = b"?"  # not re-raised: its length is refused below
    if len(key) != PUBLIC_KEY_BYTES:
        raise Refused(Code.MALFORMED, f"--beacon-key: a key has {2 * PUBLIC_KEY_BYTES} hex digits")
    return key


@dataclass(frozen=True, slots=True)
class Typed:
    """The flags. `chain_id` 0 accepts the chain that the node names."""

    chain_url: str
    chain_id: int
    token: str
    beacon: str
    beacon_key: str
    limits: str
    out: Path


async def deploy(
    typed: Typed,
    signer: Signer,
    fee_cap_gwei: int,
    may_pay: bool | None,
    note: Callable[[str], None],
    as_json: bool,
) -> None:
    """Runs the command. `may_pay` None asks at the terminal.

    Raises Refused and Unavailable with sentences for people.
    """
    limits, token = BY_NAME[typed.limits], None
    if typed.token:
        token = address_of("--token", typed.token)
    async with plain_session() as session:
        client = ChainClient(Rpc(typed.chain_url, session), fee_cap_gwei * GWEI)
        chain_id = typed.chain_id or await client.chain_id()
        beacon = await choose_beacon(typed.beacon, typed.beacon_key, limits, session)
        if beacon.is_own_word:
            note(
                f"the beacon's key is its own word: {beacon.info.public_key.hex()}. To be sure, "
                f"repeat with --beacon-key"
            )
        wanted = Wanted(chain_id, limits, beacon.info, token, typed.out)
        run = DeploymentRun(client, signer, wanted, SystemClock(), note)
        found = await run.standing()
        if found is not None:
            note(f"{typed.out} stands on chain {chain_id} already: nothing was sent")
        else:
            plan, cost = await run.check()
            _confirm(chain_id, signer, cost, may_pay, note)
            found = await run.send(plan)
    _print(typed, found, beacon.url, as_json)


def check_network(file: Path, network: Network) -> None:
    """Raises Refused if a deployment is on another chain than the one that --network names."""
    found = read_deployment(file).chain_id
    if found != network.chain_id:
        told = f"--network {network.name} is chain {network.chain_id}; {file} is on chain {found}"
        raise Refused(Code.CHAIN, told)


async def fund(
    chain_url: str,
    file: Path,
    signer: Signer,
    accounts: Sequence[Address],
    wei: int,
    dollars: int,
    is_again: bool,
    note: Callable[[str], None],
) -> list[Gift]:
    """Sends coins and tokens that accounts lack, or all with `is_again`. Raises Refused and
    Unavailable with sentences.
    """
    made = read_deployment(file)
    async with plain_session() as session:
        client = ChainClient(Rpc(chain_url, session))
        amount = Amount(dollars * USD)
        return await Funding(client, made, signer, note).give(accounts, wei, amount, is_again)


async def relay(
    chain_url: str,
    file: Path,
    signer: Signer,
    requests: RequestFile,
    fee: Amount | None,
    note: Callable[[str], None],
) -> tuple[Relayed, str]:
    """Sends signed requests. Returns what came of it, and the sentence about it. Raises Refused and
    Unavailable with sentences.
    """
    contracts = Contracts.of(read_deployment(file))
    async with plain_session() as session:
        client = ChainClient(Rpc(chain_url, session))
        found = await Relay(client, contracts, signer, note).send(requests, fee)
    return found, told(found, contracts)


def gift_line(gift: Gift) -> str:
    had = f"had {usd(gift.had_amount)} USD and {coins(gift.had_wei)} coins"
    sent = [f"{usd(gift.amount)} USD"] if gift.amount else []
    sent += [f"{coins(gift.wei)} coins for gas"] if gift.wei else []
    told = f"was sent {' and '.join(sent)}" if sent else "nothing was sent (--again sends anyway)"
    return f"0x{gift.account.hex()}: {had}; {told}"


def _confirm(
    chain_id: int, signer: Signer, cost: Cost, may_pay: bool | None, note: Callable[[str], None]
) -> None:
    currency = Currency(chain_id, ZERO_ADDRESS)  # no token is paid here
    note(
        f"{len(cost.contracts)} contracts on {currency.chain}, paid by 0x{signer.address.hex()}: "
        f"about {currency.coins(cost.likely)}, at most {currency.coins(cost.most)}; it has "
        f"{currency.coins(cost.balance)}"
    )
    if may_pay is False:
        raise Refused(Code.MALFORMED, "nothing was sent: there is nobody to ask here; give --yes")
    if may_pay is None and not typer.confirm("Send?", err=True):
        raise Refused(Code.MALFORMED, "nothing was sent")


def _print(typed: Typed, found: Deployment, beacon_url: str, as_json: bool) -> None:
    words = ["quorate", "coordinator", "init", "--deployment", str(typed.out)]
    words += ["--chain-url", typed.chain_url, "--beacon-url", beacon_url]
    if as_json:
        contracts = {name: "0x" + address.hex() for address, name in found.names().items()}
        facts = {
            "chainId": found.chain_id,
            "contracts": contracts,
            "deployment": str(typed.out),
            "hash": digest(found),
            "limits": found.limits,
            "next": words,
        }
        typer.echo(json.dumps(facts))
        return
    for address, name in found.names().items():
        typer.echo(f"{name:10} 0x{address.hex()}")
    typer.echo(f"{typed.out}: give this file to owners and clients, who check the market by it")
    typer.echo(f"hash {digest(found)}: publish it too; they type --deployment {typed.out}#HASH")
    typer.echo(f"{folder_of(typed.out)}: what block explorers ask for to verify the sources")
    typer.echo(f"Next: {shlex.join(words)}")
