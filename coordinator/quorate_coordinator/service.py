"""The coordinator's shell: makes all its parts and runs them as one group of tasks."""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry

from quorate_content.dag.cid import Cid, parse
from quorate_content.transfer.gateway import CombinedStores
from quorate_content.transfer.staging_routes import add_staging_routes
from quorate_content.transfer.upload_limits import UploadGrant
from quorate_contracts.deploy import Contracts
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.middleware import before_handlers
from quorate_coordinator.api.routes import BODY_BYTES_MAX, VERSION, Api
from quorate_coordinator.api.streams import Streams
from quorate_coordinator.api.while_starting import refuse_early
from quorate_coordinator.api.while_stopping import refuse_new
from quorate_coordinator.chain.batch_claims import BatchClaims
from quorate_coordinator.chain.beacon_poller import Rounds
from quorate_coordinator.chain.contract_follower import ContractFollower
from quorate_coordinator.chain.court_driver import CourtDriver
from quorate_coordinator.chain.queries import newest_epoch
from quorate_coordinator.chain.registration import ensure_registered
from quorate_coordinator.config import ARCHIVE, DOCUMENTS, TRANSACTIONS, Config
from quorate_coordinator.coordinator_keys import CoordinatorKeys
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.coordinator_core import Coordinator
from quorate_coordinator.core.effects import Effect
from quorate_coordinator.core.records.archived_run import ArchivedRun
from quorate_coordinator.core.records.retirement import ARCHIVED
from quorate_coordinator.core.state import State
from quorate_coordinator.core.step_context import Rules
from quorate_coordinator.effect_performer import EffectPerformer, purpose_of
from quorate_coordinator.providers.frame_handler import FrameHandler
from quorate_coordinator.providers.frame_limits import FrameLimits
from quorate_coordinator.rate_limits import Rates
from quorate_coordinator.reporting.database import database_of
from quorate_coordinator.reporting.market_tables import MarketTables
from quorate_coordinator.request_limits import BOUNDS
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.archive_file import FileArchive
from quorate_coordinator.storage.archive_writer import ArchiveWriter
from quorate_coordinator.storage.disk_metrics import add_disk_gauges
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_coordinator.storage.documents import Documents
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.retention import Retention, demanded_seconds
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.staging import Staging, refresh_for_ever
from quorate_protocol.limits import BY_NAME
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.ports import Beacon, Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_protocol.values import replace
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import CanonicalCodec
from quorate_runtime.beacon.beacon_client import HttpBeacon
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.chain.client import GWEI
from quorate_runtime.clock import SystemClock
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.error_responses import failures, mark_started
from quorate_runtime.http.listener import Listener, ListenerProtocol, closed
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import SecretStream
from quorate_runtime.peers.websocket_peers import WebSocketPeers
from quorate_runtime.process import gc_tuning
from quorate_runtime.process.health import Board, Problem, chain_problem, disk_problem
from quorate_runtime.process.metrics import CONTENT_TYPE, exposition
from quorate_runtime.process.systemd_notify import NOBODY, Notifier

