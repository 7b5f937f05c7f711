"""The provider daemon against a scripted coordinator, with real sockets, chain and contracts."""

import asyncio
import json
import time

import aiohttp
import pytest
from typer.testing import CliRunner

from quorate.trust.coordinator_identity import identity_of
from quorate.trust.offer_verification import check_offer, check_on_chain
from quorate_contracts.calls import ask
from quorate_contracts.encodings import OPEN_BLOCK
from quorate_node.base import settings as settings_file
from quorate_node.base.config import Settings
from quorate_node.cli import app as cli
from quorate_node.cli import options
from quorate_node.core.phases import Committed, Done, Fetching, Lapsed, Receipted, Revealed, Running
from quorate_node.daemon import ProviderDaemon
from quorate_node.owner.registration import network_of
from quorate_node.status.node_gateway import TOKEN_HEADER, control_token
from quorate_protocol.codec import canonical
from quorate_protocol.codec.cids import RAW, cid_text, document_cid
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames, offer
from quorate_protocol.messages.commitment import check_opens
from quorate_protocol.messages.envelope import signer
from quorate_protocol.messages.signed import Commit, Stop, Verdict
from quorate_protocol.messages.views import InfoView, OfferView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, DeclineReason, Hash32, Outcome, Sequence, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_coordinator import (
    COORDINATOR,
    JOB,
    OPERATOR,
    OWNER,
    SPEC,
    Stage,
    in_phase,
    running,
    until,
)
from support.messages import blank


@pytest.mark.rule("3.43", "3.49")
async def test_job_runs_from_offer_to_verdict(market: Stage) -> None:
    coordinator = market.coordinator
    async with running(market, market.daemon(coordinator.url)) as daemon:
        assert daemon.core is not None
        pool = daemon.core.terms.slots[0].pool.id()
        slot = await ask(market.client, market.contracts.stakes.slot(pool, 0))
        assert (slot.owner, slot.operator_key, slot.until_block) == (
            OWNER.address,
            OPERATOR.address,
            OPEN_BLOCK,
        )
        advert = await coordinator.first(frames.OfferSent)
        domain, now = coordinator.deployment.domain(), UnixSeconds(int(time.time()))
        assert (
            offer.validate(advert.offer, domain, recover, now, DEVNET.offer_ttl) == OPERATOR.address
        )
        await gateway_serves_the_inventory(daemon, advert.offer.offer)
        await chain_tells_whose_offers_are_true(market, advert.offer)
        beat = await coordinator.first(frames.HeartbeatSent)
        assert [item.free for item in beat.heartbeat.message.free_slots] == [1]
        lease = await market.assign(daemon)
        accept = await coordinator.first(frames.AcceptSent)
        assert accept.accept.message.assignment_hash == lease
        assert signer(domain, accept.accept, recover) == OPERATOR.address
        sent = await coordinator.first(frames.CommitSent)
        commit = sent.commit.message
        assert signer(domain, sent.commit, recover) == OPERATOR.address
        with pytest.raises(Refused) as stale:
            await coordinator.send(coordinator.commit_set(commit, age=30))
        assert stale.value.code is Code.STALE and not coordinator.got(frames.RevealSent)
        await coordinator.send(coordinator.receipt(commit))
        await coordinator.send(coordinator.commit_set(commit))
        reveal = await coordinator.first(frames.RevealSent)
        assert check_opens(commit, reveal.reveal)
        await coordinator.opens(commit, reveal)
        await finish(market, daemon, lease)


@pytest.mark.rule("3.56")
async def test_provider_behind_a_router_registers_the_network_that_is_observed(
    market: Stage,
) -> None:
    market.coordinator.observed = "203.0.113.7"
    async with running(market, market.daemon(market.coordinator.url)):
        network = await ask(market.client, market.contracts.stakes.network_of(OWNER.address))
        assert network == network_of("http://203.0.113.200:1")


