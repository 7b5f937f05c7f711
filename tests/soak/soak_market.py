"""The soak's processes: chain, beacon, coordinator and hundreds of providers."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from quorate.client.base.profile import Profile, create_profile
from quorate_contracts.deploy import Deployment
from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import Settings
from quorate_devnet.chain import CHAIN_ID
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.chain.free_port import free_port
from quorate_devnet.chain.ready_file import write_private
from quorate_devnet.market import genesis
from quorate_devnet.market.child_processes import ChildProcesses
from quorate_devnet.market.config import ACCUSATIONS, CLIENT_DEPOSIT, PASSPHRASE
from quorate_devnet.market.devnet import coordinator_up
from quorate_devnet.market.genesis import Funds, JoiningProvider
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Hash32
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.keys.keystore import Keystore
from soak.plan import SLOTS, Plan, listen_host, provider_keys

READY_SECONDS = 120.0
SOURCES = Path(__file__).resolve().parents[1]  # the folder of the package `soak`


@dataclass(slots=True)
class SoakMarket:
    """The running processes. Everything ends with the block of `running_market`."""

    plan: Plan
    processes: ChildProcesses
    seed: bytes = field(default_factory=lambda: os.urandom(32))
    coordinator_url: str = ""
    chain_url: str = ""
    profiles: list[Profile] = field(default_factory=list)
    expected_dead: set[str] = field(default_factory=set)  # killed by us and not started again yet

    @property
    def coordinator_home(self) -> Path:
        """The folder of journal, store and tables."""
        return self.plan.folder / "coordinator"

    def pid(self, name: str) -> int:
        """The process id of a child now."""
        return self.processes.children[name].process.pid

    def kill(self, name: str) -> None:
        """Kills a child with SIGKILL."""
        self.expected_dead.add(name)
        self.processes.kill(name)

    async def restart(self, name: str) -> None:
        """Starts a child in the same folder; returns once it serves."""
        ready = self._ready(name)
        ready.unlink(missing_ok=True)
        self._start(name)
        self.expected_dead.discard(name)
        await self.processes.ready(name, ready, READY_SECONDS)

    def died(self) -> str:
        """Name and last output of a child that ended without a kill; "" when there is none."""
        for name, child in self.processes.children.items():
            if not child.is_running and name not in self.expected_dead:
                return f"{name} ended by itself, status {child.process.returncode}:\n{child.tail()}"
        return ""

    def _ready(self, name: str) -> Path:
        return self.plan.folder / "ready" / f"{name}.ready"

    def _start(self, name: str) -> None:
        if name == "coordinator":
            password_file = self.plan.folder / "password"
            told = coordinator_up(self.coordinator_home, password_file, self._ready(name))
            self.processes.start(name, "quorate_devnet.market.run_daemon", told)
        else:
            told = [str(self._ready(name).with_suffix(".settings"))]
            found = os.environ.get("PYTHONPATH", "")
            self.processes.start(
                name,
                "soak.provider_host",
                told,
                {"PYTHONPATH": f"{SOURCES}{os.pathsep}{found}" if found else str(SOURCES)},
            )

    async def begin(self) -> None:
        """Starts everything; provider processes two at a time, because a start needs a whole
        core.
        """
        ready = self.plan.folder / "ready"
        ready.mkdir()
        write_private(self.plan.folder / "password", PASSPHRASE + "\n")
        self.processes.start(
            "chain",
            "quorate_devnet.chain",
            ["--port", "0", "--ready-file", str(ready / "chain.json")],
        )
        beacon = [
            "--port",
            "0",
            "--seed",
            os.urandom(32).hex(),
            "--genesis",
            str(int(time.time()) - 60),
            "--ready-file",
        ]
        self.processes.start(
            "beacon", "quorate_devnet.beacon", [*beacon, str(ready / "beacon.json")]
        )
        chain = await self.processes.ready("chain", ready / "chain.json", READY_SECONDS)
        found = await self.processes.ready("beacon", ready / "beacon.json", READY_SECONDS)
        self.chain_url = chain["url"]
        deployment = await self._genesis(found)
        told = Settings(
            deployment,
            self.chain_url,
            found["url"],
            port=free_port("127.0.0.1"),
            p2p_listen=settings_file.P2P_OFF,
        )
        settings_file.write(self.coordinator_home, told)
        await self.restart("coordinator")
        self.coordinator_url = json.loads(self._ready("coordinator").read_text())["url"]
        gate = asyncio.Semaphore(2)

        async def one(number: int) -> None:
            async with gate:
                await self.restart(self._tell_host(number))

        await asyncio.gather(*(one(number) for number in range(len(self.plan.hosts()))))
        await self._offers()

    async def _genesis(self, beacon: dict[str, str]) -> Deployment:
        plan = self.plan
        keystore = Keystore.at(self.coordinator_home / "keys", PASSPHRASE, DEVNET)
        keystore.create_account("account", Hash32(dev_account(genesis.ACCOUNT)))
        keystore.create_account("posting", Hash32(dev_account(genesis.POSTING)))
        coordinator = coordinator_keys.create(keystore)
        for index in range(plan.clients):
            self.profiles.append(
                create_profile(
                    plan.folder / f"client-{index}", "http://127.0.0.1", PASSPHRASE, DEVNET.name
                )
            )
        info = json.loads(beacon["info"])
        agreed, pool = (
            BeaconInfo(bytes.fromhex(info["public_key"]), info["period"], info["genesis_time"]),
            CPUS.id(),
        )
        newcomers = []
        for index in range(plan.providers):
            keys = provider_keys(self.seed, index)
            assert keys.owner is not None, "a soak keeps the owners' keys"
            newcomers.append(
                JoiningProvider(
                    keys.owner,
                    keys.operator.address,
                    keys.payout,
                    keys.peer_public,
                    keys.box_public,
                    listen_host(index),
                    pool,
                    SLOTS,
                )
            )
        accounts = [profile.account for profile in self.profiles]
        funds = Funds(
            coordinator.account,
            coordinator.statement.address,
            coordinator.posting,
            ACCUSATIONS,
            accounts,
            CLIENT_DEPOSIT,
        )
        async with aiohttp.ClientSession() as session:
            return await genesis.begin(
                ChainClient(Rpc(self.chain_url, session)), CHAIN_ID, agreed, newcomers, funds
            )

    def _tell_host(self, number: int) -> str:
        name, indices = f"host-{number}", self.plan.hosts()[number]
        told = {
            "home": str(self.plan.host_home(number)),
            "seed": self.seed.hex(),
            "first": str(indices.start),
            "after": str(indices.stop),
            "coordinator_url": self.coordinator_url,
            "chain_url": self.chain_url,
        }
        (self.plan.folder / "ready" / f"{name}.settings").write_text(json.dumps(told))
        return name

    async def _offers(self) -> None:
        """Waits until every provider has an offer and two more blocks have made the slots
        active.
        """
        limit, first = time.monotonic() + READY_SECONDS, 0
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < limit:
                async with session.get(f"{self.coordinator_url}/v1/offers") as response:
                    offers = (await response.json())["offers"]
                async with session.get(f"{self.coordinator_url}/v1/health") as response:
                    block = (await response.json())["block"]
                first = first or block
                if (
                    sum(1 for offer in offers if offer["isAlive"]) >= self.plan.providers
                    and block > first + 1
                ):
                    return
                await asyncio.sleep(0.5)
        raise TimeoutError(f"not all of {self.plan.providers} providers are on offer")


@asynccontextmanager
async def running_market(plan: Plan) -> AsyncIterator[SoakMarket]:
    """A market for as long as the block lasts."""
    processes = ChildProcesses(plan.folder / "logs")
    processes.open()
    market = SoakMarket(plan, processes)
    try:
        await market.begin()
        yield market
    finally:
        market.expected_dead |= processes.children.keys()
        await processes.stop()
