"""Tests who may read which part of a run over real HTTP.

The tests cover every GET route, five kinds of readers, and four stages of the run.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from fuzz.core_world import COORDINATOR, DOMAIN, World
from quorate_content.dag.cid import Cid
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.staging_routes import add_staging_routes
from quorate_coordinator.api.auth import Auth
from quorate_coordinator.api.middleware import before_handlers
from quorate_coordinator.api.operations import OPERATIONS
from quorate_coordinator.api.routes import Api
from quorate_coordinator.api.streams import Streams
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.entities import Decided, Job
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.records.archived_run import archived
from quorate_coordinator.rate_limits import RequestRates
from quorate_coordinator.request_limits import DEVNET_BOUNDS
from quorate_coordinator.storage.archive import MemoryArchive
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.limits import DEVNET, Limits
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Stop
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.clock import VirtualClock
from quorate_runtime.http.error_responses import failures
from quorate_runtime.keys.crypto import KeySigner
from support.http_server import on_loopback
from support.markets.coordinator_stage import token as token_for

READERS = ("nobody", "its client", "another client", "provider in the job", "provider elsewhere")
STAGES = ("running", "provisional", "final", "archived")
OVER = ("final", "archived")
PUBLIC = ("/v1/openapi.json", "/v1/offers", "/v1/cases", "/v1/epochs", "/v1/providers/{address}")
ELSEWHERE = (
    "/v1/info",
    "/v1/observed",
    "/v1/market/history",
    "/v1/health",
    "/v1/ready",
    "/metrics",
    "/v1/operator",
    "/v1/peers",
    "/v1/epochs/{number}/proofs/{address}",
)
"""These routes show nothing of a run: facts of the deployment, and sums that the chain shows."""


@dataclass
class ReadableMarket:
    """The HTTP side of a coordinator over one state, with a token for each reader."""

    url: str
    world: World
    job: Job
    ciphertext: str
    provider: bytes
    tokens: dict[str, dict[str, str]]


class ArchivingWorld(World):
    """A simulated world with an archive."""

    def __init__(self, limits: Limits, owner_count: int) -> None:
        self.files = MemoryArchive()
        super().__init__(limits, owner_count)

    def archive(self) -> None:
        """Writes the waiting runs, then tells the core."""
        for jobs in self.leaving:
            self.files.keep(
                [archived(self.core.state, self.core.state.jobs[job_id]) for job_id in jobs]
            )
        super().archive()


def staged(stage: str) -> tuple[ArchivingWorld, Job, Lease]:
    """Returns a world, its first job at this stage, and the job's first execution.

    Job and execution are as they were before they were archived.
    """
    world = ArchivingWorld(DEVNET, 6)
    assert world.order(0, 1, {}, {}) and world.order(1, 2, {}, {})
    if stage == "running":
        lease = world.leases()[0]
        world.work(lease, 0, 10)
        return world, world.jobs()[0], lease
    turns = 0
    while not isinstance(world.jobs()[0].phase, Decided):
        turns += 1
        assert turns < 20, "no verdict"
        world.market_goes_on([0], 10, 1)
    job = world.jobs()[0]
    assert isinstance(job.phase, Decided) and job.phase.is_final
    if stage == "provisional":
        # As under the adaptive rule, where a verdict without an audit is final only later.
        world.core.state.jobs[job.id] = job = replace(job, phase=replace(job.phase, is_final=False))
    lease = world.core.state.leases[job.leases[0]]
    while stage == "archived" and job.id in world.core.state.jobs:
        turns += 1
        assert turns < 40, "nothing is archived"
        world.market_goes_on([0], 10, 1)
    return world, job, lease


def token(account: Address, key: KeySigner, at: int) -> dict[str, str]:
    return token_for(account, key, COORDINATOR.address, DOMAIN.chain_id, at + 600)


@asynccontextmanager
async def hall(
    stage: str, folder: Path, has_receipts: bool = True
) -> AsyncIterator[ReadableMarket]:
    world, job, lease = staged(stage)
    state, clock, archive = world.core.state, VirtualClock(float(world.at)), world.files
    store = ContentStore(folder / "store", 64 << 20)
    sealed = await store.put(bytes(world.reveal(lease, 0).salt), "x")
    history, outputs, rates = (
        RunReader(state, archive),
        Outputs(state, archive),
        RequestRates(DEVNET_BOUNDS, clock.now),
    )
    outputs.load()
    auth = Auth(world.core.rules, state, clock, rates)

    async def receipt(_: str) -> bytes | None:
        return b"{}" if has_receipts else None

    app = web.Application(middlewares=[failures, before_handlers(rates)])
    nothing: Any = cast("Any", None)
    api = Api(
        world.core, nothing, auth, nothing, DEVNET, clock, receipt, history, lambda: (), nothing
    )
    api.add_routes(app)
    Streams(history, auth, clock, RunLogs(), lambda: False).add_routes(app)

    async def uploader(_: web.Request) -> str:
        raise AssertionError("nobody uploads here")

    async def may_read(asked: web.Request, cid: Cid) -> bool:
        return outputs.may_read(Hash32(cid.digest), auth.account(asked))

    add_staging_routes(app, store, uploader, may_read=may_read)
    over = archive.run(job.id)
    if over:
        known = {item.assignment_hash: item.provider for item in over.leases}
    else:
        known = {item.assignment_hash: item.provider for item in world.leases()}
    mine = {known[assignment_hash] for assignment_hash in job.leases if assignment_hash in known}
    inside = world.owner_of(lease)
    outside = next(owner for owner in world.owners if owner.address not in mine)
    owner, other = (
        (0, 1) if job.submission.order.message.client == world.clients[0].address else (1, 0)
    )
    tokens = {
        "nobody": {},
        "its client": token(world.clients[owner].address, world.clients[owner], world.at),
        "another client": token(world.clients[other].address, world.clients[other], world.at),
        "provider in the job": token(inside.address, inside.key, world.at),
        "provider elsewhere": token(outside.address, outside.key, world.at),
    }
    try:
        async with on_loopback(app) as url:
            yield ReadableMarket(url, world, job, str(sealed.cid), inside.address, tokens)
    finally:
        await store.close()


def expected(path: str, reader: str, stage: str) -> tuple[int, str]:
    """Returns the expected status, and the code of a refusal."""
    is_client = reader == "its client"
    if path in PUBLIC or path == "/v1/runs/{job}":
        return 200, ""
    if path == "/v1/receipts/{job}":
        return (
            (200, "")
            if stage in OVER or (stage == "provisional" and is_client)
            else (409, "too-early")
        )
    if path == "/v1/content/{cid}":
        return (200, "") if reader in ("its client", "provider in the job") else (404, "unknown")
    if reader == "nobody":
        return 401, "bad-signature"
    if path in ("/v1/runs", "/v1/events"):
        return 200, ""  # what belongs to the reader itself
    return (200, "") if is_client else (403, "not-yours")


def place(path: str, found: ReadableMarket) -> str:
    client = found.job.submission.order.message.client
    address = found.provider if "providers" in path else client
    return path.format(
        job="0x" + found.job.id.hex(), address="0x" + address.hex(), cid=found.ciphertext
    )


@pytest.mark.rule("5.95")
@pytest.mark.parametrize("stage", STAGES)
async def test_each_reader_of_each_route_gets_only_what_it_may_see(
    stage: str, tmp_path: Path
) -> None:
    paths = [
        item.path for item in OPERATIONS if item.method == "GET" and item.path not in ELSEWHERE
    ]
    assert len(paths) >= 12 and set(PUBLIC) < set(paths)
    async with hall(stage, tmp_path) as found, aiohttp.ClientSession() as session:
        for path in paths:
            for reader in READERS:
                async with session.get(
                    found.url + place(path, found), headers=found.tokens[reader]
                ) as response:
                    code = "" if response.status == 200 else (await response.json())["code"]
                    assert (response.status, code) == expected(path, reader, stage), (path, reader)


@pytest.mark.rule("5.95")
@pytest.mark.parametrize(
    ("stage", "expects"), [("final", (503, "unavailable")), ("archived", (404, "unknown"))]
)
async def test_a_missing_receipt_is_reported_as_not_yet_stored_or_as_expired(
    stage: str, expects: tuple[int, str], tmp_path: Path
) -> None:
    async with (
        hall(stage, tmp_path, has_receipts=False) as found,
        aiohttp.ClientSession() as session,
        session.get(f"{found.url}/v1/receipts/0x{found.job.id.hex()}") as response,
    ):
        assert (response.status, (await response.json())["code"]) == expects


@pytest.mark.rule("I8", "5.19", "5.23")
@pytest.mark.parametrize("stage", STAGES)
async def test_what_a_run_shows_to_whom(stage: str, tmp_path: Path) -> None:
    async with hall(stage, tmp_path) as found, aiohttp.ClientSession() as session:
        for reader in READERS:
            async with session.get(
                f"{found.url}/v1/runs/0x{found.job.id.hex()}", headers=found.tokens[reader]
            ) as response:
                view, text = await response.json(), await response.text()
            is_client = reader == "its client"
            may_see = stage in OVER or (stage == "provisional" and is_client)
            assert (view["output"] is not None) is (is_client and stage != "running"), reader
            assert (view["receiptCid"] is not None) is may_see
            digests = [item["outputDigest"] for item in view["executions"]]
            assert any(digest is not None for digest in digests) is may_see
            assert "salt" not in text or is_client, "what opens the ciphertext is the client's"
            may_see_money = stage in OVER or is_client
            assert (view["name"] != "", int(view["budget"]) > 0) == (
                may_see_money,
                may_see_money,
            ), reader
            assert may_see_money or (
                int(view["charged"]) == 0
                and all(item["pay"] is None for item in view["executions"])
            ), reader
            if stage == "running":
                blinded = [
                    int(item["provider"], 16) == 0 and item["role"] == "unknown"
                    for item in view["executions"]
                ]
                assert all(blinded), "nobody knows who runs it, and which of them audits"
        for reader in READERS[1:]:
            async with session.get(
                f"{found.url}/v1/runs", headers=found.tokens[reader]
            ) as response:
                ids = [view["jobId"] for view in (await response.json())["runs"]]
            assert ("0x" + found.job.id.hex() in ids) is (reader == "its client")


async def test_only_its_client_sees_a_run_that_was_never_decided(tmp_path: Path) -> None:
    world = ArchivingWorld(DEVNET, 6)
    assert world.order(0, 1, {}, {})
    job_id, client = world.jobs()[0].id, world.clients[0].address
    history = RunReader(world.core.state, world.files)
    assert world.send(
        ev.StopReceived(
            seal(DOMAIN, Stop(job_id, UnixSeconds(world.at)), world.sessions[0].sign),
            world.sessions[0].address,
        )
    )
    for is_archived in (False, True):
        for _ in range(400 * is_archived):
            if job_id not in world.core.state.jobs:
                break
            world.beat(2)
        assert (job_id not in world.core.state.jobs) is is_archived
        mine, others = history.view(job_id, client), history.view(job_id, world.clients[1].address)
        assert (mine.phase, mine.is_final) == ("ended", False) and mine.name and mine.budget
        assert others == history.view(job_id, None) and (
            others.name,
            others.budget,
            others.charged,
        ) == ("", 0, 0)
