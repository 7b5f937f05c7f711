"""The coordinator's HTTP server: API, event streams, uploads, metrics."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_network

from aiohttp import web
from prometheus_client import CollectorRegistry

from quorate_content.dag.cid import Cid, parse
from quorate_content.store.fetch_order import gateway_source
from quorate_content.transfer.gateway import CombinedStores
from quorate_content.transfer.staging_routes import add_staging_routes
from quorate_content.transfer.upload_limits import UploadGrant
from quorate_contracts.deploy import digest
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import METRICS, OPERATOR, add_handlers, handles
from quorate_coordinator.api.input_search import InputSearch
from quorate_coordinator.api.relays import Relays
from quorate_coordinator.api.routes import VERSION, Api, answer
from quorate_coordinator.api.streams import SecretRelay, Streams
from quorate_coordinator.base.config import Config
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.market.imported_logs import ImportedLogs
from quorate_coordinator.status.market_tables import MarketTables
from quorate_coordinator.status.operator_report import OperatorReport
from quorate_coordinator.storage.attestation_uploads import AttestationUploads
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.staging import Staging
from quorate_coordinator.storage.stored_effects import JobDocuments
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import Clock, Peers
from quorate_protocol.messages.signed import Order
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, UnixSeconds
from quorate_runtime.actor.actor import Actor
from quorate_runtime.http.client_networks import address_of
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.http.listener import Listener, OpenConnections, cannot_listen
from quorate_runtime.process.health import (
    Board,
    Problem,
    chain_problem,
    clock_problem,
    disk_problem,
    silence_problem,
)
from quorate_runtime.process.metrics import CONTENT_TYPE, exposition

RETRY_SECONDS = 10.0
NOT_THE_OPERATOR = (
    "only this machine may read them, and the networks of `quorate coordinator init --metrics-from`"
)


def check_port(host: str, port: int) -> None:
    """Raises Unavailable if nothing can listen there now. Port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise cannot_listen(host, port, error) from error


