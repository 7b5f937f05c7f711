"""Builds the parts of the provider daemon and connects them. It starts none of them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import aiohttp

from quorate_attestation.provers.cuda_device import engine_of
from quorate_content.dag.cid import parse
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.document_fetch import document_fetch
from quorate_content.transfer.kubo import Kubo
from quorate_contracts.deploy import Contracts
from quorate_node.base.config import AttestationChoice, Config, kinds_of, store_spare_bytes
from quorate_node.base.operator_keys import FILE as OPERATOR_KEYS_FILE
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.base.schedule import schedule_of
from quorate_node.core import effects, events
from quorate_node.core.capacity import held_gpus
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import GpuDriver, Policy, Terms
from quorate_node.effect_performer import EffectPerformer
from quorate_node.executors.base.inside import rental_problem
from quorate_node.executors.base.slot_users import job_users
from quorate_node.executors.job_runner import JobRunner
from quorate_node.machine.gpu_manners import GpuManners, GpuUse
from quorate_node.machine.gpu_slots import LaidOut, lay_out
from quorate_node.machine.host_probe import detect_host
from quorate_node.machine.nvml_probe import GpuWatch
from quorate_node.machine.run_slots import (
    SANDBOXES_WITH_GPUS,
    divide,
    needs_engine,
    on_terms,
    with_cuda,
)
from quorate_node.market.announcements import Announcements
from quorate_node.market.attestation_service import AttestationService, claims_of_slots
from quorate_node.market.connections import Connections, make_p2p_transport
from quorate_node.market.content_sources import OwnerGateways
from quorate_node.market.coordinator_client import Coordinator, deployment_from_info
from quorate_node.market.coordinator_dialer import CoordinatorDialer
from quorate_node.market.frame_handler import FrameHandler
from quorate_node.market.prover_service import Subject
from quorate_node.market.published_records import FILE as RECORDS_FILE
from quorate_node.market.published_records import PublishedRecords
from quorate_node.market.verdict_checks import VerdictChecks
from quorate_node.owner.account_watch import AccountWatch
from quorate_node.owner.funded_orders import FOLDER as FUNDED_FOLDER
from quorate_node.owner.jury import JuryService
from quorate_node.owner.leaving import is_leaving
from quorate_node.owner.registration import must_stake
from quorate_node.owner.senders import OperatorSender
from quorate_node.rentals.dialer import Serve
from quorate_node.rentals.rented_parts import RentedInput, RentedParts, rented_parts
from quorate_node.rentals.secrets import SecretStore
from quorate_node.status.owner_requests import Drain
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.offer import Hardware
from quorate_protocol.messages.ports import Clock, Executor, GpuProbe
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, JobKind
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.chain import ChainClient, chain_client
from quorate_runtime.chain.fee_bids import GWEI
from quorate_runtime.http.coordinator_routes import Routes
from quorate_runtime.journal.journal import Journal
from quorate_runtime.keys.crypto import SecretStream, recover
from quorate_runtime.peers.verifications import Verifier
from quorate_runtime.process.health import Board

if TYPE_CHECKING:
    from quorate_node.market.p2p_transport import P2pTransport

log = logging.getLogger(__name__)

STORE_OWNER = "verification"  # of proofs that this provider checks for others


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one daemon. `terms` are today's; the core's state may hold earlier ones."""

    terms: Terms
    core: ProviderCore
    actor: Actor[events.Event, effects.Effect]
    store: ContentStore
    contracts: Contracts
    client: ChainClient
    operator_keys: OperatorKeys
    coordinators: dict[Address, Coordinator]
    dialers: dict[Address, CoordinatorDialer]
    gpu_watch: GpuWatch
    attestation: AttestationService
    job_runner: JobRunner
    announcements: Announcements
    operator_sender: OperatorSender
    drain: Drain
    account_watch: AccountWatch
    verdict_checks: VerdictChecks
    rented: RentedParts
    p2p_transport: "P2pTransport | None"

    def transports(self) -> dict[Address, str]:
        return {
            address: dialer.transport
            for address, dialer in self.dialers.items()
            if dialer.transport
        }


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The input of `assemble`: what the daemon was given, and what it found out first."""

    config: Config
    keys: ProviderKeys
    executor: Executor
    clock: Clock
    board: Board
    session: aiohttp.ClientSession
    infos: tuple[InfoView, ...]  # one per coordinator, in the order of `config.coordinators`
    hardware: Hardware
    inventory: GpuInventory  # as it was when the daemon started
    laid_out: LaidOut  # the slots of GPUs that containers reach
    probe: GpuProbe
    is_on_offer: asyncio.Event  # set once the provider has sent its first offer
    read_gpu_use: Callable[[], tuple[GpuUse, ...]]
    serve_rental: Serve | None = None


def assemble(given: Surroundings, stack: AsyncExitStack) -> Parts:
    """Builds all parts, and pushes onto `stack` what must be closed at the end."""
    config, clock = given.config, given.clock
    # The journal comes first: its lock refuses a second process on the same folder.
    journal = Journal.open(config.path("journal"))
    stack.push_async_callback(journal.close)
    terms = _terms(given)
    core, contracts = ProviderCore(terms), Contracts.of(deployment_from_info(given.infos[0]))
    codec = PackedCodec[events.Event, effects.Effect](events.Event, effects.Effect)
    actor = Actor(core, journal, clock, codec, SecretStream())
    chain_urls = config.chain_urls(given.infos[0].chain_url)
    client = chain_client(chain_urls, given.session, config.fee_cap_gwei * GWEI)
    operator_keys = OperatorKeys(given.keys, config.path(OPERATOR_KEYS_FILE))
    operator_sender = OperatorSender(
        operator_keys, client, config.path("operator.sqlite"), clock, contracts.deployment
    )
    stack.callback(operator_sender.close)
    spare_bytes = store_spare_bytes(config.home, config.is_store_sized)
    store = ContentStore(config.path("store"), config.store_bytes, spare_bytes=spare_bytes)
    stack.push_async_callback(store.close)
    coordinators = _coordinators(given, operator_keys)
    dialers: dict[Address, CoordinatorDialer] = {}
    attestation = _attestation(given, core, actor, operator_keys, store, coordinators, dialers)
    connections = _connections(given, terms, operator_keys)
    verdict_checks = _verdict_checks(given, core, actor, coordinators)
    rented = _rented(given, core, coordinators)
    dialers |= _dialers(
        given, rented, actor, coordinators, store, attestation, connections, verdict_checks
    )
    gpu_watch = _gpu_watch(given, core, actor)
    job_runner = _job_runner(given, terms, store, gpu_watch, rented.secrets)
    announcements = Announcements(
        core, dialers, operator_keys, clock, attestation.attested, connections.publish
    )
    jury_service = JuryService(
        core=core,
        job_runner=job_runner,
        coordinators=coordinators,
        contracts=contracts,
        client=client,
        operator_sender=operator_sender,
        operator_keys=operator_keys,
        clock=clock,
    )
    performer = EffectPerformer(
        core=core,
        actor=actor,
        job_runner=job_runner,
        coordinators=coordinators,
        peers=dialers,
        operator_keys=operator_keys,
        announcements=announcements,
        jury_service=jury_service,
        evidence_folder=config.path(FUNDED_FOLDER),
        clock=clock,
        egress=rented.egress,
    )
    actor.bind(performer.perform, performer.refused)
    return Parts(
        terms=terms,
        core=core,
        actor=actor,
        store=store,
        contracts=contracts,
        client=client,
        operator_keys=operator_keys,
        coordinators=coordinators,
        dialers=dialers,
        gpu_watch=gpu_watch,
        attestation=attestation,
        job_runner=job_runner,
        announcements=announcements,
        operator_sender=operator_sender,
        drain=_drain(given, core, actor, announcements),
        account_watch=_account_watch(given, core, client, contracts, operator_keys),
        verdict_checks=verdict_checks,
        rented=rented,
        p2p_transport=connections.p2p_transport,
    )


def _gpu_watch(
    given: Surroundings, core: ProviderCore, actor: Actor[events.Event, effects.Effect]
) -> GpuWatch:
    config = given.config
    manners = GpuManners(
        job_users=job_users(config.path("docker"), config.job_user),
        held=lambda: held_gpus(core.live(), core.jury.values()),
        max_celsius=config.max_temperature,
        read=given.read_gpu_use,
    )
    return GpuWatch(given.probe, actor, given.clock, given.board, lambda: core.terms.gpus, manners)


def _terms(given: Surroundings) -> Terms:
    return terms_of(
        given.config,
        given.keys,
        given.executor,
        given.infos,
        given.hardware,
        given.inventory,
        given.laid_out,
    )


def _drain(
    given: Surroundings,
    core: ProviderCore,
    actor: Actor[events.Event, effects.Effect],
    announcements: Announcements,
) -> Drain:
    return Drain(
        core=core,
        actor=actor,
        announcements=announcements,
        clock=given.clock,
        marker=given.config.path("stopping"),
        board=given.board,
        is_on_offer=given.is_on_offer,
        schedule=schedule_of(given.config.schedule),
    )


def _account_watch(
    given: Surroundings,
    core: ProviderCore,
    client: ChainClient,
    contracts: Contracts,
    operator_keys: OperatorKeys,
) -> AccountWatch:
    config = given.config
    return AccountWatch(
        core=core,
        client=client,
        contracts=contracts,
        operator=lambda: operator_keys.current.address,
        board=given.board,
        needs_stake=lambda: (
            given.is_on_offer.is_set() and not is_leaving(config.home) and must_stake(config)
        ),
        clock=given.clock,
    )


def terms_of(
    config: Config,
    keys: ProviderKeys,
    executor: Executor,
    infos: tuple[InfoView, ...],
    hardware: Hardware,
    inventory: GpuInventory,
    laid_out: LaidOut | None = None,
) -> Terms:
    """Raises Unavailable if the coordinators work on different deployments."""
    deployment = deployment_from_info(infos[0])
    for info in infos[1:]:
        if info.chain_id != deployment.chain_id or info.contracts["Stakes"] != deployment.stakes:
            raise Unavailable(
                "all coordinators of one daemon must work on the same deployment; run a second "
                "daemon for the other deployment",
                0,
            )
    host = detect_host(executor.sandbox, config)
    laid_out = laid_out or lay_out(inventory, config)
    for problem in (*laid_out.problems, *filter(None, [laid_out.unreachable])):
        log.warning("GPUs: %s", problem)
    gpus = laid_out.classes if executor.sandbox in SANDBOXES_WITH_GPUS else ()
    if laid_out.classes and not gpus:
        log.warning("GPUs are not offered: %s", needs_engine(executor.sandbox))
    return Terms(
        provider=keys.account,
        domain=deployment.domain(),
        limits=deployment.constants(),
        beacon=deployment.beacon_info(),
        statement_keys={info.coordinator: info.statement_key for info in infos},
        classes=tuple(
            on_terms(with_cuda(item, inventory.cuda_version), config)
            for item in divide(
                config,
                hardware,
                host,
                gpus,
                has_volumes=executor.has_volumes,
                unreachable=laid_out.unreachable,
            )
        ),
        sandbox=executor.sandbox,
        policy=Policy(
            config.price_floor,
            config.images,
            _kinds(config, executor),
            refused_images=config.refused_images,
            declined_keep_seconds=config.declined_keep_seconds,
            jury_price=config.jury_price,
            jury_slots=config.jury_slots,
            jury_cases=config.jury_cases,
            trust=config.trust,
            max_held=config.max_held,
            egress=config.egress,
        ),
        driver=GpuDriver(inventory.driver_version, inventory.cuda_version),
    )


def _kinds(config: Config, executor: Executor) -> tuple[JobKind, ...]:
    kinds = kinds_of(config)
    if any(kind.is_rental for kind in kinds) and (problem := rental_problem(executor)):
        log.warning("rentals are not offered: %s", problem)
        return tuple(kind for kind in kinds if not kind.is_rental)
    return kinds


def _coordinators(given: Surroundings, operator_keys: OperatorKeys) -> dict[Address, Coordinator]:
    return {
        info.coordinator: Coordinator(
            url, info, given.session, given.keys.account, operator_keys, given.clock
        )
        for url, info in zip(given.config.coordinators, given.infos, strict=True)
    }


def _connections(given: Surroundings, terms: Terms, operator_keys: OperatorKeys) -> Connections:
    choice, keys, clock = given.config.transport, given.keys, given.clock
    p2p_transport = make_p2p_transport(
        choice, given.infos, terms.domain, keys, operator_keys, clock
    )
    every = terms.limits.heartbeat_every
    return Connections(
        config=given.config,
        keys=keys,
        operator_keys=operator_keys,
        session=given.session,
        clock=clock,
        retry_max=every,
        p2p_transport=p2p_transport,
    )


def _rented(
    given: Surroundings, core: ProviderCore, coordinators: Mapping[Address, Coordinator]
) -> RentedParts:
    return rented_parts(
        RentedInput(
            config=given.config,
            keys=given.keys,
            executor=given.executor,
            session=given.session,
            urls={address: item.url for address, item in coordinators.items()},
            core=core,
            clock=given.clock,
            read_gpu_use=given.read_gpu_use,
            serve=given.serve_rental,
        )
    )


def _dialers(
    given: Surroundings,
    rented: RentedParts,
    actor: Actor[events.Event, effects.Effect],
    coordinators: dict[Address, Coordinator],
    store: ContentStore,
    attestation: AttestationService,
    connections: Connections,
    verdict_checks: VerdictChecks,
) -> dict[Address, CoordinatorDialer]:
    connections.name_documents(attestation.document)
    domain = deployment_from_info(given.infos[0]).domain()
    dialers: dict[Address, CoordinatorDialer] = {}
    for address, coordinator in coordinators.items():
        frame_handler = FrameHandler(
            actor=actor,
            coordinator=address,
            domain=domain,
            recover=recover,
            may_take_work=partial(
                _may_take_work, connections.operator_keys, attestation, verdict_checks, address
            ),
            store_room=store.available_bytes,
            image_requirement=given.executor.image_requirement,
            attestation=attestation.take,
            rented=rented.frames,
        )
        dialers[address] = connections.dialer(coordinator, frame_handler.handle)
    return dialers


def _verdict_checks(
    given: Surroundings,
    core: ProviderCore,
    actor: Actor[events.Event, effects.Effect],
    coordinators: Mapping[Address, Coordinator],
) -> VerdictChecks:
    return VerdictChecks(
        core=core,
        actor=actor,
        fetches={address: item.receipt for address, item in coordinators.items()},
        folder=given.config.path("false-receipts"),
        faulting=given.config.path("receipts"),
        board=given.board,
        clock=given.clock,
    )


def _may_take_work(
    operator_keys: OperatorKeys,
    attestation: AttestationService,
    verdict_checks: VerdictChecks,
    coordinator: Address,
) -> bool:
    return (
        operator_keys.may_take_work(coordinator)
        and verdict_checks.may_take_work(coordinator)
        and not attestation.is_using_gpus
    )


def _attestation(
    given: Surroundings,
    core: ProviderCore,
    actor: Actor[events.Event, effects.Effect],
    operator_keys: OperatorKeys,
    store: ContentStore,
    coordinators: Mapping[Address, Coordinator],
    dialers: Mapping[Address, CoordinatorDialer],
) -> AttestationService:
    """`dialers` is filled later, before the service runs."""

    async def upload(coordinator: Address, cid: str) -> None:
        await coordinators[coordinator].upload(store, parse(cid), Routes.ATTESTATION_UPLOAD)

    terms, peer_key = core.terms, given.keys.peer_public
    me = Verifier(given.keys.account, terms.domain, terms.limits, terms.beacon, given.clock)
    subject = Subject(
        peer_key=peer_key,
        claims=partial(claims_of_slots, lambda: core.terms, given.inventory, peer_key),
        is_idle=lambda: given.is_on_offer.is_set() and core.is_idle(),
        coordinators=lambda: tuple(
            address for address, item in dialers.items() if item.connected()
        ),
        published=lambda: actor.submit(events.OfferDue()),
        engine_of=engine_of,
        upload=upload,
    )
    return AttestationService(
        me,
        dialers,
        operator_keys.sign,
        document_fetch(store, STORE_OWNER, given.config.is_devnet),
        PublishedRecords(store, given.config.path(RECORDS_FILE), given.clock),
        subject if given.config.attestation is AttestationChoice.L1 else None,
    )


def _job_runner(
    given: Surroundings,
    terms: Terms,
    store: ContentStore,
    gpu_watch: GpuWatch,
    secrets: SecretStore | None,
) -> JobRunner:
    hosts = {slot.pool.id(): slot.host for slot in terms.slots}
    config = given.config
    kubo = Kubo(given.session, config.ipfs_kubo) if config.ipfs_kubo else None
    gateways = OwnerGateways(config.ipfs_gateways, kubo)
    return JobRunner(
        executor=given.executor,
        store=store,
        home=config.home,
        clock=given.clock,
        hosts=hosts,
        check_gpus=gpu_watch.look,
        gateways=gateways,
        secrets=secrets,
    )