async def gateway_serves_the_inventory(daemon: ProviderDaemon, offered: offer.Offer) -> None:
    """The document that the offer names is a raw block of the provider's gateway (rule 3.43)."""
    cid = cid_text(RAW, offered.inventory)
    headers = {"Accept": "application/vnd.ipld.raw"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{daemon.url}/ipfs/{cid}", headers=headers) as answer,
    ):
        document = canonical.decode(offer.Hardware, await answer.read())
    slot = offered.slots[0]
    assert slot.cpu_millis <= document.cores * 1000 and slot.memory_bytes < document.memory_bytes


async def chain_tells_whose_offers_are_true(market: Stage, sent: offer.OfferEnvelope) -> None:
    """A client finds the offer that a coordinator changed by asking the chain (rule 3.49)."""
    now = UnixSeconds(int(time.time()))
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{market.coordinator.url}/v1/info") as answer,
    ):
        info = canonical.decode(InfoView, await answer.read())
    identity = identity_of(info)
    true = OfferView(sent.offer, sent.signature.sig, 1, 0, 0, True)
    changed = replace(true, offer=replace(sent.offer, region="elsewhere"))
    rows = [check_offer(view, identity, now) for view in (true, changed)]
    assert rows[0].signer == OPERATOR.address != rows[1].signer
    first, second = await check_on_chain(rows, identity, info.chain_url)
    assert (first.problem, first.is_chain_checked) == ("", True)
    assert second.problem == "no valid operator key of the provider signed it"


async def finish(market: Stage, daemon: ProviderDaemon, lease: Hash32) -> None:
    """Sends verdict and voucher, and checks what the owner sees."""
    coordinator, now = market.coordinator, UnixSeconds(int(time.time()))
    verdict = blank(
        Verdict, job_id=JOB, seq=Sequence(1), outcome=Outcome.ACCEPTED, group=(lease,), time=now
    )
    await coordinator.send(frames.VerdictSent(lease, coordinator.seal(verdict)))
    await coordinator.send(market.voucher(Amount(77)))
    await in_phase(daemon, lease, Done)
    headers = {TOKEN_HEADER: control_token(market.home)}
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{daemon.url}/v1/status") as response:
            assert response.status == 403, "status is the owner's"
        async with session.get(f"{daemon.url}/v1/status", headers=headers) as response:
            view = json.loads(await response.read())
        assert view["earnings"][0]["vouched"] == 77 and view["freeSlots"] == [1]
        async with session.post(f"{daemon.url}/v1/drain", headers=headers) as response:
            assert response.status == 200
    lease = await market.assign(daemon, 2)
    declined = await coordinator.first(frames.DeclineSent)
    assert declined.decline.message.reason is DeclineReason.DRAINING


@pytest.mark.rule("3.52")
async def test_a_coordinator_that_is_away_keeps_a_provider_from_no_other(market: Stage) -> None:
    daemon = market.daemon(market.coordinator.url)
    urls = ("http://127.0.0.1:1", market.coordinator.url)
    daemon.config = replace(daemon.config, coordinators=urls)
    async with running(market, daemon):
        assert (await market.coordinator.first(frames.OfferSent)).offer.offer.slots
        [problem] = [item for item in daemon.board.problems() if item.name == "unknown coordinator"]
        assert "http://127.0.0.1:1" in problem.text and "start again" in problem.text


async def test_a_new_price_is_offered_while_the_provider_is_up(market: Stage) -> None:
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        await market.coordinator.first(frames.OfferSent)
        headers = {TOKEN_HEADER: control_token(market.home)}
        url = f"{daemon.url}/v1/price?microUsd="
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}250000") as response:
                assert response.status == 403, "the price is the owner's"
            for wrong in ("", "-1", "0", "1.5", "9" * 14):
                async with session.post(url + wrong, headers=headers) as response:
                    assert response.status in (400, 422)
            async with session.post(f"{url}250000", headers=headers) as response:
                assert response.status == 200
        sent = await until(lambda: market.coordinator.got(frames.OfferSent)[1:] or None, 10)
        assert sent[0].offer.offer.slots[0].on_demand == 250_000
        settings_file.write(market.home, Settings((market.coordinator.url,)))
        await until((market.home / "status.json").exists, 10)
        home = ["--home", str(market.home), "--json"]
        made = await asyncio.to_thread(CliRunner().invoke, cli.app, ["price", "0.3", *home])
        assert made.exit_code == 0 and json.loads(made.stdout) == {
            "priceMicroUsd": 300_000,
            "isOffered": True,
            "isKept": True,
        }
        refused = await asyncio.to_thread(CliRunner().invoke, cli.app, ["price", "0", *home])
        assert refused.exit_code == options.EXIT_REFUSED
        assert "name one above 0" in json.loads(refused.stdout)["detail"]


