"""The coordinator's shell: makes all its parts and runs them as one group of tasks."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry

from quorate_content.store.fetch_order import gateway_source
from quorate_contracts.deploy import Contracts
from quorate_coordinator.api.http_server import HttpServer, check_port
from quorate_coordinator.api.middleware import (
    before_handlers,
    refuse_early,
    refuse_new,
    refuse_orders,
)
from quorate_coordinator.base.config import ARCHIVE, DOCUMENTS, LOGS, TRANSACTIONS, Config
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import BODY_BYTES_MAX, BOUNDS_BY_LIMITS
from quorate_coordinator.chain.beacon_poller import BeaconPoller
from quorate_coordinator.chain.contract_follower import ContractFollower
from quorate_coordinator.chain.copied_keys import refuse_beside_a_copy
from quorate_coordinator.chain.court_driver import CourtDriver
from quorate_coordinator.chain.job_escrows import has_balance, must_be_funded
from quorate_coordinator.chain.registration import ensure_registered
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import Rules
from quorate_coordinator.effect_performer import EffectPerformer, purpose_of
from quorate_coordinator.journal_comparison import JournalComparison
from quorate_coordinator.market.attestation_service import AttestationService, coordinator_key
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.market.imported_logs import ImportedLogs, make_imports
from quorate_coordinator.status.database import database_of
from quorate_coordinator.status.market_tables import MarketTables
from quorate_coordinator.status.operator_report import OperatorReport, make_report
from quorate_coordinator.status.own_account import OwnAccount
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.archive import FileArchive
from quorate_coordinator.storage.archive_writer import ArchiveWriter
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_coordinator.storage.documents import JobDocuments
from quorate_coordinator.storage.input_fetcher import InputFetcher
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.retention import Retention, demanded_seconds
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.second_place import SecondPlace
from quorate_coordinator.storage.staging import Staging, refresh_for_ever
from quorate_protocol.crypto.peer_ids import peer_id
from quorate_protocol.limits import BY_NAME, DEVNET
from quorate_protocol.messages.ports import Beacon, Clock, Peers, Signer
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_protocol.values import replace
from quorate_runtime import p2p
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.beacon.beacon_client import HttpBeacon
from quorate_runtime.chain import ChainClient, Sender, chain_client
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.clock import SystemClock
from quorate_runtime.files import private_folder, write_atomic
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.error_responses import failures, mark_started
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import SecretStream
from quorate_runtime.peers.joined_peers import JoinedPeers
from quorate_runtime.peers.websocket_peers import WebSocketPeers
from quorate_runtime.process import gc_tuning
from quorate_runtime.process.health import Board
from quorate_runtime.process.metrics import add_gauge
from quorate_runtime.process.systemd_notify import NO_NOTIFIER, Notifier

if TYPE_CHECKING:
    from quorate_coordinator.market.p2p_service import P2pService


def add_disk_gauges(
    registry: CollectorRegistry, config: Config, archive: FileArchive, documents: DocumentFile
) -> None:
    """Adds the gauges of archive and documents to a daemon's registry. Values are bytes."""
    for name, help_text, read in (
        ("documents_bytes", "Own specs and receipts on the disk.", documents.used_bytes),
        ("documents_bytes_max", "What they may take.", lambda: config.documents.bytes_max),
        ("archive_bytes", "Finished runs on the disk.", archive.used_bytes),
        (
            "archive_bytes_max",
            "The archive deletes its oldest runs before their time when it takes more.",
            lambda: config.archive.bytes_max,
        ),
    ):
        add_gauge(registry, f"quorate_{name}", help_text, _or_zero(read))


def _or_zero(count: Callable[[], int]) -> Callable[[], int]:
    """Wraps `count` so that it gives 0 while the file cannot be read. A scrape must not fail, and
    `health` says what is wrong.
    """

    def read() -> int:
        try:
            return count()
        except Unavailable:
            return 0

    return read


REFRESH_SECONDS = 2.0


