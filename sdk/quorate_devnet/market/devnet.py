"""A whole market on one machine: chain, beacon, contracts, coordinator and providers, each in its
own process, and funded clients.

    async with running(DevnetConfig(folder)) as devnet:
        print(devnet.coordinator_url)

`devnet.json` appears when all parts are up. Leaving the block ends everything. Killing the parent
with -9 does too (see `reaper`).
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from quorate.client.base.profile import Profile, create_profile
from quorate_contracts.deploy import Deployment
from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as coordinator_settings
from quorate_coordinator.base.config import Settings as CoordinatorSettings
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_devnet.chain import CHAIN_ID
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.chain.free_port import free_port
from quorate_devnet.chain.ready_file import write_private
from quorate_devnet.market import genesis
from quorate_devnet.market.child_processes import ChildProcesses
from quorate_devnet.market.config import (
    ACCUSATIONS,
    CLIENT_DEPOSIT,
    COORDINATOR,
    EARLIER,
    HONEST,
    MARKER,
    PASSPHRASE,
    ChainKind,
    DevnetConfig,
    ExecutorChoice,
    Lock,
    clear_folder,
    write_devnet_file,
)
from quorate_devnet.market.engine_check import engine_answers
from quorate_devnet.market.genesis import Funds, JoiningProvider
from quorate_node.base import provider_keys
from quorate_node.base import settings as provider_settings
from quorate_node.base.config import STORE_BYTES_MIN, RentalTerms, TransportChoice
from quorate_node.base.config import Settings as ProviderSettings
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.executors.sandbox.bwrap_executor import check_bwrap
from quorate_node.market.coordinator_dialer import LIBP2P, WEBSOCKET
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.ports import BeaconInfo, Signer
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime import p2p
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.files import private_folder
from quorate_runtime.keys.keystore import Keystore
from quorate_runtime.process.crash_points import crash_point

READY_SECONDS = (
    # a child that ends is noticed at once; this limit is for one that hangs, or a very busy machine
    90.0
)
OFFERS_POLL_SECONDS = 0.1

Notice = Callable[[str], None]


@dataclass(slots=True)
class Devnet:
    """A running devnet."""

    config: DevnetConfig
    processes: ChildProcesses
    executor: ExecutorChoice
    deployment: Deployment
    chain_url: str
    beacon_url: str
    coordinator_url: str
    coordinator: Address
    providers: tuple[Address, ...]
    profiles: tuple[Profile, ...]
    transport: str  # of coordinator and providers: libp2p or websocket
    seconds: float = 0.0  # how long it took to start

    def kill(self, name: str) -> None:
        self.processes.kill(name)

    def start(self, name: str) -> None:
        """Starts a killed part again in its own folder."""
        self._written_when_serving(name).unlink(missing_ok=True)
        _start_role(self.processes, self.config, name)

    async def restart(self, name: str) -> None:
        """Starts a killed part again and waits until it serves; a provider, until it is connected
        to the coordinator.
        """
        self.start(name)
        path = self._written_when_serving(name)
        await self.processes.ready(
            name, path, READY_SECONDS, lambda facts: bool(facts.get("connected", True))
        )

    def _written_when_serving(self, name: str) -> Path:
        if name == COORDINATOR:
            return self.config.folder / "ready" / f"{name}.json"
        return self.config.provider_status(int(name.removeprefix("provider-")))


@contextlib.asynccontextmanager
async def running(
    config: DevnetConfig, notice: Notice = lambda sentence: None
) -> AsyncIterator[Devnet]:
    """Runs a devnet for as long as the block lasts.

    Raises Unavailable, which names the part that did not start, with the end of its log.
    """
    with Lock(config.folder):
        moved = clear_folder(config.folder, time.time())
        if moved:
            notice(f"moved to {config.folder / EARLIER}: {', '.join(moved)}")
        write_private(
            config.password_file, PASSPHRASE + "\n"
        )  # written first, because the next devnet recognises the folder by it
        processes = ChildProcesses(config.folder / "logs")
        processes.open()
        try:
            yield await _Startup(config, processes, notice).run()
        finally:
            (config.folder / MARKER).unlink(missing_ok=True)
            await processes.stop()


def _start_role(processes: ChildProcesses, config: DevnetConfig, name: str) -> None:
    if name == COORDINATOR:
        ready_file = config.folder / "ready" / f"{name}.json"
        arguments = coordinator_up(
            config.coordinator_home,
            config.password_file,
            ready_file,
            config.ipfs_gateways,
            config.store_bytes,
        )
    else:
        arguments = _provider_up(config, int(name.removeprefix("provider-")))
    processes.start(name, "quorate_devnet.market.run_daemon", arguments, config.arming(name))


def coordinator_up(
    home: Path,
    password_file: Path,
    ready_file: Path,
    ipfs_gateways: Sequence[str] = (),
    store_bytes: int = STORE_BYTES_MIN,
) -> list[str]:
    """Returns the arguments of `run_daemon`."""
    words = ["coordinator", "up", "--home", str(home), "--password-file", str(password_file)]
    words += ["--store-size", f"{store_bytes >> 20}Mi", "--ready-file", str(ready_file)]
    words += [f"--ipfs-gateway={url}" for url in ipfs_gateways]
    return [str(home / coordinator_settings.FILE), HONEST, *words]


def _provider_up(config: DevnetConfig, index: int) -> list[str]:
    """Returns the arguments of `run_daemon`. All providers share this machine, so each run slot
    may use all of it.
    """
    home = config.provider_home(index)
    words = ["node", "up", "--home", str(home), "--password-file", str(config.password_file)]
    words += ["--yes", "--stop-on-exit", "--noop-ms", str(config.noop_milliseconds)]
    words += ["--declined-keep", str(config.declined_keep_seconds)]
    words += ["--cpu-millis", str(1000 * len(os.sched_getaffinity(0)))]
    return [str(home / provider_settings.FILE), config.lie(index), *words]


@dataclass(slots=True)
class _Startup:
    """One start, step by step. Slow steps run in parallel."""

    config: DevnetConfig
    processes: ChildProcesses
    notice: Notice
    began: float = field(default_factory=time.monotonic)
    opened_block: int = 0  # a block at or after the opening of the last slot

    async def run(self) -> Devnet:
        config, ready = self.config, self.config.folder / "ready"
        ready.mkdir()
        self._start_children()
        executor = await asyncio.to_thread(resolve_executor, config.executor)
        port = config.ports()[2] or free_port("127.0.0.1")
        p2p_listen = await self._p2p_listen()
        crash_point("devnet.before-keys")
        coordinator, providers, profiles = self._keys(f"http://127.0.0.1:{port}")
        self._register_cleanup(executor)
        crash_point("devnet.after-keys")
        beacon = await self.processes.ready("beacon", ready / "beacon.json", READY_SECONDS)
        chain = await self.processes.ready("chain", ready / "chain.json", READY_SECONDS)
        self.notice("chain and beacon answer; deploying the contracts")
        crash_point("devnet.before-genesis")
        deployment = await self._genesis(chain["url"], beacon, coordinator, providers, profiles)
        crash_point("devnet.after-genesis")
        self.notice("contracts deployed, all parties registered and funded")
        settings = CoordinatorSettings(
            deployment=deployment,
            chain_url=chain["url"],
            beacon_url=beacon["url"],
            port=port,
            p2p_listen=p2p_listen or coordinator_settings.P2P_OFF,
        )
        crash_point("devnet.before-settings")
        coordinator_settings.write(config.coordinator_home, settings)
        crash_point("devnet.after-settings")
        served = await self.processes.ready(
            COORDINATOR, ready / f"{COORDINATOR}.json", READY_SECONDS
        )
        self.notice(f"coordinator serves at {served['url']}")
        self._write_provider_settings(served["url"], chain["url"], executor, providers)
        await self._offers(served["url"])
        devnet = Devnet(
            config=config,
            processes=self.processes,
            executor=executor,
            deployment=deployment,
            chain_url=chain["url"],
            beacon_url=beacon["url"],
            coordinator_url=served["url"],
            coordinator=coordinator.account.address,
            providers=tuple(keys.account for keys in providers),
            profiles=profiles,
            transport=LIBP2P if p2p_listen else WEBSOCKET,
            seconds=time.monotonic() - self.began,
        )
        crash_point("devnet.before-marker")
        write_devnet_file(devnet_facts(devnet), config)
        crash_point("devnet.after-marker")
        return devnet

    async def _p2p_listen(self) -> str:
        """Returns where the coordinator listens for libp2p; "" where WebSocket is used instead."""
        choice = self.config.transport
        if choice is TransportChoice.WEBSOCKET:
            return ""
        problem = await asyncio.to_thread(p2p.available)
        if not problem:
            port = self.config.ports()[3] or free_port("127.0.0.1")
            return f"/ip4/127.0.0.1/tcp/{port}"
        if choice is TransportChoice.LIBP2P:
            raise Unavailable(f"{problem}; or use --transport auto")
        self.notice(f"connections use WebSocket: {problem}")
        return ""

    def _start_children(self) -> None:
        config, ready = self.config, self.config.folder / "ready"
        kind = (
            "quorate_devnet.chain"
            if config.chain is ChainKind.OWN
            else "quorate_devnet.chain.anvil_process"
        )
        chain_port, beacon_port, *_ = config.ports()
        control = ["--test-control"] if config.crash_folder else []
        self.processes.start(
            "chain",
            kind,
            ["--port", str(chain_port), "--ready-file", str(ready / "chain.json"), *control],
        )
        beacon = [
            "--port",
            str(beacon_port),
            "--seed",
            os.urandom(32).hex(),
            "--genesis",
            str(int(time.time()) - 60),
            "--ready-file",
        ]
        self.processes.start(
            "beacon", "quorate_devnet.beacon", [*beacon, str(ready / "beacon.json")]
        )
        for name in (COORDINATOR, *(f"provider-{index}" for index in range(config.providers))):
            _start_role(self.processes, config, name)

    def _register_cleanup(self, executor: ExecutorChoice) -> None:
        for index in range(self.config.providers):
            home = self.config.provider_home(index)
            if executor.is_engine:
                self.processes.register_cleanup(
                    {"containers": self.config.owner(index), "home": str(home / "docker")}
                )
            elif executor is ExecutorChoice.PROCESS:
                self.processes.register_cleanup({"processes": str(home / "process")})
            elif executor is ExecutorChoice.BWRAP:
                self.processes.register_cleanup({"processes": str(home / "bwrap")})

    def _keys(
        self, coordinator_url: str
    ) -> tuple[CoordinatorKeys, tuple[ProviderKeys, ...], tuple[Profile, ...]]:
        config = self.config
        private_folder(config.coordinator_home)
        keystore = Keystore.at(config.coordinator_home / "keys", PASSPHRASE, DEVNET)
        keystore.create_account("account", Hash32(dev_account(genesis.ACCOUNT)))
        keystore.create_account("posting", Hash32(dev_account(genesis.POSTING)))
        coordinator = coordinator_keys.create(keystore)
        providers = []
        for index in range(config.providers):
            private_folder(config.provider_home(index))
            keystore = Keystore.at(config.provider_home(index) / "keys", PASSPHRASE, DEVNET)
            providers.append(provider_keys.create(keystore, None, genesis.payout_address(index)))
        homes = [config.client_home(index) for index in range(config.clients)]
        profiles = tuple(
            create_profile(home, coordinator_url, PASSPHRASE, DEVNET.name) for home in homes
        )
        return coordinator, tuple(providers), profiles

    async def _genesis(
        self,
        chain_url: str,
        beacon: dict[str, str],
        coordinator: CoordinatorKeys,
        providers: tuple[ProviderKeys, ...],
        profiles: tuple[Profile, ...],
    ) -> Deployment:
        config = self.config
        info = json.loads(beacon["info"])
        agreed = BeaconInfo(bytes.fromhex(info["public_key"]), info["period"], info["genesis_time"])
        newcomers = [
            JoiningProvider(
                owner=signer_of(keys),
                operator=keys.operator.address,
                payout=keys.payout,
                peer_public=keys.peer_public,
                box_public=keys.box_public,
                host=config.host(index),
                pool=CPUS.id(),
                slots=config.slots_of(index),
            )
            for index, keys in enumerate(providers)
        ]
        funds = Funds(
            coordinator.account,
            coordinator.statement.address,
            coordinator.posting,
            ACCUSATIONS,
            [profile.account for profile in profiles],
            CLIENT_DEPOSIT,
        )
        async with aiohttp.ClientSession() as session:
            client = ChainClient(Rpc(chain_url, session))
            deployment = await genesis.begin(client, CHAIN_ID, agreed, newcomers, funds)
            self.opened_block = (await client.head()).number
            return deployment

    def _write_provider_settings(
        self,
        coordinator_url: str,
        chain_url: str,
        executor: ExecutorChoice,
        providers: tuple[ProviderKeys, ...],
    ) -> None:
        config = self.config
        for index, keys in enumerate(providers):
            settings = ProviderSettings(
                coordinators=(coordinator_url,),
                is_devnet=True,
                price=config.price(index),
                slots=config.slots_of(index),
                payout=keys.payout,
                executor=executor.kind(),
                listen_host=config.host(index),
                listen_port=free_port(config.host(index)),
                store_bytes=config.store_bytes,
                ipfs_gateways=config.ipfs_gateways,
                attestation=config.attestation,
                rentals=RentalTerms.ON_DEMAND if config.rentals else RentalTerms.NO,
                spot_percent=config.spot_percent,
                egress=config.egress,
                devnet_host=config.devnet_host,
                cpu_level=config.cpu_levels[index % len(config.cpu_levels)]
                if config.cpu_levels
                else "",
                chain_url=chain_url,
            )
            provider_settings.write(config.provider_home(index), settings)

    async def _offers(self, coordinator_url: str) -> None:
        """Waits until the coordinator lists a live offer of every provider and has seen a block in
        which their slots are active.
        """
        wanted = self.config.providers
        limit = time.monotonic() + READY_SECONDS
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < limit:
                for child in self.processes.children.values():
                    child.fail_if_ended()
                async with session.get(f"{coordinator_url}/v1/offers") as response:
                    offers = (await response.json())["offers"]
                async with session.get(f"{coordinator_url}/v1/health") as response:
                    block = (await response.json())["block"]
                if (
                    sum(1 for offer in offers if offer["isAlive"]) >= wanted
                    and block > self.opened_block
                ):
                    return
                await asyncio.sleep(OFFERS_POLL_SECONDS)
        raise Unavailable(
            f"not all {wanted} providers have offers yet; see {self.config.folder / 'logs'}"
        )


def signer_of(keys: ProviderKeys) -> Signer:
    """Returns the owner's own key, which a devnet always has."""
    assert keys.owner is not None, "a devnet keeps the owners' keys"
    return keys.owner


