"""Connects `quorate chain deploy` with the chain and the beacon, and prints what comes of it."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from quorate_contracts.chain_cli.beacon_choice import choose_beacon
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
from quorate_protocol.limits import BY_NAME, USD
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.client_sessions import plain_session


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
    """Says what an account had and what it was sent."""
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