@pytest.mark.rule("4.12")
async def test_same_commit_is_sent_until_a_receipt_comes(market: Stage) -> None:
    coordinator = market.coordinator
    async with running(market, market.daemon(coordinator.url)) as daemon:
        lease = await market.assign(daemon)
        sent = await until(lambda: coordinator.got(frames.CommitSent)[2:] or None, 30)
        assert all(item == coordinator.got(frames.CommitSent)[0] for item in sent)
        await coordinator.send(coordinator.receipt(sent[0].commit.message))
        await in_phase(daemon, lease, Receipted)


@pytest.mark.rule("I6")
async def test_restarted_daemon_attaches_to_its_running_task(market: Stage) -> None:
    """It is killed while the task runs, and again before its Commit is receipted: one run, one
    Commit.
    """
    coordinator = market.coordinator
    async with running(market, market.daemon(coordinator.url, 600_000)) as daemon:
        lease = await market.assign(daemon)
        await in_phase(daemon, lease, Running)
    path = market.home / "noop" / lease.hex() / "record.json"
    record = path.read_text()
    async with running(market, market.daemon(coordinator.url, 600_000)) as daemon:
        assert path.read_text() == record, "the same container"
        path.write_text(json.dumps(json.loads(record) | {"wall_ms": 1000, "ends": 0.0}))
        first = (await coordinator.first(frames.CommitSent)).commit
        await in_phase(daemon, lease, Committed)
    async with running(market, market.daemon(coordinator.url)) as daemon:
        count = len(coordinator.got(frames.CommitSent))
        again: list[frames.CommitSent] = await until(
            lambda: coordinator.got(frames.CommitSent)[count:] or None, 30
        )
        assert again[0].commit == first
        await coordinator.send(coordinator.commit_set(first.message))
        await in_phase(daemon, lease, Revealed)
        assert len(coordinator.got(frames.AcceptSent)) == 1
        assert (await coordinator.first(frames.RevealSent)).reveal.assignment_hash == lease


async def test_lost_container_lapses_and_strays_are_removed(market: Stage) -> None:
    coordinator = market.coordinator
    async with running(market, market.daemon(coordinator.url, 60_000)) as daemon:
        lease = await market.assign(daemon)
        await in_phase(daemon, lease, Running)
    folder = market.home / "noop"
    (folder / lease.hex()).rename(folder / ("ee" * 32))
    async with running(market, market.daemon(coordinator.url, 60_000)) as daemon:
        await in_phase(daemon, lease, Lapsed)
        assert not (folder / ("ee" * 32)).exists() and not coordinator.got(frames.CommitSent)


async def test_stop_ends_a_running_task_and_commits_it(market: Stage) -> None:
    coordinator = market.coordinator
    async with running(market, market.daemon(coordinator.url, 60_000)) as daemon:
        lease = await market.assign(daemon)
        await in_phase(daemon, lease, Running)
        stop = coordinator.seal(Stop(JOB, UnixSeconds(int(time.time()))))
        await coordinator.send(frames.StopSent(lease, stop))
        commit: Commit = (await coordinator.first(frames.CommitSent)).commit.message
        assert commit.usage_ms < 30_000
        await coordinator.send(coordinator.commit_set(commit))
        assert (await coordinator.first(frames.RevealSent)).reveal.exit_status == 256 + 15


async def test_lease_lapses_when_the_coordinator_refuses_its_message_for_good(
    market: Stage,
) -> None:
    coordinator = market.coordinator
    coordinator.refuse[frames.AcceptSent] = Code.TOO_LATE
    async with running(market, market.daemon(coordinator.url)) as daemon:
        first = await market.assign(daemon)
        await in_phase(daemon, first, Lapsed)
        coordinator.refuse = {frames.CommitSent: Code.TOO_LATE}
        second = await market.assign(daemon, 2)
        await in_phase(daemon, second, Lapsed)
        assert daemon.core is not None and daemon.core.executions[second].commit() is not None, (
            "kept as evidence"
        )


