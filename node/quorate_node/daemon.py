"""The provider daemon: wires core, journal, executor, store, coordinators and chain, and runs
them as one group of tasks.

A library: `ProviderDaemon(config, keys, executor, clock).run()` serves until cancelled. The
executor comes from outside, so that a test or a devnet may hand in another one. SIGTERM (a
cancelled `run`) leaves tasks running unless `stop_on_exit`; a later daemon on the same home
attaches to what runs and to what has finished.
"""

import asyncio
import logging
import shlex
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from quorate_content.store.content_store import ContentStore
from quorate_contracts.deploy import Contracts
from quorate_node import periodic
from quorate_node.chain.court_follower import CourtFollower
from quorate_node.chain.jury_and_claims import JuryService
from quorate_node.chain.key_rotation import Rotation
from quorate_node.chain.operator_sender import OperatorSender
from quorate_node.chain.registration import check_coordinator, missing, stand, standing
from quorate_node.config import Config
from quorate_node.core import effects, events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import reconcile, unwanted_pins
from quorate_node.core.terms import Policy, Room, Terms
from quorate_node.executors.host_class_probe import detect_cpu_class, detect_hardware
from quorate_node.jobs.effect_performer import EffectPerformer
from quorate_node.jobs.job_runner import JobRunner
from quorate_node.keys.operator_keys import FILE as KEYRING_FILE
from quorate_node.keys.operator_keys import OperatorKeys, Speaker
from quorate_node.keys.provider_keys import ProviderKeys
from quorate_node.messaging.announcements import Advert, Announcements
from quorate_node.messaging.coordinator_client import (
    Coordinator,
    deployment_of,
    discover,
    kept_path,
)
from quorate_node.messaging.frame_handler import FrameHandler
from quorate_node.messaging.statement_echo import StatementEcho
from quorate_node.ops.drain import Leaving
from quorate_node.ops.health_monitor import HealthMonitor
from quorate_node.ops.node_gateway import Gateway
from quorate_node.ops.status import Status, status_of, write_status
from quorate_protocol.messages.offer import Hardware, SlotOffer
from quorate_protocol.messages.views import InfoView
from quorate_protocol.ports import Clock, Executor, Peers, TaskState
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Price, Small
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import CanonicalCodec
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.chain.client import GWEI
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import SecretStream, recover
from quorate_runtime.peers.websocket_peers import WebSocketDialer
from quorate_runtime.process import gc_tuning
from quorate_runtime.process.health import Board
from quorate_runtime.process.systemd_notify import NOBODY, Notifier

STAND_RETRY_SECONDS = 5.0
MEMORY_SHARE = (9, 10)  # of the machine for jobs

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProviderDaemon:
    """One provider. `url` is its gateway once it listens; `is_standing` is set once it is
    registered, staked and checked.
    """

    config: Config
    keys: ProviderKeys
    executor: Executor
    clock: Clock = field(default_factory=SystemClock)
    url: str = ""
    is_standing: asyncio.Event = field(default_factory=asyncio.Event)
    core: ProviderCore | None = None
    board: Board = field(default_factory=Board)
    notifier: Notifier = NOBODY
    leaving: Leaving | None = None

    async def run(self) -> None:
        """Serves until cancelled. Unavailable or Refused when it cannot begin."""
        async with AsyncExitStack() as stack:
            self.config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            session = await stack.enter_async_context(plain_session())
            known = self.config.path("coordinators")
            infos = [
                await self._meet(session, url, kept_path(known, url))
                for url in self.config.coordinators
            ]
            await self.executor.check()
            hardware = detect_hardware(self.config.home)
            parts = await _Parts.make(self, stack, session, infos, hardware)
            await parts.serve(stack)

    async def _meet(self, session: aiohttp.ClientSession, url: str, kept: Path) -> InfoView:
        try:
            return await discover(session, url, kept, self.config.home)
        except Unavailable as away:  # only one that was never met ends the daemon
            home = f" --home {shlex.quote(str(self.config.home))}"
            remedy = (
                f"once it does, start again; or name another: quorate node init{home} "
                f"--coordinator URL"
            )
            raise Unavailable(
                f"{away}, and this provider has never met it: {remedy}", away.retry_after
            ) from away

    async def leave(self) -> None:
        """No new work from here on; with `drain_seconds`, until nothing runs. Whoever waits sets
        the bound, then cancels `run`.
        """
        self.notifier.stopping("no new work is taken")
        self.board.put("stopping", "the provider was told to stop")
        if self.leaving is not None:
            await (self.leaving.drain() if self.config.drain_seconds else self.leaving.announce())