@dataclass(slots=True)
class RunKeeping:
    """The places in which a finished run is stored: archive, SQL tables, run reader, content
    stores.
    """

    config: Config
    core: CoordinatorCore
    history: RunReader
    tables: MarketTables
    staging: Staging
    board: Board
    clock: Clock

    async def run(self) -> None:
        """Refreshes the run reader and deletes old runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._retention().run(), name="retention")
            while True:
                self.history.refresh()
                await self.clock.sleep(REFRESH_SECONDS)

    def _retention(self) -> Retention:
        """Removes old runs from the archive and from the tables."""
        least = max(self.config.archive.least_seconds, demanded_seconds(self.core.rules.limits))
        keeping = replace(self.config.archive, least_seconds=least)

        async def hide(over: Sequence[ArchivedRun]) -> None:
            await self.tables.forget(item.run.job_id for item in over)

        async def is_stored(digest: Hash32) -> bool:
            # Readers are served from all of the stores.
            found = [await store.resolve(digest) for store in self.staging.stores]
            return any(cid is not None for cid in found)

        return Retention(self.history, keeping, is_stored, hide, self.clock, self.board)


TICK_SECONDS = 0.5


@dataclass(slots=True)
class OwnEvents:
    """Submits events that must not be lost."""

    core: CoordinatorCore
    actor: Actor[ev.Event, Effect]
    board: Board
    clock: Clock

    async def submit(self, event: ev.Event) -> None:
        """Submits an event, and tries again while too many effects wait.

        Effects wait when a disk is full or the chain does not answer. Ending the process would not
        help: after the next start they would wait too.
        """
        while True:
            try:
                await self.actor.submit(event)
            except Unavailable as error:
                # Not re-raised: `health` shows it until the outbox has made room.
                self.board.put("outbox", str(error))
                await self.clock.sleep(TICK_SECONDS)
            else:
                self.board.put("outbox")
                return

    async def tick(self, comparison: JournalComparison) -> None:
        """Submits a tick again and again until cancelled. Submits `Compared` once the journal was
        compared with what others know.
        """
        await comparison.wait()
        comparison.trust()
        is_noted = False
        while True:
            if comparison.compared.is_set() and not is_noted:
                is_noted = True
                await self.submit(ev.Compared())
            if self.core.needs_tick(int(self.clock.now())):
                await self.submit(ev.Tick())
            await self.clock.sleep(TICK_SECONDS)


log = logging.getLogger(__name__)
LEAVE_POLL_SECONDS = 0.05
STAGING_SECONDS = 2.0


def rules_of(config: Config, keys: CoordinatorKeys) -> Rules:
    """Returns the rules of a coordinator. It does not know its own URL yet."""
    deployment = config.deployment
    return Rules(
        domain=deployment.domain(),
        coordinator=keys.account.address,
        statement_key=keys.statement.address,
        sign=keys.statement.sign,
        limits=BY_NAME[deployment.limits],
        fee_bps=config.fee_bps,
        beacon_genesis=deployment.beacon_genesis,
        beacon_key=deployment.beacon_key,
        sources=(),
        accuse_budget=config.accuse_budget,
    )


@dataclass(slots=True)
class Service:
    """One coordinator. `run` serves until cancelled; `url` is set once it listens."""

    config: Config
    keys: CoordinatorKeys
    clock: Clock = field(default_factory=SystemClock)
    url: str = ""
    is_stopping: bool = False  # streams end
    is_leaving: bool = False  # nothing new is taken
    board: Board = field(default_factory=Board)
    notifier: Notifier = NO_NOTIFIER
    is_settled: Callable[[], bool] = lambda: True
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    app: web.Application | None = None
    rates: RequestRates | None = None
    own_account: OwnAccount | None = None
    comparison: JournalComparison | None = None
    chain_answered_at: float = 0.0

    async def run(self) -> None:
        """Starts everything and serves until cancelled."""
        async with AsyncExitStack() as stack:
            parts = await self._make(stack)
            await parts.serve(stack)

    async def leave(self) -> None:
        """Takes no new work, and returns once all work that it has taken is done. The caller limits
        the time, and then cancels `run`.
        """
        self.notifier.stopping("nothing new is taken")
        self.board.put("stopping", "the coordinator was told to stop")
        self.is_leaving = True
        while not self.is_settled():
            await self.clock.sleep(LEAVE_POLL_SECONDS)

    async def _make(self, stack: AsyncExitStack) -> "_Parts":
        """Opens the files and makes the parts; the stack closes them."""
        config, contracts = self.config, Contracts.of(self.config.deployment)
        private_folder(config.home)
        # The journal comes first: it also ensures that no other process works in this folder.
        journal = Journal.open(config.path("journal"))
        stack.push_async_callback(journal.close)
        session = await stack.enter_async_context(plain_session())
        self._chain_answered()
        urls = config.chain_url, config.second_chain_url
        client = chain_client(urls, session, config.fee_cap_gwei * GWEI, self._chain_answered)
        sender = self._sender(client, self.keys.posting, TRANSACTIONS)
        stack.callback(sender.close)
        has_worked = journal.last_offset > 0
        check_port(config.host, config.port)  # before it pays for its registration
        if not config.is_newest:
            me = self.keys.account.address
            await refuse_beside_a_copy(session, client, contracts, me, config.own_urls)
        await self._register(client, contracts, has_worked)
        rates = RequestRates(
            config.bounds or BOUNDS_BY_LIMITS[config.deployment.limits], self.clock.now
        )
        app = self._application(rates)
        core, registry = CoordinatorCore(rules_of(self.config, self.keys)), CollectorRegistry()
        beacon = HttpBeacon(config.beacon_url, config.deployment.beacon_info(), session, self.clock)
        archive, file = self._open_files(stack, has_worked)
        add_disk_gauges(registry, config, archive, file)
        outputs, max_hold = Outputs(core.state, archive), core.rules.limits.max_hold
        staging = Staging(
            folder=config.path("store"),
            shares=config.staging,
            state=core.state,
            claims=outputs,
            rates=rates,
            clock=self.clock,
            hold_seconds=max_hold,
        )
        stack.push_async_callback(staging.close)
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=2.0, access_log=None)
        # The runner is the first to end, because its handlers use the others.
        stack.push_async_callback(runner.cleanup)
        return _Parts(
            service=self,
            contracts=contracts,
            client=client,
            sender=sender,
            staging=staging,
            documents=JobDocuments(core, file),
            core=core,
            registry=registry,
            logs=stack.enter_context(RunLogs.open(config.path(LOGS))),
            beacon=beacon,
            rates=rates,
            outputs=outputs,
            history=RunReader(core.state, archive),
            journal=journal,
            tables=self._tables(core.state, archive),
            app=app,
            runner=runner,
        )

    def _chain_answered(self) -> None:
        self.chain_answered_at = self.clock.now()

    def _application(self, rates: RequestRates) -> web.Application:
        guards = [
            before_handlers(rates),
            refuse_early(self.ready.is_set),
            refuse_new(lambda: self.is_leaving),
            refuse_orders(
                lambda: self.own_account is not None and self.own_account.is_retired,
                lambda: self.comparison is not None and self.comparison.may_be_older,
            ),
        ]
        before = [self.config.proxies.middleware(), failures, *guards]
        app = web.Application(middlewares=before, client_max_size=BODY_BYTES_MAX)
        app.on_response_prepare.append(mark_started)
        self.app, self.rates = app, rates
        return app

    def _open_files(
        self, stack: AsyncExitStack, has_worked: bool
    ) -> tuple[FileArchive, DocumentFile]:
        config = self.config
        remedy = startup_checks.missing_file_remedy(ARCHIVE, has_worked, config.begin_anew)
        archive = FileArchive(config.path(ARCHIVE), remedy)
        stack.callback(archive.close)
        remedy = startup_checks.missing_file_remedy(DOCUMENTS, has_worked, config.begin_anew)
        file = DocumentFile(config.path(DOCUMENTS), config.documents, self.clock.now, remedy)
        stack.callback(file.close)
        return archive, file

    def _tables(self, state: State, archive: FileArchive) -> MarketTables:
        config = self.config
        return MarketTables(
            database=database_of(config.database, config.home),
            state=state,
            archive=archive,
            transactions=config.path(TRANSACTIONS),
            posting=self.keys.posting.address,
            clock=self.clock,
            board=self.board,
        )

    async def _register(self, client: ChainClient, contracts: Contracts, is_known: bool) -> None:
        """Registers on chain. With `is_known` it has worked here before, so it is registered, and
        does not wait for a chain node that does not answer.
        """
        owner = self._sender(client, self.keys.account, "account.sqlite")
        try:
            await ensure_registered(client, contracts, self.keys, owner)
        except Unavailable as error:
            if not is_known:
                raise
            # Not re-raised: jobs need no chain.
            log.error("started without the chain, from what the journal knows: %s", error)
        finally:
            owner.close()

    def _sender(self, client: ChainClient, key: Signer, file: str) -> Sender:
        trusted = self.config.deployment.trusted()
        return Sender(client, key, self.config.path(file), self.clock, **trusted)

    def announce(self, coordinator: Address) -> None:
        """Reports that it serves: in the log, in the ready file, and to systemd."""
        log.info("coordinator 0x%s serves at %s", coordinator.hex(), self.url)
        ready = self.config.ready_file
        if ready is not None:
            facts = {"url": self.url, "coordinator": "0x" + coordinator.hex()}
            write_atomic(ready, json.dumps(facts).encode())
        self.ready.set()
        self.notifier.ready(f"serves at {self.url}")


@dataclass(slots=True)
class _Parts:
    """The parts that `Service` has made, and the connections between them."""

    service: Service
    contracts: Contracts
    client: ChainClient
    sender: Sender
    staging: Staging
    documents: JobDocuments
    core: CoordinatorCore
    registry: CollectorRegistry
    logs: RunLogs
    beacon: Beacon
    rates: RequestRates
    outputs: Outputs
    history: RunReader
    journal: Journal
    tables: MarketTables
    app: web.Application
    runner: web.AppRunner

    async def serve(self, stack: AsyncExitStack) -> None:
        """Replays the journal, listens, and runs all tasks."""
        service, core, clock = self.service, self.core, self.service.clock
        codec: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
        actor = Actor(core, self.journal, clock, codec, SecretStream(), registry=self.registry)
        service.is_settled = actor.is_settled
        comparison = service.comparison = JournalComparison(
            config=service.config,
            core=core,
            archive=self.history.archive,
            contracts=self.contracts,
            client=self.client,
            sender=self.sender,
            clock=clock,
            submit=actor.submit,
        )
        handler = FrameHandler(
            domain=core.rules.domain,
            limits=core.rules.limits,
            core=core,
            actor=actor,
            store=self.staging.outputs,
            clock=clock,
            logs=self.logs,
            outputs=self.outputs,
            tolerance=FrameLimits(self.rates.bounds, clock.now),
            on_older=comparison.show,
        )
        websocket = WebSocketPeers(core.rules.coordinator, handler, self._authorize)
        self.app.router.add_routes(websocket.routes())
        p2p_service = self._p2p_service(handler)
        peers = JoinedPeers(websocket, *([p2p_service.peers] if p2p_service else []))
        stack.push_async_callback(peers.close)
        self._bind(actor, peers)
        attestation = AttestationService(
            core=core,
            peers=peers,
            beacon=self.beacon,
            store=self.staging.outputs,
            submit=actor.submit,
            key_of_coordinator=partial(coordinator_key, self.client, self.contracts),
            clock=clock,
        )
        handler.attestation, handler.seen_from = attestation, peers.network_of
        server = self._server(actor, p2p_service)
        service.url = await server.listen(self.app, self.runner)
        core.rules = replace(core.rules, sources=(f"{service.url}/v1/content",))
        await actor.start()
        self.outputs.load()
        await comparison.check_files(actor.newest_at)
        service.own_account = self._own_account()
        second = SecondPlace.of(service.config, core.rules.coordinator, clock, self.journal)
        parts = service.own_account, peers.connected, server.problems, clock, second
        report = server.report = make_report(core.state, self.registry, *parts)
        await self._run_tasks(actor, comparison, attestation, p2p_service, report, server.imports)

    def _own_account(self) -> OwnAccount:
        service, path = self.service, self.service.config.path(TRANSACTIONS)
        keys = service.keys.account.address, service.keys.posting.address
        return OwnAccount(self.client, self.contracts, *keys, path, service.clock, self.core.state)

    def _bind(self, actor: Actor[ev.Event, Effect], peers: Peers) -> None:
        """Gives the actor the effect performer, which in turn submits events to the actor."""
        performer = EffectPerformer(
            coordinator=self.core.rules.coordinator,
            contracts=self.contracts,
            client=self.client,
            limits=self.core.rules.limits,
            peers=peers,
            documents=self.documents,
            sender=self.sender,
            clock=self.service.clock,
            archive_writer=ArchiveWriter(
                self.history,
                self.outputs,
                actor.submit,
                self.documents.store_before_leaving,
                self.documents.file.drop,
            ),
            submit=actor.submit,
        )

        async def on_refused(effect: Effect, refusal: Refused) -> None:
            told = purpose_of(effect, refusal)
            if told is not None:
                log.error("the chain refused %s: %s", *told)
                await actor.submit(ev.TransactionRefused(*told))

        actor.bind(performer, on_refused)

    def _p2p_service(self, handler: FrameHandler) -> "P2pService | None":
        """Makes the libp2p host, if the operator wants one and libp2p is installed."""
        service = self.service
        if not service.config.p2p_listen:
            return None
        problem = p2p.available()
        if problem:
            log.warning("providers connect over WebSocket only: %s", problem)
            return None
        # Imported here: libp2p cannot be installed everywhere.
        from quorate_coordinator.market.p2p_service import ChainAccess, make_p2p_service

        chain = ChainAccess(self.client, self.contracts, self.sender)
        return make_p2p_service(
            service.config, service.keys, self.core, handler, self._authorize, service.clock, chain
        )

    def _server(
        self, actor: Actor[ev.Event, Effect], p2p_service: "P2pService | None"
    ) -> HttpServer:
        service = self.service
        return HttpServer(
            config=service.config,
            core=self.core,
            actor=actor,
            rates=self.rates,
            staging=self.staging,
            documents=self.documents,
            history=self.history,
            tables=self.tables,
            logs=self.logs,
            registry=self.registry,
            board=service.board,
            clock=service.clock,
            is_stopping=lambda: service.is_stopping,
            peer_id=peer_id(service.keys.peer.public),
            p2p_addresses=p2p_service.addresses if p2p_service else tuple,
            chain_answered_at=lambda: service.chain_answered_at,
            imports=self._imports(),
            must_be_funded=partial(
                must_be_funded, self.client, self.contracts, limits=self.core.rules.limits
            ),
            has_balance=partial(has_balance, self.client, self.contracts),
        )

    def _imports(self) -> ImportedLogs:
        rules, chain = self.core.rules, (self.client, self.contracts)
        parts = rules.domain, rules.coordinator, chain, self.service.clock
        return make_imports(self.service.config, *parts, rules.limits.offer_refresh)

    async def _authorize(self, account: Address, key: Address) -> bool:
        provider = self.core.state.providers.get(account)
        return provider is not None and provider.operator_key == key

    async def _run_tasks(
        self,
        actor: Actor[ev.Event, Effect],
        comparison: JournalComparison,
        attestation: AttestationService,
        p2p_service: "P2pService | None",
        report: OperatorReport,
        imports: ImportedLogs,
    ) -> None:
        service, clock, board = self.service, self.service.clock, self.service.board
        own = OwnEvents(self.core, actor, board, clock)
        keeping = RunKeeping(
            config=service.config,
            core=self.core,
            history=self.history,
            tables=self.tables,
            staging=self.staging,
            board=board,
            clock=clock,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(actor.run(), name="actor")
                await own.submit(ev.Restarted())
                group.create_task(self._follower(actor).run(), name="chain")
                group.create_task(self._court().run(), name="court")
                group.create_task(comparison.compare_with_chain(), name="comparison")
                group.create_task(comparison.end_when_older(), name="older journal")
                group.create_task(own.tick(comparison), name="ticks")
                group.create_task(self._rounds(own).run(), name="beacon")
                group.create_task(self.tables.run(), name="tables")
                group.create_task(attestation.run(), name="attestation")
                group.create_task(keeping.run(), name="keeping of runs")
                staging = refresh_for_ever(self.staging, clock, STAGING_SECONDS)
                group.create_task(staging, name="staging")
                group.create_task(self._input_fetcher(own).run(), name="inputs")
                group.create_task(service.notifier.watch(clock), name="watchdog")
                group.create_task(report.own_account.run(), name="own account")
                group.create_task(report.run(), name="counts")
                group.create_task(report.second_place.run(), name="second place")
                group.create_task(imports.run(), name="imported logs")
                group.create_task(gc_tuning.collect_periodically(clock), name="memory")
                if p2p_service is not None:
                    group.create_task(p2p_service.run(), name="libp2p")
                    await p2p_service.wait_until_up()
                service.announce(self.core.rules.coordinator)
        finally:
            service.is_stopping = True

    def _input_fetcher(self, own: OwnEvents) -> InputFetcher:
        sources = tuple(gateway_source("gateway", it) for it in self.service.config.ipfs_gateways)
        is_devnet = self.core.rules.limits.name == DEVNET.name
        return InputFetcher(
            self.core.state, self.staging, sources, self.service.clock, own.submit, is_devnet
        )

    def _follower(self, actor: Actor[ev.Event, Effect]) -> ContractFollower:
        clock, me = self.service.clock, self.core.rules.coordinator
        follower = ContractFollower(self.client, self.contracts, me, self.core, actor, clock)
        if isinstance(clock, SystemClock):
            follower.witness = clock.witness
        return follower

    def _court(self) -> CourtDriver:
        return CourtDriver(
            self.client, self.contracts, self.core, self.sender, self.beacon, self.service.clock
        )

    def _rounds(self, own: OwnEvents) -> BeaconPoller:
        return BeaconPoller(
            self.core.rounds_wanted,
            own.submit,
            self.beacon,
            self.service.config.beacon_url,
            self.service.board,
            self.service.clock,
        )