log = logging.getLogger(__name__)
TICK_SECONDS = 0.5
LEAVE_POLL_SECONDS = 0.05
HISTORY_SECONDS = 2.0
COMPARE_SECONDS, COMPARE_RETRY_SECONDS = 5.0, 2.0


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
    notifier: Notifier = NOBODY
    is_settled: Callable[[], bool] = lambda: True
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    app: web.Application | None = None
    rates: Rates | None = None

    async def run(self) -> None:
        """Starts everything and serves."""
        async with AsyncExitStack() as stack:
            await self._run(stack)

    async def leave(self) -> None:
        """Takes nothing new, then until what was taken is done with. Whoever waits sets the
        bound, then cancels `run`.
        """
        self.notifier.stopping("nothing new is taken")
        self.board.put("stopping", "the coordinator was told to stop")
        self.is_leaving = True
        while not self.is_settled():
            await self.clock.sleep(LEAVE_POLL_SECONDS)

    async def _run(self, stack: AsyncExitStack) -> None:
        config, contracts = self.config, Contracts.of(self.config.deployment)
        config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        journal = Journal.open(
            config.path("journal")
        )  # first: it also says that no other process works in this folder
        stack.push_async_callback(journal.close)
        session = await stack.enter_async_context(plain_session())
        client = ChainClient(Rpc(config.chain_url, session), config.fee_cap_gwei * GWEI)
        sender = Sender(client, self.keys.posting, config.path(TRANSACTIONS), self.clock)
        stack.callback(sender.close)
        await self._register(client, contracts, is_known=journal.last_offset > 0)
        rates = Rates(config.bounds or BOUNDS[config.deployment.limits], self.clock.now)
        guards = [
            before_handlers(rates),
            refuse_early(self.ready.is_set),
            refuse_new(lambda: self.is_leaving),
        ]
        before = [config.proxies.middleware(), failures, *guards]
        app = web.Application(middlewares=before, client_max_size=BODY_BYTES_MAX)
        app.on_response_prepare.append(mark_started)
        self.app, self.rates = app, rates
        core, registry, logs = Coordinator(self._rules()), CollectorRegistry(), RunLogs()
        beacon = HttpBeacon(config.beacon_url, config.deployment.beacon_info(), session, self.clock)
        has_worked = journal.last_offset > 0
        archive = FileArchive(
            config.path(ARCHIVE), startup_checks.gone(ARCHIVE, has_worked, config.begin_anew)
        )
        stack.callback(archive.close)
        gone = startup_checks.gone(DOCUMENTS, has_worked, config.begin_anew)
        file = DocumentFile(config.path(DOCUMENTS), config.documents, self.clock.now, gone)
        stack.callback(file.close)
        add_disk_gauges(registry, config, archive, file)
        history, outputs = RunReader(core.state, archive), Outputs(core.state, archive)
        max_hold = core.rules.limits.max_hold
        staging = Staging(
            config.path("store"), config.staging, core.state, outputs, rates, self.clock, max_hold
        )
        stack.push_async_callback(staging.close)
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=2.0, access_log=None)
        stack.push_async_callback(
            runner.cleanup
        )  # first of all to end: its handlers use the others
        documents = Documents(core, file)
        parts = _Parts(
            self,
            contracts,
            client,
            sender,
            staging,
            documents,
            core,
            registry,
            logs,
            beacon,
            rates,
            outputs,
            history,
            journal,
            self._tables(core.state, archive),
        )
        await parts.serve(stack, app, runner)

    def _tables(self, state: State, archive: FileArchive) -> MarketTables:
        config = self.config
        return MarketTables(
            database_of(config.database, config.home),
            state,
            archive,
            config.path(TRANSACTIONS),
            self.keys.posting.address,
            self.clock,
            self.board,
        )

    async def _register(self, client: ChainClient, contracts: Contracts, is_known: bool) -> None:
        """`is_known`: whoever has worked here before is registered, and need not wait for a
        chain node that is away.
        """
        owner = Sender(client, self.keys.account, self.config.path("account.sqlite"), self.clock)
        try:
            await ensure_registered(client, contracts, self.keys, owner)
        except Unavailable as error:
            if not is_known:
                raise
            log.error(
                "started without the chain, from what the journal knows: %s", error
            )  # not re-raised: jobs need no chain
        finally:
            owner.close()

    def _rules(self) -> Rules:
        deployment = self.config.deployment
        return Rules(
            domain=deployment.domain(),
            coordinator=self.keys.account.address,
            statement_key=self.keys.statement.address,
            sign=self.keys.statement.sign,
            limits=BY_NAME[deployment.limits],
            fee_bps=self.config.fee_bps,
            beacon_genesis=deployment.beacon_genesis,
            beacon_key=deployment.beacon_key,
            sources=(),
        )