def terms_of(
    config: Config,
    keys: ProviderKeys,
    executor: Executor,
    infos: list[InfoView],
    hardware: Hardware,
) -> Terms:
    """What the rules may know: from configuration, machine and deployment."""
    deployment = deployment_of(infos[0])
    for info in infos[1:]:
        if info.chain_id != deployment.chain_id or info.contracts["Stakes"] != deployment.stakes:
            raise Unavailable(
                (
                    "all coordinators of one daemon must work on the same deployment; run another "
                    "daemon for the other"
                ),
                0,
            )
    memory = hardware.memory_bytes * MEMORY_SHARE[0] // MEMORY_SHARE[1] // config.slots
    room = Room(
        cpu_millis=config.cpu_millis or hardware.cores * 1000 // config.slots,
        memory_bytes=config.memory_bytes or memory,
        scratch_bytes=config.scratch_bytes,
        output_bytes=config.output_bytes,
        input_bytes=config.input_bytes,
    )
    slot = SlotOffer(detect_cpu_class(), Small(config.slots), Price(0), config.price, Price(0))
    return Terms(
        provider=keys.account,
        domain=deployment.domain(),
        limits=deployment.constants(),
        beacon=deployment.beacon_info(),
        statement_keys={info.coordinator: info.statement_key for info in infos},
        slots=(slot,),
        sandbox=executor.sandbox,
        policy=Policy(
            config.price_floor,
            config.images,
            config.kinds,
            room,
            declined_keep_seconds=config.declined_keep_seconds,
        ),
    )


