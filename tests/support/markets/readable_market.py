"""The HTTP side of a coordinator over one simulated market, with a token for each kind of reader.

Its first job has a secret in its environment and an input, both of its client. Tests ask every
route as every reader, at every stage of that job.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from fuzz.core_world import COORDINATOR, DOMAIN, World
from quorate_content.dag.cid import Cid, raw_cid
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.gateway import CombinedStores
from quorate_content.transfer.staging_routes import add_staging_routes
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.handlers import add_handlers
from quorate_coordinator.api.middleware import before_handlers
from quorate_coordinator.api.routes import Api
from quorate_coordinator.api.streams import Streams
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.archived_run import archived
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Decided, Job
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.money import receipts
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.staging import owner_name
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.limits import DEVNET, Limits
from quorate_protocol.messages.job_spec import EnvVar, Input, input_root
from quorate_protocol.units import ZERO_HASH, Address, Hash32
from quorate_protocol.values import replace
from quorate_runtime.http.error_responses import failures
from quorate_runtime.keys.crypto import KeySigner
from support.http_server import on_loopback
from support.markets.coordinator_stage import token as token_for
from support.memory_archive import MemoryArchive
from support.virtual_clock import VirtualClock

NOBODY, STRANGER = "nobody", "a stranger"
CLIENT, OTHER_CLIENT = "its client", "another client"
EXECUTOR, OTHER_EXECUTOR, IDLE = "its executor", "executor of another run", "an idle provider"
JUROR = "a juror of its case"
READERS = (NOBODY, STRANGER, CLIENT, OTHER_CLIENT, EXECUTOR, OTHER_EXECUTOR, IDLE, JUROR)
ASSIGNED, RUNNING, PROVISIONAL, FINAL, IN_COURT, ARCHIVED = STAGES = (
    "assigned",
    "running",
    "provisional",
    "final",
    "in court",
    "archived",
)
SECRET, INPUT, LOG_LINE = "hunter2-the-password", b"rows of a private table", "a private log line"
ROUNDS_MAX = 40


@dataclass
class ReadableMarket:
    """The HTTP side of a coordinator over one state."""

    url: str
    world: World
    job: Job
    provider: bytes
    contents: dict[str, Cid]  # "ciphertext", "input", "spec", "receipt" -> its CID
    tokens: dict[str, dict[str, str]]  # reader -> HTTP headers


class ArchivingWorld(World):
    """A simulated world with an archive, which is away until `is_archive_there`."""

    is_archive_there = False

    def __init__(self, limits: Limits, owner_count: int) -> None:
        self.files = MemoryArchive()
        super().__init__(limits, owner_count)

    def archive(self) -> None:
        """Writes the waiting runs, then tells the core."""
        if not self.is_archive_there:
            return
        for jobs in self.leaving:
            self.files.keep(
                [archived(self.core.state, self.core.state.jobs[job_id]) for job_id in jobs]
            )
        super().archive()


@dataclass
class Staged:
    """A world with its first job at some stage. Job, first execution and documents are as they were
    before the job was archived.
    """

    world: ArchivingWorld
    job: Job
    lease: Lease
    documents: dict[Hash32, bytes]
    executors: frozenset[Address]  # of the first job
    others: frozenset[Address]  # executors of the other client's job


def staged(stage: str, *, public: bool = False) -> Staged:
    """Returns a world whose first job is at this stage."""
    world = ArchivingWorld(DEVNET, 8)
    wanted: dict[str, object] = {
        "env": (EnvVar("PASSWORD", SECRET),),
        "inputs": (Input(str(raw_cid(INPUT)), "/inputs/table", len(INPUT)),),
        "public": public,
    }
    root = input_root(cast("Any", _WithInputs(wanted["inputs"])))
    assert world.order(0, 1, {"input_root": root}, wanted) and world.order(1, 2, {}, {})
    if stage == ASSIGNED:
        return _found(world, world.jobs()[0], world.leases()[0])
    if stage == RUNNING:
        world.work(world.leases()[0], 0, 10)
        return _found(world, world.jobs()[0], world.leases()[0])
    for _ in range(ROUNDS_MAX):
        if all(isinstance(job.phase, Decided) for job in world.jobs()[:2]):
            break
        world.market_goes_on([0], 10, 1)
    job = world.jobs()[0]
    assert isinstance(job.phase, Decided) and job.phase.is_final
    if stage == PROVISIONAL:
        # As under the adaptive rule, where a verdict without an audit is final only later.
        world.core.state.jobs[job.id] = job = replace(job, phase=replace(job.phase, is_final=False))
    found = _found(world, job, world.core.state.leases[job.leases[0]])
    if stage == IN_COURT:
        juror = _juror(found)
        mine, other = found.lease.assignment_hash, job.leases[1]
        named = ev.ChainCaseOpened(mine, other, found.lease.provider, ZERO_HASH)
        world.notes(named, ev.ChainJuryDrawn(mine, (juror,)))
    world.is_archive_there = stage == ARCHIVED
    for _ in range(ROUNDS_MAX * (stage == ARCHIVED)):
        if job.id in world.core.state.jobs:
            world.market_goes_on([0], 10, 1)
    assert (job.id in world.core.state.jobs) is (stage != ARCHIVED)
    return found


@dataclass
class _WithInputs:
    inputs: object


def _found(world: ArchivingWorld, job: Job, lease: Lease) -> Staged:
    state = world.core.state
    made = dict(receipts.job_documents(state, world.core.rules, job.id))
    order, spec, terms = job.submission.order.message, job.submission.spec, job.submission.terms
    return Staged(
        world,
        job,
        lease,
        {cid_parts(cid)[1]: write() for cid, write in made.items()}
        | {order.spec_hash: spec.encode(), order.terms_hash: terms.encode()},
        frozenset(state.leases[digest].provider for digest in job.leases),
        frozenset(state.leases[digest].provider for digest in world.jobs()[1].leases),
    )


def _juror(found: Staged) -> Address:
    owners = (owner.address for owner in found.world.owners)
    return [address for address in owners if address not in found.executors | found.others][-1]


def _tokens(found: Staged) -> dict[str, dict[str, str]]:
    world = found.world
    mine = int(found.job.submission.order.message.client != world.clients[0].address)
    by_address = {owner.address: owner for owner in world.owners}
    idle = next(item for item in by_address if item not in found.executors | found.others)
    stranger = KeySigner(b"\x77" * 32)
    elsewhere = sorted(found.others - found.executors) or [idle]
    keys = {
        STRANGER: (stranger.address, stranger),
        CLIENT: (world.clients[mine].address, world.sessions[mine]),
        OTHER_CLIENT: (world.clients[1 - mine].address, world.clients[1 - mine]),
        EXECUTOR: (found.lease.provider, by_address[found.lease.provider].key),
        OTHER_EXECUTOR: (elsewhere[0], by_address[elsewhere[0]].key),
        IDLE: (idle, by_address[idle].key),
        JUROR: (_juror(found), by_address[_juror(found)].key),
    }
    until, chain = world.at + 600, DOMAIN.chain_id
    made = {
        reader: token_for(account, key, COORDINATOR.address, chain, until)
        for reader, (account, key) in keys.items()
    }
    return {NOBODY: {}, **made}


@asynccontextmanager
async def readable_market(
    stage: str, folder: Path, *, public: bool = False, has_receipts: bool = True
) -> AsyncIterator[ReadableMarket]:
    """Serves a market whose first job is at this stage.

    `has_receipts`: its documents are stored.
    """
    found = staged(stage, public=public)
    world, job = found.world, found.job
    state, clock, archive = world.core.state, VirtualClock(float(world.at)), world.files
    sealed_store = ContentStore(folder / "outputs", 64 << 20, now=clock.now)
    uploads = ContentStore(folder / "uploads", 64 << 20, now=clock.now)
    client = job.submission.order.message.client
    sealed = await sealed_store.put(bytes(world.reveal(found.lease, 0).salt), "x")
    given = await uploads.put(INPUT, owner_name(client))
    history, outputs = RunReader(state, archive), Outputs(state, archive)
    outputs.load()
    rates, logs = RequestRates(DEVNET_BOUNDS, clock.now), RunLogs()
    logs.add(client, job.id, found.lease.assignment_hash, LOG_LINE)
    auth = Auth(world.core.rules, state, clock, rates)
    access = RunAccess(state, history, outputs, (uploads,))

    async def receipt(cid: str) -> bytes | None:
        return found.documents.get(cid_parts(cid)[1]) if has_receipts else None

    async def document(cid: Cid) -> bytes | None:
        return found.documents.get(Hash32(cid.digest))

    async def uploader(_: web.Request) -> str:
        raise AssertionError("nobody uploads here")

    async def submit(event: object) -> object:
        assert isinstance(event, ev.LogRead), "what is sent of a log is marked as read before"
        return None

    async def may_read(asked: web.Request, cid: Cid) -> bool:
        return await access.may_read(cid, auth.account(asked))

    app = web.Application(middlewares=[failures, before_handlers(rates)])
    nothing: Any = cast("Any", None)
    api = Api(
        *(world.core, nothing, auth, nothing, clock, receipt, history, access),
        lambda: (),
        *(nothing, nothing, lambda spec: None, nothing, nothing),
    )
    # An open event stream would not end, so the streams of this coordinator end at once.
    add_handlers(app, api, Streams(history, access, auth, clock, logs, lambda: True, submit))
    library = CombinedStores((sealed_store, uploads), document)
    add_staging_routes(app, uploads, uploader, may_read=may_read, library=library)
    spec = raw_cid(job.submission.spec.encode())
    contents = {"ciphertext": sealed.cid, "input": given.cid, "spec": spec}
    contents["terms"] = raw_cid(job.submission.terms.encode())
    if job.receipt_cid is not None:
        digest = cid_parts(job.receipt_cid)[1]
        contents["receipt"] = raw_cid(found.documents[digest])
    try:
        async with on_loopback(app) as url:
            yield ReadableMarket(url, world, job, found.lease.provider, contents, _tokens(found))
    finally:
        await sealed_store.close()
        await uploads.close()
