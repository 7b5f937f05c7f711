"""A deployed chain with a beacon, and coordinators that run on it in this process.

It serves tests of the coordinator's whole service.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.generated.contract_calls import Call
from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import Config, Settings
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.service import Service
from quorate_devnet.beacon import BeaconConfig, running_beacon
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.chain.server import ChainConfig, running_chain
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.bearer import Bearer, make_token
from quorate_protocol.messages.envelope import encode, seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import Address, Amount, Bps, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.http.beacon_client import fetch_info
from quorate_runtime.keys.crypto import KeySigner, PeerKey
from quorate_runtime.keys.keystore import Keystore
from support.chain.sent_in_order import deploy, send_calls
from support.clocks import WrongClock
from support.markets.scripted_market import CPUS
from support.messages import an_order

READY_SECONDS = 60.0
NETWORK_BYTES = 20  # that `Stakes` keeps of a provider's network
REGISTRY_IMAGE = "registry.example/image@sha256:" + "ab" * 32


@dataclass
class Stage:
    """A deployed chain with a beacon and a funded coordinator and client.

    The blocks bear the time of `chain_clock`, so a test that sets it forward waits for no deadline
    of a contract.
    """

    chain_url: str
    beacon_url: str
    deployment: Deployment
    keys: CoordinatorKeys
    client: KeySigner
    home: Path
    session: aiohttp.ClientSession
    chain_clock: WrongClock

    def service(self) -> Service:
        """Returns a coordinator on any free port."""
        config = Config(self.deployment, self.chain_url, self.beacon_url, home=self.home, port=0)
        return Service(config, self.keys)

    def make_home(self, password: Path) -> Path:
        """Makes the coordinator's folder as `init` does, with the stage's keys."""
        password.write_text("secret\n")
        password.chmod(0o600)
        self.make_keys(self.home, "secret")
        nodes = self.deployment, self.chain_url, self.beacon_url
        made = Settings(*nodes, "127.0.0.1", 0, "", Bps(200), p2p_listen="off")
        settings_file.write(self.home, made)
        return self.home

    def make_keys(self, home: Path, passphrase: str) -> None:
        """Writes the stage's keys into a coordinator's folder."""
        keystore = Keystore.at(home / "keys", passphrase, DEVNET)
        for number, name in enumerate(coordinator_keys.NAMES, 1):
            keystore.create_account(name, Hash32(dev_account(number)))

    @property
    def coordinator(self) -> Address:
        """The account of the coordinator that `service` returns."""
        return self.keys.account.address

    async def get(
        self, url: str, path: str, account: KeySigner | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Asks a coordinator, as this account or as nobody: status and answer."""
        headers = self.token(account.address, account) if account is not None else {}
        async with self.session.get(f"{url}/v1/{path}", headers=headers) as response:
            return response.status, await response.json()

    def token(self, account: Address, key: KeySigner, seconds: int = 60) -> dict[str, str]:
        """Returns the HTTP header by which `key` asks the coordinator about this account."""
        return token(
            account, key, self.coordinator, self.deployment.chain_id, int(time.time()) + seconds
        )

    def submission(
        self,
        client: KeySigner,
        spec: JobSpec,
        nonce: int,
        *,
        session: KeySigner | None = None,
        now: int = 0,
    ) -> Submission:
        """Returns a signed order for one execution, signed by the client's key or the given session
        key.

        With the same `now` the same order results. The image is one of a registry, so that nothing
        has to be uploaded.
        """
        spec = replace(spec, image=REGISTRY_IMAGE, image_bytes=0)
        at, domain, key = now or int(time.time()), self.deployment.domain(), session or client
        order = an_order(client.address, self.coordinator, spec, nonce, at + 3600)
        lent = Session(
            client.address, key.address, self.coordinator, Amount(90 * USD), UnixSeconds(at + 3600)
        )
        return Submission(seal(domain, order, key.sign), seal(domain, lent, client.sign), spec)

    async def prepay(
        self, url: str, submission: Submission, key: KeySigner, orders: int = 0
    ) -> None:
        """Posts the session of an order and a voucher for so many orders, or for this order and
        those before it.
        """
        order, domain = submission.order.message, self.deployment.domain()
        ahead = Amount((orders or order.nonce) * order.budget)
        voucher = Voucher(order.client, self.coordinator, ahead)
        signed = seal(domain, voucher, key.sign)
        bodies = {"sessions": encode(submission.session), "vouchers": encode(signed)}
        for path, body in bodies.items():
            async with self.session.post(f"{url}/v1/{path}", data=body) as response:
                await response.read()

    async def fund(self, client: KeySigner, money: Amount) -> None:
        """Gives the client so much more money, all of it in its tab for the coordinator."""
        contracts = Contracts.of(self.deployment)
        await self.send(
            client,
            contracts.token.mint(client.address, money),
            contracts.token.approve(self.deployment.escrow, money),
            contracts.escrow.deposit(money, self.coordinator),
        )

    async def register(
        self, owner: KeySigner, network: int, operator: Address | None = None, slots: int = 1
    ) -> None:
        """Registers a provider with stake slots of class CPUS.

        Its operator key is the owner's key unless `operator` is given.
        """
        contracts, key = Contracts.of(self.deployment), operator or owner.address
        stakes, stake = contracts.stakes, Amount(slots * DEVNET.slot_stake)
        place = Hash32(hash_tuple("net", network)[:NETWORK_BYTES].ljust(32, b"\0"))
        await self.send(
            owner,
            stakes.register(key, owner.address, hash_tuple("p"), hash_tuple("b"), place),
            contracts.token.mint(owner.address, stake),
            contracts.token.approve(stakes.address, stake),
            stakes.open_slots(CPUS.id(), slots),
        )

    async def send(self, key: KeySigner, *calls: Call) -> None:
        """Sends these transactions in order, through a new sender with a new file."""
        self.home.mkdir(exist_ok=True)
        file = self.home / f"{key.address.hex()}-{time.monotonic_ns()}.sqlite"
        await send_calls(ChainClient(Rpc(self.chain_url, self.session)), key, file, *calls)


