"""The coordinator as a process-sized whole: real chain, real beacon, real contracts, real sockets; only providers are missing."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from quorate_contracts.deploy import Contracts, Deployment, plan
from quorate_coordinator.adapters.registration import ask
from quorate_coordinator.config import Config
from quorate_coordinator.keys import CoordinatorKeys
from quorate_coordinator.service import Service
from quorate_devnet.beacon import BeaconConfig, running_beacon
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.chain.server import ChainConfig, running_chain
from quorate_protocol.bearer import Bearer, make_token
from quorate_protocol.cids import document_cid
from quorate_protocol.limits import DEVNET
from quorate_protocol.ports import BeaconInfo
from quorate_protocol.units import Address, Amount, BlockNumber, UnixSeconds
from quorate_runtime.beacon import fetch_info
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.chain.sender import Outgoing
from quorate_runtime.clock import SystemClock
from quorate_runtime.crypto import KeySigner

USD = 1_000_000


@dataclass
class Stage:
    """A deployed chain with a beacon and a funded coordinator and client."""

    chain_url: str
    beacon_url: str
    deployment: Deployment
    keys: CoordinatorKeys
    client: KeySigner
    home: Path
    session: aiohttp.ClientSession

    def service(self) -> Service:
        """A coordinator on any free port."""
        return Service(Config(self.home, self.deployment, self.chain_url, self.beacon_url, port=0), self.keys)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    beacon = BeaconConfig(seed=b"service-test-seed-of-32-bytes-ok", genesis=int(time.time()) - 100, period=2)
    async with (
        running_chain(ChainConfig(block_seconds=1)) as chain,
        running_beacon(beacon) as beacon_url,
        aiohttp.ClientSession() as session,
    ):
        info = await fetch_info(beacon_url, session)
        keys = CoordinatorKeys(*(KeySigner(dev_account(i)) for i in (1, 2, 3)))
        client = KeySigner(dev_account(4))
        deployment = await deploy(chain.url, session, info, tmp_path, (keys.account.address, keys.posting.address, client.address))
        yield Stage(chain.url, beacon_url, deployment, keys, client, tmp_path / "coordinator", session)


async def deploy(url: str, session: aiohttp.ClientSession, info: BeaconInfo, folder: Path, funded: tuple[Address, ...]) -> Deployment:
    """All contracts, and 5,000 USD for each account, in order."""
    chain = ChainClient(Rpc(url, session))
    sender = Sender(chain, KeySigner(dev_account(0)), folder / "deployer.sqlite", SystemClock())
    made = plan(sender.address, 0, await chain.chain_id(), BlockNumber(0), DEVNET, info, faucet=True)
    contracts = Contracts.of(made.deployment)
    orders = [Outgoing(f"deploy-{item.name}", None, item.data, gas=item.gas) for item in made.creations]
    for account in funded:
        call = contracts.token.mint(account, Amount(5_000 * USD))
        orders.append(Outgoing(f"mint-{account.hex()}", call.to, call.data, gas=call.gas))
    await sender.send_in_order(orders, deadline_seconds=30)
    sender.close()
    return made.deployment


@contextlib.asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    task = asyncio.create_task(service.run())
    ready = asyncio.create_task(service.ready.wait())
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED, timeout=30)
    if task.done():
        ready.cancel()
        await task
    try:
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(read, good, seconds: float = 20.0):  # type: ignore[no-untyped-def]
    """Polls until `good(value)`, bounded."""
    deadline = time.monotonic() + seconds
    while True:
        value = await read()
        if good(value):
            return value
        assert time.monotonic() < deadline, f"still {value}"
        await asyncio.sleep(0.1)


async def test_registers_follows_the_chain_and_survives_a_restart(stage: Stage) -> None:
    contracts = Contracts.of(stage.deployment)
    chain = ChainClient(Rpc(stage.chain_url, stage.session))

    async def account(service: Service) -> dict[str, object]:
        async with stage.session.get(f"{service.url}/v1/accounts/0x{stage.client.address.hex()}") as response:
            return dict(await response.json())

    async with running(stage.service()) as service:
        assert await ask(chain, contracts.stakes.bond_of(stage.keys.account.address)) == DEVNET.coordinator_bond
        sender = Sender(chain, stage.client, stage.home / "client.sqlite", SystemClock())
        calls = (
            contracts.token.approve(stage.deployment.escrow),
            contracts.escrow.deposit(Amount(100 * USD)),
            contracts.escrow.allocate(stage.keys.account.address, Amount(80 * USD)),
        )
        orders = [Outgoing(str(i), call.to, call.data, gas=call.gas) for i, call in enumerate(calls)]
        await sender.send_in_order(orders, deadline_seconds=30)
        sender.close()
        await until(lambda: account(service), lambda view: view["allocation"] == 80 * USD)
        async with stage.session.get(f"{service.url}/v1/info") as response:
            assert (await response.json())["chainId"] == stage.deployment.chain_id
    async with running(stage.service()) as service:
        assert (await account(service))["allocation"] == 80 * USD, "nothing journaled is lost"


async def test_strangers_and_nonsense_are_refused_by_name(stage: Stage) -> None:
    async with running(stage.service()) as service:
        cases = (
            ("POST", "/v1/orders", b"{}", 400, "malformed"),
            ("POST", "/v1/orders", b"[" * 100_000, 400, "malformed"),
            ("POST", "/v1/orders", b" " * 300_000, 413, "oversize"),
            ("GET", "/v1/runs", None, 401, "bad-signature"),
            ("GET", "/v1/runs/0x00", None, 400, "malformed"),
            ("GET", f"/v1/runs/0x{'00' * 32}", None, 404, "unknown"),
            ("GET", "/v1/epochs/99/proofs/0x" + "00" * 20, None, 404, "unknown"),
            ("POST", "/v1/vouchers", b'{"type":"Order","body":{},"sig":"0x"}', 400, "malformed"),
        )
        for method, path, body, status, code in cases:
            async with stage.session.request(method, service.url + path, data=body) as response:
                assert (response.status, (await response.json())["code"]) == (status, code), path


async def test_uploads_need_an_account_with_money(stage: Stage) -> None:
    async with running(stage.service()) as service:
        stranger = KeySigner(b"\x77" * 32)
        bearer = Bearer(stranger.address, stranger.address, UnixSeconds(int(time.time()) + 60))
        token = make_token(bearer, stage.deployment.chain_id, stage.keys.account.address, stranger.sign)
        async with stage.session.put(f"{service.url}/v1/content", data=b"hello", headers={"Authorization": token}) as response:
            assert (response.status, (await response.json())["code"]) == (403, "not-registered")
        async with stage.session.get(f"{service.url}/v1/content/{document_cid(b'absent')}") as response:
            assert response.status == 404


async def test_a_second_coordinator_on_one_folder_is_refused(stage: Stage) -> None:
    async with running(stage.service()):
        with pytest.raises(BaseException, match="in use|lock|another|already"):
            async with running(stage.service()):
                pass


