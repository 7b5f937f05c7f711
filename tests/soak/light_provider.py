"""One provider of a soak: the daemon's own parts, without those that only ask the chain.

Two hundred whole daemons would ask the chain two hundred times a second for cases and tabs. The
devnet's chain takes milliseconds per call, so the soak would measure only that. So the first few
providers are whole daemons. The others have what runs jobs: core, actor, journal, executor, store,
peers, heartbeats, offers.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from quorate_content.store.content_store import ContentStore
from quorate_contracts.deploy import Contracts
from quorate_node import periodic
from quorate_node.assembly import terms_of
from quorate_node.base.config import Config, ExecutorKind
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.core import effects, events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import reconcile
from quorate_node.daemon import ProviderDaemon
from quorate_node.effect_performer import EffectPerformer
from quorate_node.executors.job_runner import JobRunner
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.machine.host_probe import detect_hardware
from quorate_node.market.announcements import Announcements, OfferDetails
from quorate_node.market.coordinator_client import Coordinator, deployment_from_info, fetch_info
from quorate_node.market.frame_handler import FrameHandler
from quorate_node.owner.funded_orders import FOLDER as FUNDED_FOLDER
from quorate_node.owner.jury import JuryService
from quorate_node.owner.senders import OperatorSender
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.ports import Peers
from quorate_protocol.units import Address
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import new_secret, recover
from quorate_runtime.peers.websocket_peers import WebSocketDialer
from soak.plan import NOOP_MILLISECONDS, PRICE, SLOTS, WHOLE, listen_host

CODEC: PackedCodec[events.Event, effects.Effect] = PackedCodec(events.Event, effects.Effect)


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """Where the market is, and where a provider's folder is."""

    coordinator_url: str
    chain_url: str
    home: Path
    index: int

    def config(self) -> Config:
        """The configuration as an owner would write it."""
        return Config(
            home=self.home,
            coordinators=(self.coordinator_url,),
            executor=ExecutorKind.NOOP,
            is_devnet=True,
            slots=SLOTS,
            price=PRICE,
            listen_host=listen_host(self.index),
            listen_port=0,
            chain_url=self.chain_url,
            noop_milliseconds=NOOP_MILLISECONDS,
            cpu_millis=1000,
            memory_bytes=8 << 30,
        )


async def run_light_provider(
    settings: ProviderSettings, keys: ProviderKeys, connected: Callable[[], None]
) -> None:
    """Serves until cancelled; `connected` is called once the coordinator was reached."""
    clock, config = SystemClock(), settings.config()
    executor = NoopExecutor(config.path("noop"), clock, config.noop_milliseconds)
    if settings.index < WHOLE:
        daemon = ProviderDaemon(config, keys, executor, clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(daemon.run(), name=f"provider {settings.index}")
            await daemon.is_on_offer.wait()
            connected()
        return
    async with AsyncExitStack() as stack:
        member = await _Member.make(stack, config, keys, executor, clock)
        await member.serve(connected)


@dataclass(slots=True)
class _Member:
    core: ProviderCore
    actor: Actor[events.Event, effects.Effect]
    executor: NoopExecutor
    dialer: WebSocketDialer
    announcements: Announcements
    clock: SystemClock

    @classmethod
    async def make(
        cls,
        stack: AsyncExitStack,
        config: Config,
        keys: ProviderKeys,
        executor: NoopExecutor,
        clock: SystemClock,
    ) -> "_Member":
        """Wires the parts as the daemon does."""
        config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        [url] = config.coordinators
        info = await fetch_info(session, url, config.path("info.json"))
        gpus = GpuInventory()
        hardware = detect_hardware(config.home, gpus)
        contracts = Contracts.of(deployment_from_info(info))
        terms = terms_of(config, keys, executor, (info,), hardware, gpus)
        core, client = ProviderCore(terms), ChainClient(Rpc(config.chain_url, session))
        operator_keys = OperatorKeys(keys)
        operator_sender = OperatorSender(
            operator_keys, client, config.path("operator.sqlite"), clock, contracts.deployment
        )
        stack.callback(operator_sender.close)
        store = ContentStore(config.path("store"), config.store_bytes)
        stack.push_async_callback(store.close)
        coordinators = {
            info.coordinator: Coordinator(url, info, session, keys.account, operator_keys, clock)
        }
        job_runner = JobRunner(
            executor, store, config.home, clock, {slot.pool.id(): slot.host for slot in terms.slots}
        )
        dialers: dict[Address, WebSocketDialer] = {}
        peers: Mapping[Address, Peers] = dialers
        announcements = Announcements(core, peers, operator_keys, clock)
        gateway_url = f"http://{config.listen_host}:{config.listen_port}"
        announcements.bind(
            OfferDetails(hardware.digest(), "", keys.peer_public, keys.box_public, (gateway_url,))
        )
        jury_service = JuryService(
            core, job_runner, coordinators, contracts, client, operator_sender, operator_keys, clock
        )
        journal = Journal.open(config.path("journal"))
        stack.push_async_callback(journal.close)
        actor = Actor(core, journal, clock, CODEC, new_secret)
        performer = EffectPerformer(
            core,
            actor,
            job_runner,
            coordinators,
            peers,
            operator_keys,
            announcements,
            jury_service,
            config.path(FUNDED_FOLDER),
            clock,
        )
        actor.bind(performer.perform, performer.refused)
        inbox = FrameHandler(actor, info.coordinator, terms.domain, recover)
        address = url.replace("http", "ws", 1) + "/v1/peers"
        dialer = WebSocketDialer(
            address, info.coordinator, keys.account, keys.operator, inbox.handle, clock
        )
        dialers[info.coordinator] = dialer
        return cls(core, actor, executor, dialer, announcements, clock)

    async def serve(self, connected: Callable[[], None]) -> None:
        """Replays the journal, attaches to running jobs, and works."""
        await self.actor.start()
        observed = {
            lease: await self.executor.state(lease) for lease in await self.executor.leases()
        }
        found = reconcile(self.core.live(), self.core.jury.values(), observed, self.core.terms)
        for lease in found.strays:
            await self.executor.remove(lease)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.actor.run(), name="actor")
            if not self.core.is_configured(self.core.terms):
                await self.actor.submit(events.Configured(self.core.terms))
            for event in found.failures:
                await self.actor.submit(event)
            group.create_task(periodic.tick(self.core, self.actor, self.clock), name="ticks")
            group.create_task(self.dialer.run(), name="peer")
            while not self.dialer.connected():
                await self.clock.sleep(0.1)
            group.create_task(
                periodic.send_heartbeats(self.core, self.announcements, self.clock),
                name="heartbeats",
            )
            group.create_task(
                periodic.renew_offer(self.core, self.actor, self.announcements, self.clock),
                name="offers",
            )
            connected()