def resolve_executor(choice: ExecutorChoice) -> ExecutorChoice:
    """Decides what `auto` means.

    Raises Unavailable if docker or bwrap was requested and does not work. Blocks.
    """
    if choice is ExecutorChoice.AUTO or choice.is_engine:
        problem = engine_answers()
        if not problem:
            return choice if choice.is_engine else ExecutorChoice.DOCKER
        if choice.is_engine:
            remedy = (
                "start one (systemctl start docker), or use --executor bwrap or --executor process"
            )
            raise Unavailable(f"no container engine answers ({problem}); {remedy}")
    if choice in (ExecutorChoice.AUTO, ExecutorChoice.BWRAP):
        try:
            check_bwrap()
        except Unavailable:
            # Not re-raised for auto, which has one more choice.
            if choice is ExecutorChoice.BWRAP:
                raise
            return ExecutorChoice.PROCESS
        return ExecutorChoice.BWRAP
    return choice


def devnet_facts(devnet: Devnet) -> dict[str, object]:
    """Returns the content of `devnet.json`. Paths are relative to it."""
    config = devnet.config
    return {
        "chainUrl": devnet.chain_url,
        "beaconUrl": devnet.beacon_url,
        "deployment": canonical.to_json(devnet.deployment),
        "coordinator": {"url": devnet.coordinator_url, "account": "0x" + devnet.coordinator.hex()},
        "executor": devnet.executor.value,
        "transport": devnet.transport,
        "pid": os.getpid(),
        "providers": [
            {
                "name": f"provider-{index}",
                "account": "0x" + account.hex(),
                "home": config.provider_home(index).name,
                "isLiar": index < config.liars,
            }
            for index, account in enumerate(devnet.providers)
        ],
        "clients": [
            {
                "name": f"client-{index}",
                "account": "0x" + profile.account.address.hex(),
                "home": config.client_home(index).name,
                "passwordFile": config.password_file.name,
            }
            for index, profile in enumerate(devnet.profiles)
        ],
    }
