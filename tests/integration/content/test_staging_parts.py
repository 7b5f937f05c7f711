"""The parts of the staging store: who may put what into which, what a commit changes, and what runs
keep in use.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from quorate_attestation.proof_document import PROOF_BYTES_MAX
from quorate_content.dag.cid import raw_cid
from quorate_content.dag.content_limits import StoreFull
from quorate_content.store.index import Owner
from quorate_content.transfer.gateway import CAR_TYPE
from quorate_content.transfer.upload_limits import UploadPace, UploadSlot, UploadSlots
from quorate_coordinator.base.rate_limits import RequestRates
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.base.storage_sizes import StagingQuota, ciphertext_most
from quorate_coordinator.core.archived_run import committed_output
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.lease import Accepted, Committed
from quorate_coordinator.market.attestation_service import STORE_OWNER
from quorate_coordinator.storage.archive import Readers
from quorate_coordinator.storage.attestation_uploads import AttestationUploads
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_access import RunAccess
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.staging import UNCOMMITTED, InUse, Staging, owner_name
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Accept
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Seconds,
    UnixSeconds,
)
from quorate_protocol.values import replace as struct_replace
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import DOMAIN, Party
from support.memory_archive import MemoryArchive
from support.offers import MACHINE
from support.virtual_clock import VirtualClock, run_virtual

MIB = 1 << 20
SHARES = StagingQuota(store_bytes=50 * MIB, bytes_per_usd=MIB, floor_bytes=MIB // 2)


@dataclass
class Stand:
    """A market's state with its staging store."""

    market: ArchivingMarket
    claims: Outputs
    staging: Staging
    clock: VirtualClock

    def lock(self, account: Address, money: int) -> None:
        us = self.market.core.rules.coordinator
        note = ev.ChainTabChanged(account, us, Amount(money), Amount(0))
        block = BlockNumber(self.market.core.state.own.block + 1)
        self.market.send(ev.ChainAdvanced(block, ZERO_HASH, UnixSeconds(self.market.at), (note,)))

    def accepted(self, job_id: Hash32) -> Party:
        """Lets a provider accept the job's execution and returns that provider."""
        effect = next(
            effect
            for effect in self.market.pending
            if isinstance(effect.frame, frames.AssignmentSent)
        )
        self.market.pending.remove(effect)
        assert isinstance(effect.frame, frames.AssignmentSent)
        party, hashed = (
            self.market.parties[effect.peer],
            digest(DOMAIN, effect.frame.assignment.message),
        )
        accept = Accept(
            hashed,
            MACHINE.digest(),
            Seconds(0),
            Seconds(1),
            Seconds(0),
            UnixSeconds(self.market.at),
        )
        self.market.send(ev.AcceptReceived(seal(DOMAIN, accept, party.key.sign), party.key.address))
        lease = self.market.core.state.leases[hashed]
        assert lease.job_id == job_id and isinstance(lease.phase, Accepted)
        return party


@asynccontextmanager
async def stand(folder: Path) -> AsyncIterator[Stand]:
    market = ArchivingMarket(*(Party(number) for number in range(4)))
    clock = VirtualClock(float(market.at))
    claims = Outputs(market.core.state, market.archive)
    staging = Staging(
        folder, SHARES, market.core.state, claims, RequestRates(DEVNET_BOUNDS, clock.now), clock, 20
    )
    try:
        yield Stand(market, claims, staging, clock)
    finally:
        await staging.close()


def request(kind: str = "application/octet-stream") -> web.Request:
    return make_mocked_request("PUT", "/v1/content", headers={"Content-Type": kind})


def name(account: Address) -> str:
    return "0x" + account.hex()


