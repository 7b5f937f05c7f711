"""The provider daemon: asks its coordinators who they are, builds its parts and runs them as one
task group.

A library: `ProviderDaemon(config, keys, executor, clock).run()` serves until cancelled. The caller
gives the executor, so that a test or a devnet can use another one. When SIGTERM cancels `run`,
tasks go on running unless `stop_on_exit`. A later daemon on the same home attaches to tasks that
run and to tasks that have finished.
"""

import asyncio
import logging
import shlex
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp

from quorate_node import periodic
from quorate_node.assembly import Parts, Surroundings, assemble
from quorate_node.base.config import Config, offer_addresses, rentals_text
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.base.schedule import schedule_of
from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import reconcile, unwanted_pins
from quorate_node.executors.base.inside import rental_problem
from quorate_node.machine.gpu_manners import GpuUse, power_lines, read_use
from quorate_node.machine.gpu_slots import lay_out
from quorate_node.machine.host_probe import detect_hardware, read_gpus
from quorate_node.machine.nvml_probe import NvmlProbe
from quorate_node.market.announcements import OfferDetails
from quorate_node.market.coordinator_client import fetch_info, saved_info_path
from quorate_node.market.published_records import publish_inventory
from quorate_node.market_entry import AgreeToStake, MarketEntry, agree_to_all
from quorate_node.owner.court_follower import CourtFollower
from quorate_node.owner.funded_orders import FOLDER as FUNDED_FOLDER
from quorate_node.owner.leaving import is_leaving
from quorate_node.owner.pay_watch import PayWatch
from quorate_node.periodic import HealthMonitor
from quorate_node.rentals.dialer import Serve
from quorate_node.status.gpu_container import GpuTrial, without_unreachable
from quorate_node.status.income import Income
from quorate_node.status.job_lines import JobLines
from quorate_node.status.node_gateway import Gateway
from quorate_node.status.owner_requests import Drain, PriceChange
from quorate_node.status.status import OwnerFacts, Status, status_of, write_status
from quorate_protocol.messages.offer import Hardware
from quorate_protocol.messages.ports import Clock, Executor, GpuProbe, TaskState
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Unavailable
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from quorate_runtime.files import private_folder
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.process import gc_tuning
from quorate_runtime.process.health import Board
from quorate_runtime.process.systemd_notify import NO_NOTIFIER, Notifier

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProviderDaemon:
    """One provider. `url` is the gateway's, once it listens. `is_on_offer`: registered, staked,
    coordinators checked. `core` and `drain` are None until the journal is replayed.
    """

    config: Config
    keys: ProviderKeys
    executor: Executor
    clock: Clock = field(default_factory=SystemClock)
    url: str = ""
    is_on_offer: asyncio.Event = field(default_factory=asyncio.Event)
    core: ProviderCore | None = None
    board: Board = field(default_factory=Board)
    notifier: Notifier = NO_NOTIFIER
    drain: Drain | None = None
    job_lines: JobLines | None = None
    probe: GpuProbe = field(default_factory=NvmlProbe)
    read_gpu_use: Callable[[], tuple[GpuUse, ...]] = read_use
    trial: GpuTrial = GpuTrial()
    agree: AgreeToStake = agree_to_all
    serve_rental: Serve | None = None
    _rentals: str = ""

    async def run(self) -> None:
        """Serves until cancelled. Raises Unavailable or Refused if it cannot begin."""
        async with AsyncExitStack() as stack:
            private_folder(self.config.home)
            session = await stack.enter_async_context(plain_session())
            self.config, infos = await self._meet_all(session)
            await self.executor.check()
            self._rentals = rentals_text(self.config, rental_problem(self.executor))
            inventory = await asyncio.to_thread(read_gpus, self.probe)
            hardware = detect_hardware(self.config.home, inventory)
            laid_out = await without_unreachable(
                lay_out(inventory, self.config),
                inventory,
                self.executor.sandbox,
                self.config.home,
                self.trial,
            )
            self.board.put("unreachable gpu", laid_out.unreachable)
            surroundings = Surroundings(
                config=self.config,
                keys=self.keys,
                executor=self.executor,
                clock=self.clock,
                board=self.board,
                session=session,
                infos=infos,
                hardware=hardware,
                inventory=inventory,
                laid_out=laid_out,
                probe=self.probe,
                is_on_offer=self.is_on_offer,
                read_gpu_use=self.read_gpu_use,
                serve_rental=self.serve_rental,
            )
            parts = assemble(surroundings, stack)
            self.drain = parts.drain
            await parts.actor.start()
            self.job_lines = JobLines(parts.core, self.config.home, self.clock, parts.gpu_watch)
            stack.callback(self.job_lines.close)
            failed = await self._reconcile(parts)
            await self._listen(parts, hardware, stack)
            if self.config.stop_on_exit:
                stack.push_async_callback(self._stop_all)
            await self._serve(
                parts, failed, " and ".join(self.config.chain_urls(infos[0].chain_url))
            )

    async def leave(self) -> None:
        """Takes no new work; with `drain_seconds` waits for running jobs. The caller bounds it."""
        self.notifier.stopping("the provider takes no new work")
        self.board.put("stopping", "the provider was told to stop")
        if self.drain is not None:
            drain = self.drain
            await (drain.drain_for_exit() if self.config.drain_seconds else drain.announce_exit())

    async def _meet_all(
        self, session: aiohttp.ClientSession
    ) -> tuple[Config, tuple[InfoView, ...]]:
        """A coordinator that is away and was never reached keeps the provider from no other. Raises
        Unavailable if none is known.
        """
        known: dict[str, InfoView] = {}
        away: list[Unavailable] = []
        for url in self.config.coordinators:
            try:
                known[url] = await self._meet(session, url)
            except Unavailable as error:
                log.warning("%s", error)
                away.append(error)
        if not known:
            raise away[0]
        text = "; ".join(str(error) for error in away)
        self.board.put("unknown coordinator", text)
        return replace(self.config, coordinators=tuple(known)), tuple(known.values())

    async def _meet(self, session: aiohttp.ClientSession, url: str) -> InfoView:
        home = self.config.home
        try:
            return await fetch_info(
                session, url, saved_info_path(self.config.path("coordinators"), url), home
            )
        except Unavailable as error:
            # The daemon starts without a coordinator that it knows, but not without a new one.
            init = f"quorate node init --home {shlex.quote(str(home))} --coordinator URL"
            raise Unavailable(
                f"{error}, and this provider has never reached it: start again once it answers, or "
                f"name another: {init}",
                error.retry_after,
            ) from error

    async def _reconcile(self, parts: Parts) -> tuple[events.TaskFailed, ...]:
        """Removes tasks and pins that no lease needs, before anything new can start. Returns the
        failures to report.
        """
        observed: dict[str, TaskState] = {
            lease_id: await self.executor.state(lease_id)
            for lease_id in await self.executor.leases()
        }
        core, job_runner = parts.core, parts.job_runner
        found = reconcile(core.live(), core.jury.values(), observed, core.terms)
        for lease_id in found.strays:
            log.warning("removing %s, which no lease needs any more", lease_id)
            await self.executor.remove(lease_id)
        pinned = await job_runner.pinned()
        for lease_id in unwanted_pins(core.live(), core.jury.values(), pinned):
            await job_runner.remove(lease_id)
        return found.failures

    async def _listen(self, parts: Parts, hardware: Hardware, stack: AsyncExitStack) -> None:
        """Opens the gateway. The offer needs its URL."""
        config, keys = self.config, self.keys

        prices = PriceChange(parts.core, parts.actor, self.is_on_offer, config.gpu_prices)
        gateway = Gateway(
            store=parts.store,
            home=config.home,
            status=lambda: self._status(parts),
            drain=parts.drain.set_by_owner,
            set_price=prices.set_by_owner,
            evict=parts.drain.evict,
            refresh=parts.account_watch.refresh,
        )
        stack.push_async_callback(gateway.close)
        self.url = await gateway.listen(config.listen_host, config.listen_port)
        own = config.public_url or self.url
        addresses = offer_addresses(own, config.coordinators, config.attestation)
        inventory = await publish_inventory(parts.store, hardware)
        parts.announcements.bind(
            OfferDetails(inventory, config.region, keys.peer_public, keys.box_public, addresses)
        )
        self.core = parts.core
        log.info("provider 0x%s serves at %s", keys.account.hex(), self.url)

    async def _serve(
        self, parts: Parts, failed: tuple[events.TaskFailed, ...], chain_url: str
    ) -> None:
        """Runs all tasks until one fails or the daemon is cancelled."""
        clock, status_file = self.clock, self.config.path("status.json")
        court = CourtFollower(
            client=parts.client,
            contracts=parts.contracts,
            actor=parts.actor,
            clock=clock,
            cursor_file=self.config.path("court.json"),
        )
        pay = PayWatch(
            core=parts.core,
            actor=parts.actor,
            contracts=parts.contracts,
            client=parts.client,
            sender=parts.operator_sender,
            folder=self.config.path(FUNDED_FOLDER),
            clock=clock,
        )
        health = HealthMonitor(
            board=self.board,
            executor=self.executor,
            client=parts.client,
            chain_url=chain_url,
            coordinators=parts.coordinators,
            peers=parts.dialers,
            home=self.config.home,
            clock=clock,
            room=parts.store.available_bytes,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(parts.actor.run(), name="actor")
            await self._report(parts, failed)
            self.notifier.ready("serving; not on offer yet")
            entry = MarketEntry(
                parts=parts,
                config=self.config,
                keys=self.keys,
                clock=clock,
                board=self.board,
                notifier=self.notifier,
                url=self.url,
                is_on_offer=self.is_on_offer,
                group=group,
                agree=self.agree,
            )
            tasks = {
                "ticks": periodic.tick(parts.core, parts.actor, clock),
                "status": periodic.write_status(
                    lambda: write_status(status_file, self._status(parts)), clock
                ),
                "market entry": entry.run(),
                "court": court.run(),
                "tabs": pay.follow_tabs(),
                "funded orders": pay.follow_funded(),
                "health": health.run(),
                "watchdog": self.notifier.watch(clock),
                "memory": gc_tuning.collect_periodically(clock),
                "attestation": parts.attestation.run(),
                "receipts": parts.verdict_checks.run(),
                "balances": parts.account_watch.run(),
            }
            if self.job_lines is not None:
                tasks["job lines"] = self.job_lines.run()
            if self.config.schedule or parts.core.scalars.is_outside_schedule:
                tasks["schedule"] = parts.drain.follow_schedule()
            if parts.terms.gpus:
                tasks["GPUs"] = parts.gpu_watch.run()
            if parts.rented.streams is not None:
                tasks["streams"] = parts.rented.streams.run()
            if parts.rented.watch is not None:
                tasks["rentals"] = parts.rented.watch.run()
            if parts.p2p_transport is not None:
                tasks["libp2p"] = parts.p2p_transport.run()
            for name, task in tasks.items():
                group.create_task(task, name=name)

    async def _report(self, parts: Parts, failed: tuple[events.TaskFailed, ...]) -> None:
        if not parts.core.is_configured(parts.terms):
            await parts.actor.submit(events.Configured(parts.terms))
        if parts.terms.gpus and self.config.power_limit:
            uuids, watts = parts.terms.gpus, self.config.power_limit
            for line in await asyncio.to_thread(power_lines, uuids, watts, may_set=True):
                log.warning("power limit: %s", line)
        if parts.terms.gpus or any(item.gpus for item in parts.core.live()):
            await parts.gpu_watch.look()
        for event in failed:
            await parts.actor.submit(event)
        await parts.drain.undo_exit()

    def _status(self, parts: Parts) -> Status:
        return status_of(
            parts.core,
            parts.operator_keys.current.address,
            self.url,
            parts.transports(),
            self.board.problems(),
            parts.store.fetched.by_source(),
            OwnerFacts(
                is_on_offer=self.is_on_offer.is_set(),
                is_leaving=is_leaving(self.config.home),
                attested=parts.attestation.attested(parts.core.terms.slots),
                income=self.job_lines.income if self.job_lines is not None else Income(),
                account=parts.account_watch.newest,
                kept_back=parts.gpu_watch.kept_back,
                closed_until=self._closed_until(parts.core),
                electricity=self.config.electricity,
                egress=parts.rented.egress.traffic if parts.rented.egress is not None else {},
                rentals=self._rentals,
            ),
        )

    def _closed_until(self, core: ProviderCore) -> str:
        if not core.scalars.is_outside_schedule:
            return ""
        opens = schedule_of(self.config.schedule).opens_at(self.clock.now())
        return opens.strftime("%a %H:%M %Z")

    async def _stop_all(self) -> None:
        for lease_id in await self.executor.leases():
            await self.executor.stop(lease_id)
            await self.executor.remove(lease_id)