@dataclass(slots=True)
class HttpServer:
    """The HTTP server, and the parts from which it answers."""

    config: Config
    core: CoordinatorCore
    actor: Actor[ev.Event, Effect]
    rates: RequestRates
    staging: Staging
    attestations: AttestationUploads
    documents: JobDocuments
    history: RunReader
    tables: MarketTables
    logs: RunLogs
    registry: CollectorRegistry
    board: Board
    clock: Clock
    is_stopping: Callable[[], bool]
    peer_id: str
    peers: Peers
    p2p_addresses: Callable[[], tuple[str, ...]]
    chain_answered_at: Callable[[], float]
    imports: ImportedLogs
    must_be_funded: Callable[[Order], Awaitable[None]]
    has_balance: Callable[[Address], Awaitable[bool]]
    report: OperatorReport | None = None  # once the journal is replayed

    async def listen(self, app: web.Application, runner: web.AppRunner) -> str:
        """Returns the URL at which others reach this coordinator."""
        config = self.config
        self._add_routes(app)
        await runner.setup()
        protocol = OpenConnections(self.rates.bounds, config.proxies)
        try:
            await Listener(runner, config.host, config.port, protocol).start()
        except OSError as error:
            raise cannot_listen(config.host, config.port, error) from error
        port = runner.addresses[0][1]
        return config.public_url or f"http://{config.host}:{port}"

    def _input_search(self) -> InputSearch:
        sources = tuple(gateway_source("gateway", url) for url in self.config.ipfs_gateways)
        is_devnet = self.core.rules.limits.name == DEVNET.name
        return InputSearch(self.staging, sources, is_devnet)

    def _add_routes(self, app: web.Application) -> None:
        core, clock = self.core, self.clock
        auth = Auth(core.rules, core.state, clock, self.rates)
        uploads = self.staging.uploads, self.staging.small
        access = RunAccess(core.state, self.history, self.staging.claims, uploads)
        api = Api(
            core=core,
            actor=self.actor,
            auth=auth,
            info=self._info,
            clock=clock,
            receipt=self._document,
            history=self.history,
            access=access,
            problems=self.problems,
            market_history=self.tables.history,
            check_inputs=self._input_search().check,
            check_output=self.staging.check_output,
            must_be_funded=self.must_be_funded,
            must_have_room=self._must_have_room,
            deployment_hash=digest(self.config.deployment),
            imported=self.imports.view,
        )
        streams = Streams(
            history=self.history,
            access=access,
            auth=auth,
            clock=clock,
            logs=self.logs,
            is_stopping=self.is_stopping,
            submit=self.actor.submit,
        )
        relays = Relays(core.state, auth, self.peers, self.is_stopping, self.history.archived)
        secrets = SecretRelay(core.state, auth, self.peers)
        add_handlers(app, api, streams, relays, secrets, self)
        library = CombinedStores(self.staging.stores, self.documents.find)

        async def may_read(request: web.Request, cid: Cid) -> bool:
            return await access.may_read(cid, auth.account(request))

        async def grant(request: web.Request) -> UploadGrant:
            account, state = auth.required(request), core.state
            is_new = account not in state.clients and account not in state.providers
            has_balance = is_new and await self.has_balance(account)
            return self.staging.grant(account, request, has_balance)

        add_staging_routes(app, self.staging.uploads, grant, may_read=may_read, library=library)
        self._add_attestation_routes(app, auth)

    def _add_attestation_routes(self, app: web.Application, auth: Auth) -> None:
        """Anybody may read them, under the path that a provider's gateway has."""

        async def grant(request: web.Request) -> UploadGrant:
            return self.attestations.grant(auth.required(request))

        add_staging_routes(app, self.attestations.store, grant, Routes.ATTESTATION_UPLOAD.path)

    def _is_operator(self, request: web.Request) -> bool:
        address = address_of(request.remote or "")
        if address is None:
            return False
        networks = (ip_network(text) for text in self.config.metrics_from)
        return address.is_loopback or any(address in network for network in networks)

    @handles(OPERATOR)
    async def _get_operator(self, request: web.Request) -> web.Response:
        if not self._is_operator(request):
            raise Refused(Code.NOT_YOURS, NOT_THE_OPERATOR)
        assert self.report is not None, "no request is taken before the start"
        return answer(self.report.view())

    @handles(METRICS)
    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._is_operator(request):
            return web.Response(status=403, text=f"metrics: {NOT_THE_OPERATOR}\n")
        if self.report is not None:
            self.report.endings.refresh()
        return web.Response(body=exposition(self.registry), headers={"Content-Type": CONTENT_TYPE})

    def problems(self) -> tuple[Problem, ...]:
        time, depth = self.core.state.own.block_time, self.core.rules.limits.chain_depth
        url = " and ".join(filter(None, (self.config.chain_url, self.config.second_chain_url)))
        silence = silence_problem(self.clock, self.chain_answered_at(), url)
        self.board.put("chain", silence or chain_problem(self.clock, time, url, depth))
        now = UnixSeconds(int(self.clock.now()))
        self.board.put("clock", clock_problem(now, self.actor.newest_at))
        self.board.put("disk", disk_problem(self.config.home))
        self.board.put("documents", self.documents.file.problem)
        if self.history.archive.problem:
            # `Retention` reads the archive every minute, and clears the problem.
            self.board.put("archive", self.history.archive.problem)
        return self.board.problems()

    def _must_have_room(self) -> None:
        """Raises Refused or Unavailable: new orders must leave room for receipts of open ones."""
        disk, file = disk_problem(self.config.home), self.documents.file
        if disk:
            raise Refused(Code.QUOTA, f"order: the coordinator's disk has no room: {disk}")
        if file.problem:
            raise Unavailable(f"order: {file.problem}", RETRY_SECONDS)
        if file.is_nearly_full:
            raise Refused(
                Code.QUOTA,
                "order: the coordinator's documents are nearly full, and the rest is for receipts; "
                "its operator must give them more: `quorate coordinator up --documents-size SIZE`",
            )

    async def _document(self, cid: str) -> bytes | None:
        return await self.documents.find(parse(cid))

    def _info(self) -> InfoView:
        config, rules = self.config, self.core.rules
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
            peer_id=self.peer_id,
            addresses=self.p2p_addresses(),
            genesis=deployment.genesis,
        )