async def test_upload_quota_grows_with_deposited_money(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        staging, client = found.staging, found.market.clients[0].address
        found.lock(client, 3_000_000)
        grant = staging.grant(client, request())
        assert (grant.store, grant.owner.quota_bytes, grant.owner.weight) == (
            staging.uploads,
            3 * MIB,
            3_000_000,
        )
        found.lock(client, 1_000_000_000)
        assert staging.grant(client, request()).owner.quota_bytes == SHARES.account, (
            "no account has more than this"
        )
        found.lock(client, 1)
        grant = staging.grant(client, request())
        assert (grant.store, grant.owner.quota_bytes) == (staging.small, SHARES.floor_bytes)
        stranger = Address(b"\x55" * 20)
        with pytest.raises(Refused) as refused:
            staging.grant(stranger, request())
        assert refused.value.code is Code.NOT_REGISTERED and "deposit" in refused.value.detail
    parts = SHARES.outputs, SHARES.small, SHARES.attestations, SHARES.uploads
    assert sum(parts) == SHARES.store_bytes


@pytest.mark.rule("10.25")
async def test_only_providers_with_an_offer_upload_attestations(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        state, limits = found.market.core.state, found.market.core.rules.limits
        kept = AttestationUploads(tmp_path / "kept", 2 * MIB, state, limits, found.clock.now)
        try:
            with pytest.raises(Refused) as refused:
                kept.grant(Address(b"\x55" * 20))
            assert refused.value.code is Code.NO_OFFER
            one, other = list(found.market.parties)[:2]
            grant = kept.grant(one)
            assert grant.until == found.clock.now() + limits.attestation_ttl + (
                limits.attestation_every
            )
            assert grant.owner.quota_bytes == 2 * PROOF_BYTES_MAX, "one CPU and a document"
            state.providers[other] = struct_replace(state.providers[other], is_on_probation=True)
            cheap = kept.grant(other).owner
            assert cheap.weight < grant.owner.weight
            first = await kept.store.put(b"a" * MIB, cheap, grant.until)
            second = await kept.store.put(b"b" * (MIB + MIB // 2), grant.owner, grant.until)
            assert await kept.store.stat(first.cid) is None, "it made room"
            assert await kept.store.stat(second.cid) is not None
        finally:
            await kept.store.close()


async def test_a_provider_may_store_only_what_its_executions_allow(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market, staging = found.market, found.staging
        job_id = market.order(0, 1)
        owner = market.parties[next(iter(market.parties))].owner
        with pytest.raises(Refused) as refused:
            staging.grant(owner, request())
        assert refused.value.code is Code.WRONG_PHASE and "Accept" in refused.value.detail
        party, spec = found.accepted(job_id), market.job(job_id).submission.spec
        grant = staging.grant(party.owner, request())
        assert (
            grant.store is staging.outputs
            and grant.is_awaited
            and grant.owner.name == name(party.owner) + UNCOMMITTED
        )
        assert grant.owner.quota_bytes == grant.bytes_max == ciphertext_most(spec.resources)
        tab = market.core.state.clients[market.clients[0].address].tab
        assert grant.owner.weight == tab.locked, "what its client has counts"
        with pytest.raises(Refused):
            staging.grant(party.owner, request(CAR_TYPE))  # only clients send those
        small = replace(grant.owner, quota_bytes=MIB)
        await grant.store.put(os.urandom(MIB // 2), small)
        with pytest.raises(Refused, match="resources.outputBytes"):
            await grant.store.put(os.urandom(MIB), small)


async def test_outputs_of_low_paying_clients_make_room(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market, staging = found.market, found.staging
        hog, until = Owner("0x" + "66" * 20, None, 1), found.clock.now() + 1e6
        for _ in range(12):
            await staging.outputs.put(os.urandom(2 * MIB), hog, until)
        grant = staging.grant(found.accepted(market.order(0, 1)).owner, request())
        for _ in range(10):
            await grant.store.put(os.urandom(2 * MIB), grant.owner, grant.until)
        held = await staging.outputs.owned()
        assert held[grant.owner.name] >= 20 * MIB and held[hog.name] < 5 * MIB
        with pytest.raises(StoreFull):
            await staging.outputs.put(os.urandom(8 * MIB), hog, until)


async def test_withdrawn_money_gives_no_quota(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        staging, client = found.staging, found.market.clients[0].address
        found.lock(client, 100_000_000)
        grant = staging.grant(client, request())
        for _ in range(10):
            await grant.store.put(os.urandom(MIB - 1000), grant.owner, grant.until)
        poorer = Owner("0x" + "66" * 20, None, 50_000_000)
        await staging.uploads.put(os.urandom(4 * MIB), poorer, grant.until)
        with pytest.raises(StoreFull):
            await staging.uploads.put(os.urandom(12 * MIB), poorer, grant.until)
        found.lock(client, 0)
        found.clock.forward(61)
        await staging.refresh()
        await staging.uploads.put(os.urandom(12 * MIB), poorer, grant.until)
        assert (await staging.uploads.owned())[grant.owner.name] < 10 * MIB


async def test_what_the_coordinator_fetches_for_itself_has_no_weight(tmp_path: Path) -> None:
    """Proofs of attestations lie in the store under a name that is no account's."""
    async with stand(tmp_path) as found:
        staging, until = found.staging, found.clock.now() + 1e6
        for store in (staging.uploads, staging.small, staging.outputs):
            await store.put(os.urandom(1000), Owner(STORE_OWNER, None, 0), until)
            await store.put(os.urandom(1000), Owner("0x" + "66" * 20, None, 7), until)
        found.clock.forward(61)
        await staging.refresh()
        assert set(await staging.outputs.owned()) == {STORE_OWNER, "0x" + "66" * 20}


@pytest.mark.rule("4.24")
async def test_a_committed_output_is_kept_for_its_client(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market, staging, claims = found.market, found.staging, found.claims
        job_id = market.order(0, 1)
        market.until_decided(job_id)
        lease = market.core.state.leases[market.job(job_id).leases[0]]
        data = os.urandom(MIB)
        assert isinstance(market.archive, MemoryArchive)
        ciphertext = Hash32(raw_cid(data).digest)
        await staging.outputs.put(
            data, Owner(name(lease.provider) + UNCOMMITTED), found.clock.now() + 60
        )
        # The scripted provider's ciphertext has a digest and no bytes; this one has bytes, and
        # stands for it.
        market.archive.outputs[ciphertext] = Readers(
            lease.assignment_hash, lease.provider, market.clients[0].address
        )
        claims.unkept[ciphertext] = lease.assignment_hash
        claims.unkept[hash_tuple("under way")] = lease.assignment_hash
        await staging.refresh()
        assert await staging.outputs.owned() == {name(market.clients[0].address): MIB}
        assert list(claims.unkept) == [hash_tuple("under way")], "a claim without a commit waits"
        found.clock.forward(6 * 86_400)
        assert await staging.outputs.gc(0) == 0, "it stays for its week, whatever its provider does"
        found.clock.forward(2 * 86_400)
        assert await staging.outputs.gc(0) == MIB


@pytest.mark.rule("3.16", "4.24")
async def test_a_promised_ciphertext_is_kept_until_its_reveal(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market, staging = found.market, found.staging
        job_id = market.order(0, 1)
        market.deliver()
        lease = market.core.state.leases[market.job(job_id).leases[0]]
        assert isinstance(lease.phase, Committed)
        reveal, until = (
            market.parties[lease.provider].commits[lease.assignment_hash],
            found.clock.now() + 1e6,
        )
        data = (
            reveal.salt + reveal.output_digest
        )  # what the scripted provider's ciphertext is the digest of
        stat = await staging.outputs.put(data, Owner("0x" + "66" * 20, None, 1), until)
        found.claims.claim(Hash32(stat.cid.digest), lease.assignment_hash)
        heavy = Owner("0x" + "77" * 20, None, 1 << 39)

        async def crowd() -> None:
            for _ in range(40):
                await staging.outputs.put(os.urandom(MIB), heavy, until)

        with pytest.raises((StoreFull, Refused)):
            await crowd()
        assert (
            await staging.outputs.resolve(lease.phase.commit.message.encrypted_output) is not None
        )
        market.until_decided(job_id)
        with pytest.raises((StoreFull, Refused)):
            await crowd()
        assert await staging.outputs.resolve(lease.phase.commit.message.encrypted_output) is None, (
            "after that it is its client's matter"
        )


async def test_outputs_committed_before_a_restart_keep_their_owner(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market = found.market
        job_id = market.order(0, 1)
        market.until_decided(job_id)
        outputs = {
            committed_output(market.core.state.leases[digest])
            for digest in market.job(job_id).leases
        }
        again = Outputs(market.core.state, market.archive)
        again.load()
        assert set(again.unkept) == outputs - {None}
        assert all(again.readers(digest) is not None for digest in again.unkept)
        market.until_archived(job_id)
        assert all((again.readers(digest) is not None) is True for digest in again.unkept), (
            "also when its run was archived meanwhile"
        )


@pytest.mark.rule("4.64")
async def test_an_input_uploaded_as_output_stays_readable(tmp_path: Path) -> None:
    """Once such an input became unreadable for other providers, because unowned outputs are
    private.
    """
    async with stand(tmp_path) as found:
        staging, until = found.staging, found.clock.now() + 86_400
        state, client = found.market.core.state, found.market.clients[0].address
        history = RunReader(state, found.market.archive)
        access = RunAccess(state, history, found.claims, (staging.uploads, staging.small))
        own = (await staging.outputs.put(b"what a provider made", "maker/uncommitted", until)).cid
        assert not await access.may_read(own, client)
        for store, data in ((staging.uploads, b"an input"), (staging.small, b"a small one")):
            cid = (await store.put(data, owner_name(client), until)).cid
            await staging.outputs.put(data, "liar/uncommitted", until)
            assert await access.may_read(cid, client)
            assert not await access.may_read(cid, found.market.clients[1].address)
        found.clock.forward(2 * 86_400)
        assert not await access.may_read(cid, client), "the store no longer keeps it for the client"


@pytest.mark.rule("4.61", "4.64")
async def test_an_executor_reads_the_inputs_of_its_client_until_its_commit(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market, staging = found.market, found.staging
        state, clients = market.core.state, market.clients
        history = RunReader(state, market.archive)
        access = RunAccess(state, history, found.claims, (staging.uploads, staging.small))
        job_id = market.order(0, 1)  # its image is b"image"
        party = found.accepted(job_id)
        until = found.clock.now() + 86_400
        cid = (await staging.uploads.put(b"image", owner_name(clients[1].address), until)).cid
        assert not await access.may_read(cid, party.owner), (
            "it is another client's: to name its CID gives nothing"
        )
        await staging.uploads.put(b"image", owner_name(clients[0].address), until)
        assert await access.may_read(cid, party.owner)
        market.until_decided(market.order(0, 2))
        readers = [owner for owner in market.parties if await access.may_read(cid, owner)]
        assert readers == [party.owner], "those of the other job have committed"


async def test_inputs_are_pinned_as_long_as_their_run(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market, staging, begun = found.market, found.staging, found.clock.now()
        client, other = (name(key.address) for key in market.clients)
        for owner in (client, other):
            await staging.uploads.put(b"image", owner, begun + 7 * 86_400)
        await staging.uploads.put(b"other", client, begun + 7 * 86_400)
        found.clock.forward(6 * 86_400)
        market.order(0, 1)
        await staging.refresh()
        found.clock.forward(2 * 86_400)
        assert await staging.uploads.owned() == {client: 64 << 10}, (
            "the image, for the client whose run names it"
        )


@pytest.mark.rule("4.26")
async def test_inputs_of_a_faulted_run_stay_for_two_weeks_and_of_others_past_finality(
    tmp_path: Path,
) -> None:
    """A case may be opened for a week, and its jurors need the inputs after that (PROTOCOL §4)."""
    async with stand(tmp_path) as found:
        market, staging, begun = found.market, found.staging, found.clock.now()
        market.parties[next(iter(market.parties))].lies = True
        client = name(market.clients[0].address)
        await staging.uploads.put(b"image", client, begun + 7 * 86_400)
        number = 1
        while not market.core.state.faults:
            job_id = market.order(0, number)
            market.until_decided(job_id)
            number += 1
        await staging.refresh()
        found.clock.forward(13 * 86_400)
        assert await staging.uploads.owned() == {client: 64 << 10}
        found.clock.forward(2 * 86_400)
        assert await staging.uploads.owned() == {}


@pytest.mark.rule("4.26")
async def test_inputs_of_a_run_that_took_long_stay_for_31_hours_after_it(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market, staging, begun = found.market, found.staging, found.clock.now()
        client = name(market.clients[0].address)
        await staging.uploads.put(b"image", client, begun + 7 * 86_400)
        job_id = market.order(0, 1)
        await staging.refresh()
        found.clock.forward(6.9 * 86_400)
        market.until_archived(job_id)
        await staging.refresh()
        found.clock.forward(30 * 3_600)
        assert await staging.uploads.owned() == {client: 64 << 10}
        found.clock.forward(2 * 3_600)
        assert await staging.uploads.owned() == {}


async def test_inputs_are_in_use_while_a_run_names_them(tmp_path: Path) -> None:
    async with stand(tmp_path) as found:
        market = found.market
        uses = InUse(market.core.state)
        one, two = market.order(0, 1), market.order(0, 2)
        image = raw_cid(b"image").digest
        uses.refresh()
        assert image in uses and raw_cid(b"other").digest not in uses
        market.until_decided(one, two)
        market.until_archived(one)
        uses.refresh()
        assert image in uses or two not in market.core.state.jobs
        market.until_archived(two)
        uses.refresh()
        assert image not in uses and not uses._named and not uses._uses


def test_a_fast_address_is_slowed_down_not_refused(tmp_path: Path) -> None:
    bounds = replace(DEVNET_BOUNDS, upload_bytes_per_second=1.0 * MIB, upload_burst_bytes=4.0 * MIB)

    market, clock = ArchivingMarket(*(Party(number) for number in range(4))), VirtualClock()
    claims = Outputs(market.core.state, market.archive)
    staging = Staging(
        tmp_path, SHARES, market.core.state, claims, RequestRates(bounds, clock.now), clock, 20
    )

    async def main(_: VirtualClock) -> None:
        begun = clock.now()
        one, other = staging._line("192.0.2.1"), staging._line("192.0.2.2")
        for _number in range(4):
            await one(MIB)
        assert clock.now() == begun
        for _number in range(6):
            await one(MIB)
        assert 5.0 <= clock.now() - begun <= 8.0
        then = clock.now()
        await other(MIB)
        assert clock.now() == then, "nobody at another address notices"

    run_virtual(main, clock)
    asyncio.run(staging.close())


async def test_a_heavier_account_replaces_the_lightest_upload() -> None:
    places = UploadSlots(most=3, account_most=2, network_most=2)
    held = [
        places.taken(account, network, weight)
        for account, network, weight in (("a", "1", 5), ("b", "1", 2), ("c", "2", 9))
    ]
    inside: list[UploadSlot] = [place.__enter__() for place in held]
    for account, network in (("d", "1"), ("d", "3")):
        with pytest.raises(Refused) as refused, places.taken(account, network, 1):
            pass
        assert refused.value.code is Code.BUSY
    assert not any(place.is_cut for place in inside), "nobody yields to who is lighter"
    with pytest.raises(Refused), places.taken("d", "3", 3):
        pass
    assert [place.is_cut for place in inside] == [False, True, False]
    with pytest.raises(Refused), places.taken("e", "3", 100):
        pass
    assert [place.is_cut for place in inside] == [False, True, False], "one at a time"

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    with pytest.raises(Refused, match="busy"):
        [piece async for piece in UploadPace().held(pieces(), None, inside[1])]
    held[1].__exit__(None, None, None)
    with places.taken("d", "3", 3):
        pass
