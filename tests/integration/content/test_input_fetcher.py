"""The coordinator takes inputs that a client named by CID, and did not upload, from IPFS."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from quorate_content.dag.cid import raw_cid
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_coordinator.core.model.entities import Ended
from quorate_coordinator.core.model.events import ContentTaken
from quorate_coordinator.core.model.state import State
from quorate_coordinator.storage.input_fetcher import (
    FETCHES_MAX,
    FETCHES_OF_CLIENT_MAX,
    RETRY_SECONDS,
    TURN_SECONDS,
    Attempt,
    InputFetcher,
    WantedInput,
    due,
    wanted_by,
)
from quorate_coordinator.storage.staging import Staging, owner_name
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Hash32
from quorate_runtime.clock import SystemClock
from support.http_server import on_loopback
from support.markets.archiving_market import ArchivingMarket
from support.markets.staged_market import MIB, gateway, stand

IMAGE = b"image"  # what every order of the scripted market names by its CID
SECONDS = 20.0


def parts(
    market: ArchivingMarket, staging: Staging, sources: tuple[Source, ...]
) -> tuple[State, Staging, tuple[Source, ...], Clock, Callable[[ContentTaken], Awaitable[None]]]:
    async def submit(event: ContentTaken) -> None:
        market.send(event)

    return market.core.state, staging, sources, SystemClock(), submit


async def take_in(fetcher: InputFetcher, market: ArchivingMarket, job_id: Hash32) -> None:
    task = asyncio.create_task(fetcher.run())
    async with asyncio.timeout(SECONDS):
        while market.core.state.jobs[job_id].lacks_content:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.rule("4.26", "4.44")
async def test_a_job_whose_content_nobody_sends_asks_no_owner_and_ends(tmp_path: Path) -> None:
    """Otherwise its client would take owners' run slots for nothing."""
    async with stand(tmp_path / "staging") as (market, staging):
        market.is_archive_down = True  # so that the job stays in the state
        job_id = market.order(0, 1, lacks_content=True, start_within=5)
        fetcher = InputFetcher(*parts(market, staging, ()))
        task = asyncio.create_task(fetcher.run())
        for _ in range(8):
            market.beat()
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        phase = market.core.state.jobs[job_id].phase
        assert isinstance(phase, Ended) and "could not take its image and inputs" in phase.reason
        assert not market.core.state.leases


@pytest.mark.rule("4.26")
async def test_an_input_that_was_not_uploaded_is_kept_for_its_run(tmp_path: Path) -> None:
    """Otherwise it may be gone from IPFS when an auditor or a juror needs it."""
    async with (
        stand(tmp_path / "staging") as (market, staging),
        gateway(tmp_path / "origin", IMAGE) as sources,
    ):
        job_id = market.order(0, 1, lacks_content=True)
        market.beat()
        assert market.core.state.jobs[job_id].lacks_content and not market.core.state.leases
        await take_in(InputFetcher(*parts(market, staging, sources)), market, job_id)
        assert market.core.state.jobs[job_id].leases
        client = "0x" + market.clients[0].address.hex()
        assert await staging.uploads.owned() == {client: 64 << 10}


@pytest.mark.rule("4.26")
async def test_the_gateways_that_a_job_names_are_asked(tmp_path: Path) -> None:
    async with (
        stand(tmp_path / "staging") as (market, staging),
        gateway(tmp_path / "origin", IMAGE) as (source,),
    ):
        named = (source.url.removesuffix("/ipfs"),)
        job_id = market.order(0, 1, gateways=named, lacks_content=True)
        fetcher = InputFetcher(*parts(market, staging, ()), may_be_private=True)
        await take_in(fetcher, market, job_id)
        assert await staging.uploads.resolve(raw_cid(IMAGE).digest) is not None


