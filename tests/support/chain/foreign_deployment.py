"""A deployment that uses a stablecoin that is not ours, made as `quorate chain deploy` makes it."""

import asyncio
from pathlib import Path

from quorate_contracts.chain_cli.deployment_run import DeploymentRun, Wanted
from quorate_contracts.deploy import Deployment, created_address
from quorate_devnet.market.bulk_sender import BulkSender
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from support.chain import foreign_token

POLL_SECONDS = 0.05


class QuickClock(SystemClock):
    """The system's clock, whose sleeps are short: a test's chain makes its blocks fast."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, POLL_SECONDS))


async def put_token(client: ChainClient, signer: KeySigner) -> Address:
    """Puts the token on the chain; the signer's first transaction makes it. It may mint."""
    wallet = BulkSender(client, await client.chain_id(), signer)
    token = created_address(signer.address, 0)
    await wallet.create("token", foreign_token.CREATION, foreign_token.CREATION_GAS)
    begin = foreign_token.set_up(token, signer.address)
    for number, call in enumerate((*begin, foreign_token.allow_minting(token, signer.address))):
        await wallet.call(f"call {number}", call)
    async with asyncio.timeout(60):
        while not await wallet.check():
            await asyncio.sleep(POLL_SECONDS)
    return token


async def deploy(
    client: ChainClient, signer: KeySigner, beacon: BeaconInfo, folder: Path
) -> Deployment:
    """Runs `quorate chain deploy --token` with the token; its files go to `folder`."""
    token = await put_token(client, signer)
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "deployment.json"
    wanted = Wanted(await client.chain_id(), DEVNET, beacon, token, out)
    run = DeploymentRun(client, signer, wanted, QuickClock(), lambda _: None)
    plan, _ = await run.check()
    made = await run.send(plan)
    assert made.token == token
    return made