def token(
    account: Address, key: KeySigner, coordinator: Address, chain_id: int, until: int
) -> dict[str, str]:
    """The header with which `key` asks a coordinator for an account."""
    bearer = Bearer(account, key.address, UnixSeconds(until))
    return {"Authorization": make_token(bearer, chain_id, coordinator, key.sign)}


@contextlib.asynccontextmanager
async def deployed_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Yields chain, beacon and contracts. Accounts 1 to 4 are the coordinator's three keys and a
    client.
    """
    beacon = BeaconConfig(
        seed=b"service-test-seed-of-32-bytes-ok", genesis=int(time.time()) - 100, period=2
    )
    chain_clock = WrongClock()
    async with (
        running_chain(ChainConfig(block_seconds=1), chain_clock) as chain,
        running_beacon(beacon) as beacon_url,
        aiohttp.ClientSession() as session,
    ):
        info = await fetch_info(beacon_url, session)
        keys = CoordinatorKeys(
            *(KeySigner(dev_account(i)) for i in (1, 2, 3)), PeerKey(b"\x04" * 32)
        )
        client = KeySigner(dev_account(4))
        chain_client = ChainClient(Rpc(chain.url, session))
        deployment = await deploy(chain_client, tmp_path, info)
        mint = Contracts.of(deployment).token.mint
        funded = (keys.account.address, keys.posting.address, client.address)
        mints = (mint(account, Amount(5_000 * USD)) for account in funded)
        await send_calls(chain_client, KeySigner(dev_account(0)), tmp_path / "mint.sqlite", *mints)
        yield Stage(
            chain.url,
            beacon_url,
            deployment,
            keys,
            client,
            tmp_path / "coordinator",
            session,
            chain_clock,
        )


@contextlib.asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    """Starts the service, yields it when it is ready, and stops it at the end."""
    task = asyncio.create_task(service.run())
    ready = asyncio.create_task(service.ready.wait())
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED, timeout=READY_SECONDS)
    if task.done():
        ready.cancel()
        await task
    try:
        assert ready.done(), f"not ready within {READY_SECONDS:g} s"
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(read, good, seconds: float = 20.0):  # type: ignore[no-untyped-def]
    """Polls `read` until `good(value)`; returns the value. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = await read()
        if good(value):
            return value
        assert time.monotonic() < deadline, f"still {value}"
        await asyncio.sleep(0.1)