@pytest.mark.rule("4.64")
async def test_a_client_gets_no_access_to_an_upload_by_naming_its_cid(tmp_path: Path) -> None:
    """A source must show the root block. A source that says that it has it is not enough."""
    held = web.Application()

    async def claims_to_have_it(_: web.Request) -> web.Response:
        return web.Response(body=b"not the block")

    held.router.add_get("/ipfs/{cid}", claims_to_have_it, allow_head=True)
    async with (
        stand(tmp_path / "staging") as (market, staging),
        gateway(tmp_path / "origin", IMAGE) as honest,
        on_loopback(held) as url,
    ):
        client, owner = market.clients[0].address, owner_name(market.clients[1].address)
        cid = (await staging.uploads.put(IMAGE, owner)).cid
        for sources in ((), (Source(f"{url}/ipfs"),)):
            with pytest.raises(Unavailable, match="root block"):
                await staging.take_in(cid, client, MIB, sources, SECONDS)
            assert not await staging.uploads.is_pinned_for(cid, owner_name(client))
        await staging.take_in(cid, client, MIB, honest, SECONDS)
        assert await staging.uploads.is_pinned_for(cid, owner_name(client))


def test_one_client_leaves_room_for_the_inputs_of_others() -> None:
    greedy, other = Address(b"\1" * 20), Address(b"\2" * 20)

    def attempt(content: bytes, client: Address, at: float = 0.0) -> Attempt:
        return Attempt(WantedInput(ZERO_HASH, raw_cid(content), MIB, client, 60.0), at)

    many = [attempt(bytes([n]), greedy) for n in range(9)]
    few = [attempt(b"x", other)]
    assert due(many + few, [], 1.0) == many[:2] + few
    assert due(many + few, many[:2], 1.0) == few
    later = attempt(b"y", other, 2.0)
    assert due([later], [], 1.0) == [] and due([later], [], 2.0) == [later]


@pytest.mark.rule("4.26")
def test_slow_gateways_of_many_clients_delay_another_by_one_turn() -> None:
    """Otherwise eight accounts would hold all places until their jobs end, and pay nothing."""

    def attempt(number: int, at: float) -> Attempt:
        client = Address(bytes([number // FETCHES_OF_CLIENT_MAX]) * 20)
        return Attempt(WantedInput(ZERO_HASH, raw_cid(bytes([number])), MIB, client, 600.0), at)

    slow, honest = [attempt(number, 0.0) for number in range(FETCHES_MAX)], attempt(99, 5.0)
    every = [*slow, honest]
    assert due(every, [], 1.0) == slow and due(every, slow, 29.0) == []
    for each in slow:
        each.try_again(1.0, 1.0 + TURN_SECONDS)
    begun = due(every, [], 1.0 + TURN_SECONDS)
    assert begun[0] is honest and begun[1:] == slow[:-1]
    honest.try_again(31.0, 33.0)
    assert honest.at == 33.0 + RETRY_SECONDS


async def test_an_input_has_at_most_the_bytes_that_its_job_declares(tmp_path: Path) -> None:
    async with (
        stand(tmp_path / "staging") as (market, staging),
        gateway(tmp_path / "origin", bytes(2 * MIB)) as sources,
    ):
        client, store = market.clients[0].address, staging.uploads
        other = ContentStore(tmp_path / "other", 64 * MIB)
        cid = (await other.put(bytes(2 * MIB), "a")).cid
        await other.close()
        with pytest.raises(Refused) as refused:
            await staging.take_in(cid, client, MIB, sources, SECONDS)
        assert refused.value.code is Code.OVERSIZE
        with pytest.raises(Unavailable, match="gateway: "):
            await staging.take_in(raw_cid(b"nobody has it"), client, MIB, sources, SECONDS)
        with pytest.raises(Refused, match="deposit more"):
            await staging.take_in(cid, Address(b"\x55" * 20), 2 * MIB, sources, SECONDS)
        await staging.take_in(cid, client, 2 * MIB, sources, SECONDS)
        assert await store.stat(cid) is not None


async def test_a_run_names_its_image_and_its_inputs(tmp_path: Path) -> None:
    async with stand(tmp_path / "staging") as (market, _):
        job = market.core.state.jobs[market.order(0, 1)]
        (wanted,) = wanted_by(job)
        assert (wanted.cid, wanted.client) == (raw_cid(IMAGE), market.clients[0].address)
        assert wanted.bytes_max == job.submission.spec.image_bytes
