"""The coordinator's shell: makes all its parts and runs them as one group of tasks."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry

from quorate_content.store.fetch_order import gateway_source
from quorate_contracts.deploy import Contracts
from quorate_coordinator.api.http_server import HttpServer, check_port
from quorate_coordinator.api.middleware import before_handlers, refuse_untimely
from quorate_coordinator.base.config import ARCHIVE, DOCUMENTS, LOGS, TRANSACTIONS, Config
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import BODY_BYTES_MAX, BOUNDS_BY_LIMITS
from quorate_coordinator.chain.beacon_poller import BeaconPoller
from quorate_coordinator.chain.contract_follower import ContractFollower
from quorate_coordinator.chain.court_driver import CourtDriver
from quorate_coordinator.chain.job_escrows import has_balance, must_be_funded
from quorate_coordinator.chain.own_money import RETIRED
from quorate_coordinator.chain.registration import ensure_registered
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.core.model.step_context import Rules
from quorate_coordinator.effect_performer import EffectPerformer, purpose_of
from quorate_coordinator.journal_comparison import JournalComparison, refuse_beside_a_copy
from quorate_coordinator.market.attestation_service import AttestationService, coordinator_key
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.market.imported_logs import FOLDER, ImportedLogs
from quorate_coordinator.status.database import database_of
from quorate_coordinator.status.market_tables import MarketTables
from quorate_coordinator.status.operator_report import OperatorReport
from quorate_coordinator.status.own_account import OwnAccount
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.archive import FileArchive
from quorate_coordinator.storage.attestation_uploads import AttestationUploads
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_coordinator.storage.input_fetcher import InputFetcher
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.output_comparer import OutputComparer
from quorate_coordinator.storage.retention import Retention, demanded_seconds
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.second_place import SecondPlace
from quorate_coordinator.storage.staging import Staging
from quorate_coordinator.storage.stored_effects import ArchiveWriter, JobDocuments
from quorate_protocol.codec.peer_ids import peer_id
from quorate_protocol.limits import BY_NAME, DEVNET
from quorate_protocol.messages.ports import Clock, Peers, Signer
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address
from quorate_protocol.values import replace
from quorate_runtime import p2p
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.chain import ChainClient, Sender, chain_client
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.clock import SystemClock
from quorate_runtime.files import private_folder, write_atomic
from quorate_runtime.http.beacon_client import HttpBeacon
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.error_responses import failures, mark_started
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import SecretStream
from quorate_runtime.peers.peer_connections import JoinedPeers
from quorate_runtime.peers.websocket_peers import WebSocketPeers
from quorate_runtime.process import gc_tuning
from quorate_runtime.process.health import Board
from quorate_runtime.process.metrics import add_gauge
from quorate_runtime.process.systemd_notify import NO_NOTIFIER, Notifier

if TYPE_CHECKING:
    from quorate_coordinator.market.p2p_service import P2pService


log = logging.getLogger(__name__)
LEAVE_POLL_SECONDS = 0.05
TICK_SECONDS = 0.5
COUNT_SECONDS = 1.0
REFRESH_SECONDS = 2.0


def rules_of(config: Config, keys: CoordinatorKeys) -> Rules:
    """It does not know its own URL yet."""
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
    own_account: OwnAccount | None = None
    comparison: JournalComparison | None = None
    chain_answered_at: float = 0.0
    contracts: Contracts = field(init=False)
    app: web.Application = field(init=False)
    runner: web.AppRunner = field(init=False)
    rates: RequestRates = field(init=False)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    client: ChainClient = field(init=False)
    sender: Sender = field(init=False)  # of the posting key
    beacon: HttpBeacon = field(init=False)
    core: CoordinatorCore = field(init=False)
    journal: Journal = field(init=False)
    actor: Actor[ev.Event, Effect] = field(init=False)
    documents: JobDocuments = field(init=False)
    outputs: Outputs = field(init=False)
    history: RunReader = field(init=False)
    staging: Staging = field(init=False)
    attestations: AttestationUploads = field(init=False)
    tables: MarketTables = field(init=False)
    logs: RunLogs = field(init=False)

    async def run(self) -> None:
        log.info("starting: it reads the journal in %s and asks the chain", self.config.home)
        self.contracts = Contracts.of(self.config.deployment)
        async with AsyncExitStack() as stack:
            await self._open(stack)
            await self._serve(stack)

    async def leave(self) -> None:
        """Returns once all work that it has taken is done. The caller limits the time."""
        self.notifier.stopping("nothing new is taken")
        self.board.put("stopping", "the coordinator was told to stop")
        self.is_leaving = True
        while not self.is_settled():
            await self.clock.sleep(LEAVE_POLL_SECONDS)

    async def _open(self, stack: AsyncExitStack) -> None:
        config = self.config
        private_folder(config.home)
        # The journal comes first: it also ensures that no other process works in this folder.
        self.journal = Journal.open(config.path("journal"))
        stack.push_async_callback(self.journal.close)
        session = await stack.enter_async_context(plain_session())
        self._chain_answered()
        urls = config.chain_url, config.second_chain_url
        self.client = chain_client(urls, session, config.fee_cap_gwei * GWEI, self._chain_answered)
        self.sender = self._sender(self.keys.posting, TRANSACTIONS)
        stack.callback(self.sender.close)
        has_worked = self.journal.last_offset > 0
        check_port(config.host, config.port)  # before it pays for its registration
        if not config.is_newest:
            me = self.keys.account.address
            await refuse_beside_a_copy(session, self.client, self.contracts, me, config.own_urls)
        await self._register(has_worked)
        self.rates = RequestRates(
            config.bounds or BOUNDS_BY_LIMITS[config.deployment.limits], self.clock.now
        )
        self.app = self._application()
        self.core = CoordinatorCore(rules_of(config, self.keys))
        info = config.deployment.beacon_info()
        self.beacon = HttpBeacon(config.beacon_url, info, session, self.clock)
        self._open_stores(stack, has_worked)
        self.runner = web.AppRunner(
            self.app, handle_signals=False, shutdown_timeout=2.0, access_log=None
        )
        # The runner is the first to end, because its handlers use the others.
        stack.push_async_callback(self.runner.cleanup)

    def _chain_answered(self) -> None:
        self.chain_answered_at = self.clock.now()

    def _sender(self, key: Signer, file: str) -> Sender:
        trusted = self.config.deployment.trusted()
        return Sender(self.client, key, self.config.path(file), self.clock, **trusted)

    async def _register(self, is_known: bool) -> None:
        """If it `is_known`, it is registered and need not wait for the chain."""
        owner = self._sender(self.keys.account, "account.sqlite")
        try:
            await ensure_registered(self.client, self.contracts, self.keys, owner)
        except Unavailable as error:
            if not is_known:
                raise
            # Not re-raised: jobs need no chain.
            log.error("started without the chain, from what the journal knows: %s", error)
        finally:
            owner.close()

    def _is_retired(self) -> bool:
        """The command `retire` leaves a mark, because the chain is asked only now and then."""
        is_known = self.own_account is not None and self.own_account.is_retired
        return is_known or self.config.path(RETIRED).exists()

    def _application(self) -> web.Application:
        timely = refuse_untimely(
            is_ready=self.ready.is_set,
            is_leaving=lambda: self.is_leaving,
            may_be_older=lambda: self.comparison is not None and self.comparison.may_be_older,
            is_retired=self._is_retired,
        )
        proxies = self.config.proxies.middleware()
        before = [proxies, failures, before_handlers(self.rates), timely]
        app = web.Application(middlewares=before, client_max_size=BODY_BYTES_MAX)
        app.on_response_prepare.append(mark_started)
        return app

    def _open_stores(self, stack: AsyncExitStack, has_worked: bool) -> None:
        config, state = self.config, self.core.state
        remedy = startup_checks.missing_file_remedy(ARCHIVE, has_worked, config.begin_anew)
        archive = FileArchive(config.path(ARCHIVE), remedy)
        stack.callback(archive.close)
        remedy = startup_checks.missing_file_remedy(DOCUMENTS, has_worked, config.begin_anew)
        file = DocumentFile(config.path(DOCUMENTS), config.documents, self.clock.now, remedy)
        stack.callback(file.close)
        self._add_disk_gauges(archive, file)
        self.documents = JobDocuments(self.core, file)
        self.outputs = Outputs(state, archive)
        self.history = RunReader(state, archive)
        self.staging = Staging(
            folder=config.path("store"),
            shares=config.staging,
            state=state,
            claims=self.outputs,
            rates=self.rates,
            clock=self.clock,
            hold_seconds=self.core.rules.limits.max_hold,
        )
        stack.push_async_callback(self.staging.close)
        self.attestations = AttestationUploads(
            config.path("store") / "attestations",
            config.staging.attestations,
            state,
            self.core.rules.limits,
            self.clock.now,
        )
        stack.push_async_callback(self.attestations.store.close)
        self.tables = MarketTables(
            database=database_of(config.database, config.home),
            state=state,
            archive=archive,
            transactions=config.path(TRANSACTIONS),
            posting=self.keys.posting.address,
            clock=self.clock,
            board=self.board,
        )
        self.logs = stack.enter_context(RunLogs.open(config.path(LOGS)))

    def _add_disk_gauges(self, archive: FileArchive, documents: DocumentFile) -> None:
        for name, help_text, read in (
            ("documents_bytes", "Own specs and receipts on the disk.", documents.used_bytes),
            ("documents_bytes_max", "What they may take.", lambda: self.config.documents.bytes_max),
            ("archive_bytes", "Finished runs on the disk.", archive.used_bytes),
            (
                "archive_bytes_max",
                "The archive deletes its oldest runs before their time when it takes more.",
                lambda: self.config.archive.bytes_max,
            ),
        ):
            add_gauge(self.registry, f"quorate_{name}", help_text, partial(_or_zero, read))

    async def _serve(self, stack: AsyncExitStack) -> None:
        core, clock = self.core, self.clock
        codec: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)
        actor = Actor(core, self.journal, clock, codec, SecretStream(), registry=self.registry)
        self.actor, self.is_settled = actor, actor.is_settled
        comparison = self.comparison = JournalComparison(
            config=self.config,
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
        self._bind(peers)
        attestation = AttestationService(
            core=core,
            peers=peers,
            beacon=self.beacon,
            store=self.attestations.store,
            submit=actor.submit,
            key_of_coordinator=partial(coordinator_key, self.client, self.contracts),
            clock=clock,
        )
        handler.attestation, handler.seen_from = attestation, peers.network_of
        server = self._server(peers, p2p_service)
        self.url = await server.listen(self.app, self.runner)
        core.rules = replace(core.rules, sources=(f"{self.url}/v1/content",))
        await actor.start()
        self.outputs.load()
        await comparison.check_files(actor.newest_at)
        self.own_account = OwnAccount(
            client=self.client,
            contracts=self.contracts,
            account=self.keys.account.address,
            posting=self.keys.posting.address,
            transactions=self.config.path(TRANSACTIONS),
            clock=clock,
        )
        server.report = OperatorReport(
            state=core.state,
            registry=self.registry,
            own_account=self.own_account,
            connected=peers.connected,
            problems=server.problems,
            clock=clock,
            second_place=SecondPlace.of(self.config, core.rules.coordinator, clock, self.journal),
        )
        await self._run_tasks(comparison, attestation, p2p_service, server.report, server.imports)

    async def _authorize(self, account: Address, key: Address) -> bool:
        provider = self.core.state.providers.get(account)
        return provider is not None and provider.operator_key == key

    def _p2p_service(self, handler: FrameHandler) -> "P2pService | None":
        """None if the operator wants no libp2p or it is not installed."""
        if not self.config.p2p_listen:
            return None
        problem = p2p.available()
        if problem:
            log.warning("providers connect over WebSocket only: %s", problem)
            return None
        # Imported here: libp2p cannot be installed everywhere.
        from quorate_coordinator.market.p2p_service import make_p2p_service

        return make_p2p_service(
            config=self.config,
            keys=self.keys,
            handler=handler,
            authorize=self._authorize,
            client=self.client,
            contracts=self.contracts,
            sender=self.sender,
        )

    def _bind(self, peers: Peers) -> None:
        submit = self.actor.submit
        comparer = OutputComparer(
            state=self.core.state,
            store=self.staging.outputs,
            folder=self.config.path("compared"),
            clock=self.clock,
            submit=submit,
        )
        comparer.clear()
        performer = EffectPerformer(
            coordinator=self.core.rules.coordinator,
            contracts=self.contracts,
            client=self.client,
            limits=self.core.rules.limits,
            peers=peers,
            documents=self.documents,
            sender=self.sender,
            clock=self.clock,
            archive_writer=ArchiveWriter(
                self.history,
                self.outputs,
                submit,
                self.documents.store_before_leaving,
                self.documents.file.drop,
            ),
            submit=submit,
            compare=comparer,
        )

        async def on_refused(effect: Effect, refusal: Refused) -> None:
            told = purpose_of(effect, refusal)
            if told is not None:
                log.error("the chain refused %s: %s", *told)
                await submit(ev.TransactionRefused(*told))

        self.actor.bind(performer, on_refused)

    def _server(self, peers: Peers, p2p_service: "P2pService | None") -> HttpServer:
        rules, chain = self.core.rules, (self.client, self.contracts)
        imports = ImportedLogs(
            urls=self.config.import_logs,
            folder=self.config.path(FOLDER),
            domain=rules.domain,
            own=rules.coordinator,
            key_of=partial(coordinator_key, *chain),
            clock=self.clock,
            every=rules.limits.offer_refresh,
        )
        return HttpServer(
            config=self.config,
            core=self.core,
            actor=self.actor,
            rates=self.rates,
            staging=self.staging,
            attestations=self.attestations,
            documents=self.documents,
            history=self.history,
            tables=self.tables,
            logs=self.logs,
            registry=self.registry,
            board=self.board,
            clock=self.clock,
            is_stopping=lambda: self.is_stopping,
            peer_id=peer_id(self.keys.peer.public),
            peers=peers,
            p2p_addresses=p2p_service.addresses if p2p_service else tuple,
            chain_answered_at=lambda: self.chain_answered_at,
            imports=imports,
            must_be_funded=partial(must_be_funded, *chain, limits=rules.limits),
            has_balance=partial(has_balance, *chain),
        )

    async def _run_tasks(
        self,
        comparison: JournalComparison,
        attestation: AttestationService,
        p2p_service: "P2pService | None",
        report: OperatorReport,
        imports: ImportedLogs,
    ) -> None:
        clock = self.clock
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.actor.run(), name="actor")
                await self._submit(ev.Restarted())
                group.create_task(self._follower().run(), name="chain")
                group.create_task(self._court().run(), name="court")
                group.create_task(comparison.compare_with_chain(), name="comparison")
                group.create_task(comparison.end_when_older(), name="older journal")
                group.create_task(self._tick(comparison), name="ticks")
                group.create_task(self._rounds().run(), name="beacon")
                group.create_task(self.tables.run(), name="tables")
                group.create_task(attestation.run(), name="attestation")
                group.create_task(self._retention().run(), name="retention")
                runs = self._every(REFRESH_SECONDS, self.history.refresh)
                group.create_task(runs, name="runs")
                staging = self._every(REFRESH_SECONDS, self.staging.refresh)
                group.create_task(staging, name="staging")
                group.create_task(self._input_fetcher().run(), name="inputs")
                group.create_task(self.notifier.watch(clock), name="watchdog")
                group.create_task(report.own_account.run(), name="own account")
                # Finished jobs leave the state before anybody asks.
                counts = self._every(COUNT_SECONDS, report.endings.refresh)
                group.create_task(counts, name="counts")
                group.create_task(report.second_place.run(), name="second place")
                group.create_task(imports.run(), name="imported logs")
                group.create_task(gc_tuning.collect_periodically(clock), name="memory")
                if p2p_service is not None:
                    group.create_task(p2p_service.run(), name="libp2p")
                    await p2p_service.wait_until_up()
                self.announce()
        finally:
            self.is_stopping = True

    async def _every(self, seconds: float, step: Callable[[], Awaitable[None] | None]) -> None:
        while True:
            waiting = step()
            if waiting is not None:
                await waiting
            await self.clock.sleep(seconds)

    async def _submit(self, event: ev.Event) -> None:
        """Tries again while too many effects wait: the event must not be lost.

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

    async def _tick(self, comparison: JournalComparison) -> None:
        await comparison.wait()
        comparison.trust()
        is_noted = False
        while True:
            if comparison.compared.is_set() and not is_noted:
                is_noted = True
                await self._submit(ev.Compared())
            if self.core.needs_tick(int(self.clock.now())):
                await self._submit(ev.Tick())
            await self.clock.sleep(TICK_SECONDS)

    def _follower(self) -> ContractFollower:
        follower = ContractFollower(
            client=self.client,
            contracts=self.contracts,
            coordinator=self.core.rules.coordinator,
            core=self.core,
            actor=self.actor,
            clock=self.clock,
        )
        if isinstance(self.clock, SystemClock):
            follower.witness = self.clock.witness
        return follower

    def _court(self) -> CourtDriver:
        return CourtDriver(
            client=self.client,
            contracts=self.contracts,
            core=self.core,
            sender=self.sender,
            beacon=self.beacon,
            clock=self.clock,
        )

    def _rounds(self) -> BeaconPoller:
        return BeaconPoller(
            wanted=self.core.rounds_wanted,
            submit=self._submit,
            beacon=self.beacon,
            url=self.config.beacon_url,
            board=self.board,
            clock=self.clock,
        )

    def _retention(self) -> Retention:
        least = max(self.config.archive.least_seconds, demanded_seconds(self.core.rules.limits))
        return Retention(
            history=self.history,
            keeping=replace(self.config.archive, least_seconds=least),
            is_stored=self.staging.has,
            hide=lambda runs: self.tables.forget(item.run.job_id for item in runs),
            clock=self.clock,
            board=self.board,
        )

    def _input_fetcher(self) -> InputFetcher:
        return InputFetcher(
            state=self.core.state,
            staging=self.staging,
            sources=tuple(gateway_source("gateway", it) for it in self.config.ipfs_gateways),
            clock=self.clock,
            submit=self._submit,
            may_be_private=self.core.rules.limits.name == DEVNET.name,
        )

    def announce(self) -> None:
        coordinator = self.core.rules.coordinator.hex()
        log.info("coordinator 0x%s serves at %s", coordinator, self.url)
        if self.config.ready_file is not None:
            facts = {"url": self.url, "coordinator": "0x" + coordinator}
            write_atomic(self.config.ready_file, json.dumps(facts).encode())
        self.ready.set()
        self.notifier.ready(f"serves at {self.url}")


def _or_zero(count: Callable[[], int]) -> int:
    """A scrape must not fail, and `health` says what is wrong."""
    try:
        return count()
    except Unavailable:
        return 0
