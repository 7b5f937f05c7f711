"""One market that nobody disturbs: its content is in IPFS, and its CPUs are challenged.

It starts once for all tests. CPUs are attested under their true name. Without the Go peer it has no
gateway, and the tests that need one are skipped.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quorate import Job, Market
from quorate.images import build_python_image
from quorate.trust.attestation_checks import deployment_check
from quorate_content.dag.cid import parse
from quorate_content.dag.disk_tree import cid_of_path
from quorate_devnet.market.config import MARKER, DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from quorate_node.base import settings as provider_settings
from quorate_node.base.config import AttestationChoice, Settings
from quorate_node.status.status import read_status
from quorate_protocol.units import UnixSeconds
from quorate_protocol.values import replace as struct_replace
from quorate_runtime.clock import SystemClock
from quorate_runtime.p2p import available
from support.go_peer import GoPeer, go_peer
from support.requirements import missing

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROVIDERS = 4
SECONDS = 120.0  # a period of 15 s, and the challenges on a busy machine
QUORATE = str(Path(sys.executable).with_name("quorate"))
COPY = ["python3", "-c", "import shutil, sys; shutil.copy(*sys.argv[1:])"]


@dataclass(frozen=True)
class Network:
    """One peer that holds content, and a gateway that gets it from there by bitswap."""

    holder: GoPeer
    gateway: GoPeer

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self.gateway.started.gateway


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    async with go_peer() as holder, go_peer() as gateway:
        await gateway.connect(holder)
        yield Network(holder, gateway)


@dataclass(frozen=True)
class World:
    """The market, its client, and the network of the gateway that its owners use, if any.

    `quorate offers` runs from the moment on when all owners are attested. By gossip it listens for
    half a minute, in which the other tests run.
    """

    devnet: Devnet
    market: Market
    owners: Network | None
    listed: asyncio.Task[list[tuple[list[dict[str, Any]], str]]]  # what `offers` prints, each way

    def bytes_of(self, kind: str) -> int:
        """The bytes that all providers got from sources of one kind."""
        found = [read_status(self.devnet.config.provider_status(it)) for it in range(PROVIDERS)]
        return sum(
            count
            for status in found
            if status is not None
            for source, count in status.bytes_by_source.items()
            if source.startswith(kind)
        )


def offers(folder: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of `quorate offers`, and what it says beside them."""
    command = [QUORATE, "--devnet", str(folder / MARKER), "offers", "--json", "--verify", *words]
    limit = time.monotonic() + SECONDS
    while True:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        # The coordinator may still wait for the block in which it announces its address.
        if "no coordinator has announced" not in done.stderr or time.monotonic() > limit:
            break
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["offers"]
    return rows, done.stderr


async def listed_once_attested(
    devnet: Devnet, market: Market
) -> list[tuple[list[dict[str, Any]], str]]:
    """The offers from the chain and by gossip, where libp2p is installed: no coordinator is asked
    for them.
    """
    async with asyncio.timeout(SECONDS):
        while [row.attestation_levels for row in await market.offers()] != [(1,)] * PROVIDERS:
            await asyncio.sleep(0.1)
    ways = [("--on-chain",), ("--p2p",)] if not available() else [("--on-chain",)]
    folder = devnet.config.folder
    return await asyncio.gather(*[asyncio.to_thread(offers, folder, *words) for words in ways])


