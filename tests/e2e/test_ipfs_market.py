"""A market whose image and input are in IPFS: nothing is uploaded to the coordinator."""

import asyncio
from pathlib import Path

import pytest

from quorate import Job, Market
from quorate_content.dag.cid import parse
from quorate_content.dag.disk_tree import cid_of_path
from quorate_devnet.config import DevnetConfig, ExecutorChoice
from quorate_devnet.devnet import running
from quorate_node.ops.status import read_status
from support.go_peer import go_peer

PROVIDERS = 3
SECONDS = 60.0


def bytes_of(config: DevnetConfig, kind: str) -> int:
    """The bytes that all providers got from sources of one kind."""
    found = [read_status(config.provider_status(index)) for index in range(PROVIDERS)]
    return sum(
        count
        for status in found
        if status is not None
        for source, count in status.bytes_by_source.items()
        if source.startswith(kind)
    )


@pytest.mark.gopeer
@pytest.mark.parametrize("named_by", ["the owners", "the job"])
async def test_a_job_runs_on_content_that_came_by_bitswap(
    image: Path, tmp_path: Path, named_by: str
) -> None:
    table = b"rows\n" * 1000
    kind = "gateway" if named_by == "the owners" else "job"
    async with go_peer() as holder, go_peer() as gateway:
        await gateway.connect(holder)
        urls = (gateway.started.gateway,)
        image_cid, table_cid = await holder.add(image.read_bytes()), await holder.add(table)
        assert image_cid == str(cid_of_path(image))
        config = DevnetConfig(
            tmp_path / "devnet",
            PROVIDERS,
            clients=1,
            executor=ExecutorChoice.PROCESS,
            ipfs_gateways=urls if named_by == "the owners" else (),
        )
        async with running(config) as devnet, Market(devnet.profiles[0]) as market:
            command = ["python3", "-c", "import shutil, sys; shutil.copy(*sys.argv[1:])"]
            job = Job(
                image=image_cid,
                command=[*command, "/inputs/table", "/outputs/table"],
                inputs={"/inputs/table": table_cid},
                max_price="5",
                max_duration="30s",
                source="ipfs",
                ipfs_gateway=gateway.started.gateway,
                gateways=urls if named_by == "the job" else (),
            )
            plan = await market.plan(job)
            assert plan.upload_bytes == 0 and plan.packed.not_stored == ()
            assert plan.packed.spec.inputs[0].size_bytes == len(table)
            result = await (await market.submit(job, plan)).result(tmp_path / "output")
            assert result.is_success and len(result.providers) == 2
            assert (tmp_path / "output" / "table").read_bytes() == table
            async with asyncio.timeout(SECONDS):  # the status is written every second
                while bytes_of(config, kind) < len(table):
                    await asyncio.sleep(0.05)
            uploads = config.coordinator_home / "store" / "uploads" / "objects"
            async with asyncio.timeout(SECONDS):  # auditors find image and input at the coordinator
                for cid in (image_cid, table_cid):
                    while not list(uploads.glob(f"*/{parse(cid)}")):
                        await asyncio.sleep(0.05)