@dataclass(slots=True)
class _Parts:
    """What `Service._run` made, wired together here."""

    service: Service
    contracts: Contracts
    client: ChainClient
    sender: Sender
    staging: Staging
    documents: Documents
    core: Coordinator
    registry: CollectorRegistry
    logs: RunLogs
    beacon: Beacon
    rates: Rates
    outputs: Outputs
    history: RunReader
    journal: Journal
    tables: MarketTables
    shown: asyncio.Queue[str] = field(
        default_factory=asyncio.Queue
    )  # of what we signed and do not know
    found: startup_checks.Found = startup_checks.Found()

    async def serve(
        self, stack: AsyncExitStack, app: web.Application, runner: web.AppRunner
    ) -> None:
        """Replays the journal, listens, and runs all tasks."""
        service, core = self.service, self.core
        codec: CanonicalCodec[ev.Event, Effect] = CanonicalCodec(ev.Event, Effect)
        limits, clock = core.rules.limits, service.clock
        actor = Actor(core, self.journal, clock, codec, SecretStream(), registry=self.registry)
        service.is_settled = actor.is_settled
        handler = FrameHandler(
            core.rules.domain,
            limits,
            core,
            actor,
            self.staging.outputs,
            clock,
            self.logs,
            self.outputs,
            FrameLimits(self.rates.bounds, clock.now),
            self._show,
        )
        peers = WebSocketPeers(core.rules.coordinator, handler, self._authorize)
        stack.push_async_callback(peers.close)
        performer = EffectPerformer(
            core.rules.coordinator,
            self.contracts,
            self.client,
            limits,
            peers,
            self.documents,
            self.sender,
            clock,
            ArchiveWriter(self.history, self.outputs, actor.submit, self.documents.keep),
            actor.submit,
            core.state,
        )

        async def refused(effect: Effect, refusal: Refused) -> None:
            told = purpose_of(effect, refusal)
            if told is not None:
                await actor.submit(ev.TransactionRefused(*told))

        actor.bind(performer, refused)
        app.router.add_routes(peers.routes())
        url = await self._listen(app, runner, actor)
        core.rules = _with_sources(core.rules, (f"{url}/v1/content",))
        await actor.start()
        self.outputs.load()
        self.found = startup_checks.Found.of(core.state.own, actor.newest_at, service.clock.now())
        self._compare_archive()
        await self._check_books()
        await self._tasks(actor)

    async def _check_books(self) -> None:
        """Before anything is signed."""
        config, state = self.service.config, self.core.state
        path = config.path(TRANSACTIONS)
        if startup_checks.is_begun_anew(path, state, config.begin_anew):
            await startup_checks.check_nothing_is_under_way(self.client, self.sender.address, path)
        startup_checks.check_sends(path, state, config.begin_anew)
        if not config.is_newest:
            startup_checks.check_archive(state, self.history.archive)

    async def _compare(self, compared: asyncio.Event) -> None:
        """With the chain, as soon as it answers."""
        clock, coordinator, path = (
            self.service.clock,
            self.core.rules.coordinator,
            self.service.config.path(TRANSACTIONS),
        )
        while not self.service.config.is_newest:
            try:
                newest = await newest_epoch(self.client, self.contracts, coordinator)
                await asyncio.to_thread(
                    startup_checks.check_chain,
                    newest.number,
                    self.found.epochs,
                    path,
                    self.sender.address,
                )
                break
            except Unavailable as error:
                # Not re-raised: nothing can be posted before it answers.
                log.warning("the journal is not compared with the chain yet: %s", error)
                await clock.sleep(COMPARE_RETRY_SECONDS)
        compared.set()

    async def _end_when_shown(self) -> None:
        raise startup_checks.older(await self.shown.get())

    def _show(self, what: str) -> None:
        if self.service.config.is_newest:
            log.error("the journal may not be the newest: %s", what)
        elif self.shown.empty():
            self.shown.put_nowait(what)

    def _compare_archive(self) -> None:
        wanted = self.core.state.counters.get(ARCHIVED) or 0
        try:
            there = self.history.archive.count()
        except Unavailable:
            return  # not re-raised: `health` says what is wrong with it
        if there < wanted:
            log.error(
                (
                    "the archive has %d of %d finished runs: it is older than the journal. Bring "
                    "back "
                    "its newest backup"
                ),
                there,
                wanted,
            )

    async def _authorize(self, account: Address, key: Address) -> bool:
        provider = self.core.state.providers.get(account)
        return provider is not None and provider.operator_key == key

    async def _listen(
        self, app: web.Application, runner: web.AppRunner, actor: Actor[ev.Event, Effect]
    ) -> str:
        service, config, core = self.service, self.service.config, self.core
        auth = Auth(core.rules, core.state, service.clock, self.rates)
        info = self._info()
        api = Api(
            core,
            actor,
            auth,
            info,
            core.rules.limits,
            service.clock,
            self._document,
            self.history,
            self._problems,
            self.tables.history,
        )
        api.add_routes(app)
        Streams(
            self.history, auth, service.clock, self.logs, lambda: service.is_stopping
        ).add_routes(app)
        library = CombinedStores(self.staging.stores, self.documents.find)

        async def may_read(request: web.Request, cid: Cid) -> bool:
            return await self.staging.may_read(cid, auth.account(request), self.documents.find)

        async def grant(request: web.Request) -> UploadGrant:
            return self.staging.grant(auth.required(request), request)

        add_staging_routes(app, self.staging.uploads, grant, may_read=may_read, library=library)
        app.router.add_get("/metrics", self._metrics)
        await runner.setup()
        site = Listener(
            runner, config.host, config.port, ListenerProtocol(self.rates.bounds, config.proxies)
        )
        try:
            await site.start()
        except OSError as error:
            raise closed(config.host, config.port, error) from error
        port = runner.addresses[0][1]
        service.url = config.public_url or f"http://{config.host}:{port}"
        return service.url

    async def _metrics(self, request: web.Request) -> web.Response:
        if request.remote not in ("127.0.0.1", "::1"):
            return web.Response(status=403, text="metrics are served on loopback only\n")
        return web.Response(body=exposition(self.registry), headers={"Content-Type": CONTENT_TYPE})

    def _problems(self) -> tuple[Problem, ...]:
        """What is wrong at this moment."""
        service = self.service
        time, depth = self.core.state.own.block_time, self.core.rules.limits.chain_depth
        service.board.put(
            "chain", chain_problem(service.clock, time, service.config.chain_url, depth)
        )
        service.board.put("disk", disk_problem(service.config.home))
        service.board.put("documents", self.documents.file.problem)
        if self.history.archive.problem:
            service.board.put(
                "archive", self.history.archive.problem
            )  # taken away by `Retention`, which works on it every minute
        return service.board.problems()

    async def _document(self, cid: str) -> bytes | None:
        return await self.documents.find(parse(cid))

    def _info(self) -> InfoView:
        config, rules = self.service.config, self.core.rules
        deployment = config.deployment
        names = {name: address for address, name in deployment.names().items()}
        info = deployment.beacon_info()
        beacon = BeaconView(config.beacon_url, info.public_key, info.period, info.genesis_time)
        return InfoView(
            coordinator=rules.coordinator,
            statement_key=rules.statement_key,
            chain_id=deployment.chain_id,
            chain_url=config.chain_url,
            contracts=names,
            beacon=beacon,
            fee_bps=rules.fee_bps,
            limits=deployment.limits,
            version=VERSION,
        )

    async def _tasks(self, actor: Actor[ev.Event, Effect]) -> None:
        service, clock = self.service, self.service.clock
        watch = ContractFollower(
            self.client, self.contracts, self.core.rules.coordinator, self.core, actor, clock
        )
        if isinstance(clock, SystemClock):
            watch.witness = clock.witness
        keeper = CourtDriver(
            self.client, self.contracts, self.core, self.sender, self.beacon, clock
        )
        submit = partial(self._until_taken, actor)
        rounds = Rounds(
            self.core.rounds_wanted,
            submit,
            self.beacon,
            service.config.beacon_url,
            service.board,
            clock,
        )
        rules = self.core.rules
        batch_claims = BatchClaims(
            self.client,
            self.contracts,
            rules.coordinator,
            self.core.state,
            self.sender,
            rules.limits,
            clock,
        )
        compared = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(actor.run(), name="actor")
                await self._until_taken(actor, ev.Restarted())
                group.create_task(watch.run(), name="chain")
                group.create_task(keeper.run(), name="court")
                if service.config.claims_for_all:
                    group.create_task(batch_claims.run(), name="claims")
                group.create_task(self._compare(compared), name="books")
                group.create_task(self._end_when_shown(), name="shown")
                group.create_task(self._ticks(actor, compared), name="ticks")
                group.create_task(rounds.run(), name="beacon")
                group.create_task(self.tables.run(), name="tables")
                group.create_task(self._retention().run(), name="retention")
                group.create_task(self._follow_history(), name="history")
                group.create_task(
                    refresh_for_ever(self.staging, clock, HISTORY_SECONDS), name="staging"
                )
                group.create_task(service.notifier.watch(clock), name="watchdog")
                group.create_task(gc_tuning.tidy_for_ever(clock), name="memory")
                self._announce()
        finally:
            service.is_stopping = True

    def _announce(self) -> None:
        service = self.service
        log.info("coordinator 0x%s serves at %s", self.core.rules.coordinator.hex(), service.url)
        ready = service.config.ready_file
        if ready is not None:
            part = ready.with_suffix(".part")
            part.write_text(
                json.dumps(
                    {"url": service.url, "coordinator": "0x" + self.core.rules.coordinator.hex()}
                )
            )
            os.replace(part, ready)
        service.ready.set()
        service.notifier.ready(f"serves at {service.url}")

    async def _ticks(self, actor: Actor[ev.Event, Effect], compared: asyncio.Event) -> None:
        await self._hear(compared)
        while True:
            if compared.is_set():
                compared.clear()  # noted once
                await self._until_taken(actor, ev.Compared())
            if self.core.needs_tick(int(self.service.clock.now())):
                await self._until_taken(actor, ev.Tick())
            await self.service.clock.sleep(TICK_SECONDS)

    async def _hear(self, compared: asyncio.Event) -> None:
        """Sums are signed by ticks alone. Before the first, others have a moment to show newer
        ones: the chain unless it is away, and after a longer time away, as between a backup and
        today, providers too.
        """
        with contextlib.suppress(
            TimeoutError
        ):  # not re-raised: nothing can be posted then, and deadlines are to pass
            async with asyncio.timeout(COMPARE_SECONDS):
                await compared.wait()
        if self.found.may_be_older:
            await self.service.clock.sleep(
                startup_checks.PAUSES_HEARD * self.core.rules.limits.heartbeat_every
            )

    async def _until_taken(self, actor: Actor[ev.Event, Effect], event: ev.Event) -> None:
        """An event of our own. While effects wait in heaps (a full disk, a chain that is away)
        it waits for them: ending the process would not perform one of them, and it could not
        start again before them either.
        """
        board, clock = self.service.board, self.service.clock
        while True:
            try:
                await actor.submit(event)
            except Unavailable as error:
                # Not re-raised: told to people, until the outbox has made room.
                board.put("outbox", str(error))
                await clock.sleep(TICK_SECONDS)
            else:
                board.put("outbox")
                return

    async def _follow_history(self) -> None:
        while True:
            self.history.refresh()
            await self.service.clock.sleep(HISTORY_SECONDS)

    def _retention(self) -> Retention:
        """What lets old runs go, from the archive and from the tables."""
        service, limits = self.service, self.core.rules.limits
        keeping = replace(
            service.config.archive,
            least_seconds=max(service.config.archive.least_seconds, demanded_seconds(limits)),
        )

        async def hide(over: Sequence[ArchivedRun]) -> None:
            await self.tables.forget(item.run.job_id for item in over)

        async def is_stored(digest: Hash32) -> bool:
            found = [
                await store.resolve(digest) for store in self.staging.stores
            ]  # readers are served from all of them
            return any(cid is not None for cid in found)

        return Retention(self.history, keeping, is_stored, hide, service.clock, service.board)


def _with_sources(rules: Rules, sources: tuple[str, ...]) -> Rules:
    """The same rules, once the own URL is known."""
    return replace(rules, sources=sources)