async def test_content_that_comes_late_is_fetched_again_until_commit_by(market: Stage) -> None:
    """A failed fetch is never a result of the job."""
    coordinator, archive = (
        market.coordinator,
        b"an image archive, as far as the noop executor looks",
    )
    spec = replace(SPEC, image=document_cid(archive), image_bytes=len(archive))
    async with running(market, market.daemon(coordinator.url)) as daemon:
        lease = await market.assign(daemon, 1, spec)
        await in_phase(daemon, lease, Fetching)
        assert not coordinator.got(frames.CommitSent)
        await coordinator.store.put(archive, "client")
        assert (
            await coordinator.first(frames.CommitSent, 45)
        ).commit.message.assignment_hash == lease


async def test_stopped_job_that_has_not_started_is_declined(market: Stage) -> None:
    """A lost container is given up in the same way."""
    coordinator = market.coordinator
    spec = replace(SPEC, image=document_cid(b"an archive that nobody has"), image_bytes=26)
    async with running(market, market.daemon(coordinator.url, 60_000)) as daemon:
        lease = await market.assign(daemon, 1, spec)
        await in_phase(daemon, lease, Fetching)
        await coordinator.send(
            frames.StopSent(lease, coordinator.seal(Stop(JOB, UnixSeconds(int(time.time())))))
        )
        await in_phase(daemon, lease, Lapsed)
        decline = (await coordinator.first(frames.DeclineSent)).decline.message
        assert (decline.assignment_hash, decline.reason, decline.start_by) == (
            lease,
            DeclineReason.GAVE_UP,
            0,
        )
        lost = await market.assign(daemon, 2)
        await in_phase(daemon, lost, Running)
    (market.home / "noop" / lost.hex()).rename(market.home / "noop" / ("ee" * 32))
    async with running(market, market.daemon(coordinator.url, 60_000)) as daemon:
        await in_phase(daemon, lost, Lapsed)
        await until(
            lambda: next(
                (
                    one
                    for one in coordinator.got(frames.DeclineSent)
                    if one.decline.message.assignment_hash == lost
                ),
                None,
            )
        )


@pytest.mark.rule("6.70", "6.87", "6.88")
@pytest.mark.parametrize("clock", ["close", "rotate_key"])
async def test_a_voucher_is_redeemed_and_drawn_when_a_clock_runs_against_it(
    market: Stage, clock: str
) -> None:
    """Its tab closes, or its key was replaced. The coordinator gets it back at the next
    connection.
    """
    contracts, coordinator = market.contracts, market.coordinator
    async with market.fast():
        await market.open_tab("tab", Amount(1000))
    async with running(market, market.daemon(coordinator.url)) as daemon:
        before = await ask(market.client, contracts.token.balance_of(OWNER.address))
        assert daemon.core is not None
        core = daemon.core
        await until(lambda: core.debt(COORDINATOR.address).tab.locked or None)
        sent = market.voucher(Amount(70))
        await coordinator.send(sent)
        soon = DEVNET.redeem_every - 5.0
        closing = contracts.escrow.close(OWNER.address)
        rotation = contracts.stakes.rotate_key(OPERATOR.address)
        async with market.fast():
            await market.send(COORDINATOR, clock, closing if clock == "close" else rotation)
            await until(lambda: core.debt(COORDINATOR.address).tab.paid or None, soon)
            while await ask(market.client, contracts.token.balance_of(OWNER.address)) == before:
                await asyncio.sleep(0.05)
        assert await ask(market.client, contracts.token.balance_of(OWNER.address)) == before + 70
        assert bool(core.debt(COORDINATOR.address).tab.closes_at) is (clock == "close")
    coordinator.frames.clear()
    async with running(market, market.daemon(coordinator.url)):
        assert await coordinator.first(frames.VoucherSent) == sent