def put_behind_nat(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Nobody reaches the gateway of this provider: its offer names a closed port."""
    write = provider_settings.write

    def write_unreachable(folder: Path, settings: Settings) -> None:
        if folder == home:
            settings = struct_replace(settings, public_url=f"http://{settings.listen_host}:9")
        write(folder, settings)

    patch.setattr(provider_settings, "write", write_unreachable)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        has_peers = missing("gopeer") is None
        owners = await stack.enter_async_context(network()) if has_peers else None
        config = DevnetConfig(
            tmp_path_factory.mktemp("standing") / "devnet",
            PROVIDERS,
            clients=1,
            executor=ExecutorChoice.PROCESS,
            ipfs_gateways=(owners.url,) if owners is not None else (),
            attestation=AttestationChoice.L1,
        )
        with pytest.MonkeyPatch.context() as patch:
            put_behind_nat(patch, config.provider_home(0))
            devnet = await stack.enter_async_context(running(config))
        market = await stack.enter_async_context(Market(devnet.profiles[0]))
        listed = asyncio.create_task(listed_once_attested(devnet, market))
        yield World(devnet, market, owners, listed)


@pytest.mark.gopeer
@pytest.mark.parametrize("named_by", ["the owners", "the job"])
async def test_a_job_runs_on_content_that_came_by_bitswap(
    world: World, image: Path, tmp_path: Path, named_by: str
) -> None:
    """Nothing is uploaded to the coordinator. The owners' gateway does not have what the job's
    gateway has.
    """
    async with AsyncExitStack() as stack:
        if named_by == "the owners":
            assert world.owners is not None
            ipfs, kind, file = world.owners, "gateway", image
        else:
            ipfs, kind = await stack.enter_async_context(network()), "job"
            file = build_python_image(tmp_path / "other.tar", ("msgspec",)).path
        table = named_by.encode() * 1000
        image_cid, table_cid = (
            await ipfs.holder.add(file.read_bytes()),
            await ipfs.holder.add(table),
        )
        assert image_cid == str(cid_of_path(file))
        job = Job(
            image=image_cid,
            command=[*COPY, "/inputs/table", "/outputs/table"],
            inputs={"/inputs/table": table_cid},
            max_price="5",
            max_duration="30s",
            source="ipfs",
            ipfs_gateway=ipfs.url,
            gateways=(ipfs.url,) if named_by == "the job" else (),
        )
        plan = await world.market.plan(job)
        assert plan.upload_bytes == 0 and plan.packed.not_stored == ()
        assert plan.packed.spec.inputs[0].size_bytes == len(table)
        result = await (await world.market.submit(job, plan)).result(tmp_path / "output")
        assert result.is_success and len(result.providers) == 2
        assert (tmp_path / "output" / "table").read_bytes() == table
        async with asyncio.timeout(SECONDS):  # the status is written every second
            while world.bytes_of(kind) < file.stat().st_size + len(table):
                await asyncio.sleep(0.05)
        uploads = world.devnet.config.coordinator_home / "store" / "uploads" / "objects"
        async with asyncio.timeout(SECONDS):  # auditors find image and input at the coordinator
            for cid in (image_cid, table_cid):
                while not list(uploads.glob(f"*/{parse(cid)}")):
                    await asyncio.sleep(0.05)


@pytest.mark.rule("10.12", "10.18", "10.20", "10.21", "10.25")
async def test_cpus_are_attested_and_anybody_can_check_it(
    world: World, image: Path, tmp_path: Path
) -> None:
    """Nobody reaches the gateway of one of them."""
    devnet, market = world.devnet, world.market
    command = ["python3", "-c", ""]
    job = Job(image=image, command=command, max_price="5", max_duration="30s", attestation="L1")
    for rows, told in await world.listed:
        found = [slot for row in rows for slot in row["check"]["slots"]]
        assert [(slot["level"], slot["verified"]) for slot in found] == [(1, True)] * PROVIDERS
        # A busy machine may answer too late to verify for another.
        assert all(slot["verifiers"] >= 1 and slot["gpus"] == 1 for slot in found), found
        assert "the verifiers' word" in told
        assert all(slot["verifiersWord"]["elapsedMs"] > 0 for slot in found)
    assert all(row["offer"]["slots"][0]["pool"]["gpu"] == "" for row in rows), "no GPU is claimed"
    view = (await market.plan(replace(job, resources={"cpu": 512}))).view
    assert not view.offers and "no live offer has the resources" in view.nearest
    now = UnixSeconds(int(SystemClock().now()))
    async with deployment_check(devnet.deployment, now, devnet.chain_url) as check:
        slots = [await check.check(row.offer) for row in await market.offers()]
    assert [slot.is_verified for (slot,) in slots] == [True] * PROVIDERS, "by the chain alone"
    result = await (await market.submit(job)).result(tmp_path / "output")
    assert result.is_success and len(result.providers) == 2
