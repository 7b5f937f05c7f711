"""Deploys the contracts once on a chain that runs elsewhere, for a market of separate machines or
containers.
"""

import json
from pathlib import Path

import aiohttp

from quorate_contracts import deploy
from quorate_contracts.chain_check import check_machine
from quorate_contracts.deploy import Deployment
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.market.bulk_sender import BulkSender
from quorate_devnet.market.genesis import DEPLOYER, mined
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import BlockNumber
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.files import PUBLIC_MODE, write_atomic
from quorate_runtime.http.beacon_client import fetch_info
from quorate_runtime.keys.crypto import KeySigner

FILE_BYTES_MAX = 1 << 20


async def deploy_once(chain_url: str, beacon_url: str, path: Path) -> Deployment:
    """Deploys the contracts, then writes `path` (a devnet.json without accounts).

    It keeps an existing file if its contracts are on the chain. Raises Unavailable if chain or
    beacon do not answer, or the chain lacks the contracts of the file. Raises Refused if the chain
    lacks EIP-2537.
    """
    known = _read(path)
    async with aiohttp.ClientSession() as session:
        client = ChainClient(Rpc(chain_url, session))
        if known is not None:
            return await _deployment_if_on_chain(client, known, path)
        await check_machine(client)
        info = await fetch_info(beacon_url, session)
        wallet = BulkSender(client, await client.chain_id(), KeySigner(dev_account(DEPLOYER)))
        plan = deploy.plan(
            wallet.signer.address, 0, wallet.chain_id, BlockNumber(0), DEVNET, info, faucet=True
        )
        for wave in deploy.waves(plan.creations):
            for creation in wave:
                await wallet.create(creation.name, creation.data, creation.gas)
            await mined([wallet])
        made = await deploy.with_genesis(plan.deployment, client)
    facts = {"chainUrl": chain_url, "beaconUrl": beacon_url, "deployment": canonical.to_json(made)}
    text = json.dumps(facts, indent=2, sort_keys=True) + "\n"
    write_atomic(path, text.encode(), PUBLIC_MODE)
    return made


def _read(path: Path) -> Deployment | None:
    if not path.exists():
        return None
    tree = canonical.parse(path.read_bytes(), FILE_BYTES_MAX)
    assert isinstance(tree, dict), "we wrote it"
    made: Deployment = canonical.from_json(Deployment, tree["deployment"])
    return made


async def _deployment_if_on_chain(
    client: ChainClient, deployment: Deployment, path: Path
) -> Deployment:
    if not await client.code(deployment.stakes):
        raise Unavailable(
            f"the chain has forgotten the market of {path} (a devnet chain keeps nothing): remove "
            f"its volumes and start again"
        )
    return deployment
