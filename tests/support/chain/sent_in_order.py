"""Transactions that a test sends in order, and the contracts that it deploys so."""

from pathlib import Path

from quorate_contracts.deploy import Deployment, plan
from quorate_contracts.generated.contract_calls import Call
from quorate_devnet.chain.accounts import dev_account
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import BlockNumber
from quorate_runtime.chain import ChainClient, Sender
from quorate_runtime.chain.sender import Outgoing, SendPolicy
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner

QUICK = SendPolicy(poll_seconds=0.1)


async def send_calls(client: ChainClient, key: KeySigner, file: Path, *calls: Call) -> None:
    """Sends these transactions of one key. `file` is new, or was the key's before."""
    name = file.stem
    found = (Outgoing(f"{name}/{i}", it.to, it.data, gas=it.gas) for i, it in enumerate(calls))
    await _send(client, key, file, list(found))


async def deploy(client: ChainClient, folder: Path, beacon: BeaconInfo) -> Deployment:
    """Deploys the contracts with a token that anybody may mint, by the chain's first account."""
    deployer, chain_id = KeySigner(dev_account(0)), await client.chain_id()
    made = plan(deployer.address, 0, chain_id, BlockNumber(0), DEVNET, beacon, faucet=True)
    creations = [Outgoing(item.name, None, item.data, gas=item.gas) for item in made.creations]
    await _send(client, deployer, folder / "deployer.sqlite", creations)
    return made.deployment


async def _send(client: ChainClient, key: KeySigner, file: Path, orders: list[Outgoing]) -> None:
    chain_id = await client.chain_id()
    sender = Sender(client, key, file, SystemClock(), QUICK, chain_id=chain_id)
    try:
        await sender.send_in_order(orders, deadline_seconds=60)
    finally:
        sender.close()