@dataclass(slots=True)
class _Parts:
    """Everything that `run` made, wired together."""

    daemon: ProviderDaemon
    core: ProviderCore
    contracts: Contracts
    client: ChainClient
    coordinators: dict[Address, Coordinator]
    job_runner: JobRunner
    gateway: Gateway
    actor: Actor[events.Event, effects.Effect]
    announcements: Announcements
    jury_service: JuryService
    dialers: dict[Address, WebSocketDialer]
    ring: OperatorKeys
    told: Terms  # of today's configuration; the state may still hold earlier ones

    @classmethod
    async def make(
        cls,
        daemon: ProviderDaemon,
        stack: AsyncExitStack,
        session: aiohttp.ClientSession,
        infos: list[InfoView],
        hardware: Hardware,
    ) -> "_Parts":
        """Builds from the outside in; what has to be closed is on the stack."""
        config, keys, clock = daemon.config, daemon.keys, daemon.clock
        journal = Journal.open(
            config.path("journal")
        )  # first: it also says that no other process works in this folder
        stack.push_async_callback(journal.close)
        terms = terms_of(config, keys, daemon.executor, infos, hardware)
        core, contracts = ProviderCore(terms), Contracts.of(deployment_of(infos[0]))
        client = ChainClient(
            Rpc(config.chain_url or infos[0].chain_url, session), config.fee_cap_gwei * GWEI
        )
        ring = OperatorKeys(keys, config.path(KEYRING_FILE))
        operator_sender = OperatorSender(ring, client, config.path("operator.sqlite"), clock)
        stack.callback(operator_sender.close)
        store = ContentStore(config.path("store"), config.store_quota_bytes)
        stack.push_async_callback(store.close)
        coordinators = {
            info.coordinator: Coordinator(url, info, session, keys.account, ring, clock)
            for url, info in zip(config.coordinators, infos, strict=True)
        }
        classes, gpus = (
            {slot.host.id(): slot.host for slot in terms.slots},
            tuple(gpu.uuid for gpu in hardware.gpus),
        )
        job_runner = JobRunner(daemon.executor, store, config.home, clock, classes, gpus)
        dialers: dict[Address, WebSocketDialer] = {}
        peers: Mapping[Address, Peers] = (
            dialers  # filled below: dialer, inbox and actor need each other
        )

        def advert() -> Advert:
            return Advert(
                hardware,
                config.region,
                keys.peer_public,
                keys.box_public,
                (config.public_url or daemon.url,),
            )

        announcements = Announcements(terms, advert, peers, ring, clock)
        jury_service = JuryService(
            core, job_runner, coordinators, contracts, client, operator_sender, ring, clock
        )
        codec: CanonicalCodec[events.Event, effects.Effect] = CanonicalCodec(
            events.Event, effects.Effect
        )
        actor = Actor(core, journal, clock, codec, SecretStream())
        performer = EffectPerformer(
            core, actor, job_runner, coordinators, peers, ring, announcements, jury_service, clock
        )
        actor.bind(performer.perform, performer.refused)
        for address, item in coordinators.items():
            inbox = FrameHandler(
                actor,
                address,
                terms.domain,
                recover,
                partial(ring.may_take_work, address),
                store.available_bytes,
            )
            url = item.url.replace("http", "ws", 1) + "/v1/peers"
            dialers[address] = WebSocketDialer(
                url,
                address,
                keys.account,
                Speaker(ring, address),
                inbox.handle,
                clock,
                retry_max=terms.limits.heartbeat_every,
            )
        parts = cls(
            daemon,
            core,
            contracts,
            client,
            coordinators,
            job_runner,
            None,  # type: ignore[arg-type]
            actor,
            announcements,
            jury_service,
            dialers,
            ring,
            terms,
        )
        parts.gateway = Gateway(store, config.home, parts.status, parts.drain)
        daemon.leaving = Leaving(core, actor, announcements, clock, config.path("stopping"))
        stack.push_async_callback(parts.gateway.close)
        return parts

    async def serve(self, stack: AsyncExitStack) -> None:
        """Replays, attaches to what is there, listens, and runs all tasks."""
        daemon, config, clock = self.daemon, self.daemon.config, self.daemon.clock
        await self.actor.start()
        failed = await self._attach()
        daemon.url = await self.gateway.listen(config.listen_host, config.listen_port)
        daemon.core = self.core
        if config.stop_on_exit:
            stack.push_async_callback(self._stop_all)
        court_follower = CourtFollower(
            self.client, self.contracts, self.actor, clock, config.path("court.json")
        )
        claim_sender = periodic.ClaimSender(
            self.core,
            self.actor,
            self.coordinators,
            self.jury_service,
            self.client,
            self.contracts,
            config.claim_least,
            clock,
        )
        chain_url = config.chain_url or next(iter(self.coordinators.values())).info.chain_url
        health_monitor = HealthMonitor(
            daemon.board,
            daemon.executor,
            self.client,
            chain_url,
            self.coordinators,
            self.dialers,
            config.home,
            clock,
        )
        _logger.info("provider 0x%s serves at %s", daemon.keys.account.hex(), daemon.url)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.actor.run(), name="actor")
            if not self.core.is_configured(self.told):
                await self.actor.submit(events.Configured(self.told))
            for event in failed:
                await self.actor.submit(event)
            assert daemon.leaving is not None, "made with the parts"
            await daemon.leaving.end()
            daemon.notifier.ready("serving; not on offer yet")
            group.create_task(periodic.tick(self.core, self.actor, clock), name="ticks")
            group.create_task(periodic.write_status(self._write_status, clock), name="status")
            group.create_task(self._stand_and_serve(group), name="standing")
            group.create_task(court_follower.run(), name="court")
            group.create_task(claim_sender.run(), name="money")
            group.create_task(health_monitor.run(), name="lookout")
            group.create_task(daemon.notifier.watch(clock), name="watchdog")
            group.create_task(gc_tuning.tidy_for_ever(clock), name="memory")

    async def _attach(self) -> tuple[events.Failed, ...]:
        """Compares journal and executor before anything new can start."""
        executor = self.daemon.executor
        observed: dict[str, TaskState] = {
            lease: await executor.state(lease) for lease in await executor.leases()
        }
        found = reconcile(self.core.live(), self.core.jury.values(), observed)
        for lease in found.strays:
            _logger.warning("removing %s, which no lease wants any more", lease)
            await executor.remove(lease)
        for lease in unwanted_pins(
            self.core.live(), self.core.jury.values(), await self.job_runner.pinned()
        ):
            await self.job_runner.remove(lease)
        return found.happened

    async def _stand_and_serve(self, group: asyncio.TaskGroup) -> None:
        """Registers, checks each coordinator against the chain, then dials it.

        A provider that stood before dials first: its leases' coordinators must be reached even
        while the chain is away.
        """
        clock, unchecked = self.daemon.clock, dict(self.coordinators)
        stood = bool(_read(self.daemon.config.path("standing")))
        if not stood:
            await self._stand()
        group.create_task(
            StatementEcho(self.core.statements.get, self.dialers, clock).run(), name="statements"
        )
        while unchecked:
            for address, item in list(unchecked.items()):
                try:
                    await self._check(item)
                except (Unavailable, Refused) as error:
                    # Not re-raised: the chain may come back, the coordinator may register; nothing
                    # is signed for it before.
                    _logger.warning("coordinator %s is not served: %s", item.url, error)
                    continue
                del unchecked[address]
                group.create_task(self.dialers[address].run(), name=f"peer {item.url}")
            if unchecked:
                await clock.sleep(STAND_RETRY_SECONDS)
        if stood:
            await self._stand()
        self.daemon.is_standing.set()
        self.daemon.notifier.status("on offer")
        _logger.info("on offer: waiting for jobs")
        group.create_task(
            periodic.beat(self.core, self.announcements, clock, self.daemon.board),
            name="heartbeats",
        )
        group.create_task(periodic.advertise(self.core, self.actor, clock), name="offers")
        rotation = Rotation(
            self.core,
            self.ring,
            self.daemon.keys,
            self.client,
            self.contracts,
            self.announcements,
            self.coordinators,
            self.daemon.board,
            self.daemon.config,
            clock,
        )
        group.create_task(rotation.run(), name="rotation")

    async def _check(self, item: Coordinator) -> None:
        """Against the chain, once per statement key: a restart while the chain is away must
        reach its coordinator.
        """
        marker = self.daemon.config.path("coordinators") / f"{item.address.hex()}.checked"
        if _read(marker) == item.info.statement_key.hex():
            return
        await check_coordinator(self.client, self.contracts, item.info)
        marker.write_text(item.info.statement_key.hex())

    async def _stand(self) -> None:
        """Until registered and staked; says what is missing as long as something is."""
        daemon, keys, told = self.daemon, self.daemon.keys, ""
        slot, marker = self.told.slots[0], self.daemon.config.path("standing")
        wanted = (slot.host.id(), int(slot.count))
        mark = (
            f"{self.contracts.deployment.stakes.hex()} {keys.operator.address.hex()} "
            f"{wanted[0].hex()} {wanted[1]}"
        )
        owner = (
            Sender(self.client, keys.owner, daemon.config.path("owner.sqlite"), daemon.clock)
            if keys.owner
            else None
        )
        try:
            while True:
                try:
                    fees = await self.client.fees()
                    found = await standing(self.client, self.contracts, keys, *wanted)
                    lacks = missing(found, keys, fees.base_fee_wei + fees.tip_wei)
                    text = "; ".join(f"{item.what}: {item.remedy}" for item in lacks)
                    if not any(item.is_blocking for item in lacks):
                        if owner is not None:
                            found = await stand(
                                self.client,
                                self.contracts,
                                keys,
                                owner,
                                *wanted,
                                daemon.config.public_url or daemon.url,
                            )
                        _logger.info(
                            "registered, with %d stake slots in host class %s",
                            found.open_slots,
                            wanted[0].hex()[:16],
                        )
                        marker.write_text(mark)
                        daemon.board.put("stake")
                        return
                except Unavailable as error:
                    # Not re-raised: what stood before still does, most likely; else it is tried
                    # again.
                    text = str(error)
                    if _read(marker) == mark:
                        return
                except Refused as error:
                    text = str(error)  # not re-raised: told below, and tried again
                if text != told:
                    daemon.board.put("stake", text)
                    daemon.notifier.status(f"not on offer yet: {text}")
                    _logger.warning("not on offer yet: %s", text)
                    told = text
                await daemon.clock.sleep(STAND_RETRY_SECONDS)
        finally:
            if owner is not None:
                owner.close()

    async def _stop_all(self) -> None:
        for lease in await self.daemon.executor.leases():
            await self.daemon.executor.stop(lease)
            await self.daemon.executor.remove(lease)

    async def drain(self, is_on: bool) -> None:
        """No new work, or work again: the offer is withdrawn, or made anew by who stands."""
        await self.actor.submit(events.DrainRequested(is_on))
        if is_on or self.daemon.is_standing.is_set():
            await self.actor.submit(events.OfferDue())
        await self.announcements.send_heartbeat(
            self.core.offered(has_room=not self.daemon.board.has("disk"))
        )

    def status(self) -> Status:
        """As it stands."""
        connected = tuple(address for address, dialer in self.dialers.items() if dialer.connected())
        return status_of(
            self.core,
            self.ring.current.address,
            self.daemon.url,
            connected,
            self.daemon.board.problems(),
        )

    def _write_status(self) -> None:
        write_status(self.daemon.config.path("status.json"), self.status())


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
