"""A provider keeps a copy of its outputs after the verdict, and serves it to nobody."""

from pathlib import Path

import aiohttp
import pytest

from quorate_content.dag.cid import raw_cid
from quorate_content.store.content_store import ContentStore
from quorate_node.executors.job_runner import JobRunner
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.market.content_sources import JobSources
from quorate_node.status.node_gateway import Gateway
from quorate_protocol.limits import DAY
from quorate_protocol.units import ExitStatus, Hash32
from quorate_protocol.values import replace
from support.markets.provider_world import CPUS, make_spec
from support.offers import MACHINE
from support.virtual_clock import VirtualClock

LEASE = "ab" * 32
SALT = Hash32(b"\x05" * 32)


@pytest.mark.rule("4.24", "4.52")
async def test_a_ciphertext_outlives_its_lease_and_is_not_served(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = ContentStore(tmp_path / "store", 1 << 24, now=clock.now)
    executor, hosts = NoopExecutor(tmp_path / "noop", clock), {CPUS.id(): MACHINE}
    bench = JobRunner(executor, store, tmp_path / "home", clock, hosts)
    spec = replace(make_spec(), image=str((await store.put(b"image", "me")).cid), image_bytes=5)
    await bench.fetch(LEASE, spec, JobSources(), 5.0)
    await bench.start(LEASE, spec, CPUS.id())
    output = await bench.collect(LEASE, ExitStatus(0))
    cid = await bench.seal(LEASE, output.digest, SALT)
    await bench.remove(LEASE)
    # neither is asked
    gateway = Gateway(
        store, tmp_path, lambda: None, lambda on: None, lambda price: None, lambda *_: None
    )  # type: ignore[arg-type,return-value]
    url = await gateway.listen("127.0.0.1", 0)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/ipfs/{cid}?format=raw") as response,
    ):
        assert response.status == 404, "the receipt shows the salt that opens it"
    assert raw_cid(await store.block(cid)) == cid
    await gateway.close()
    owned = await store.owned()
    clock.forward(14 * DAY - 1)
    assert owned and await store.owned() == owned
    clock.forward(2)
    assert await store.owned() != owned
    await store.close()
