"""Tests that no table to which strangers can write keeps all of thousands of strangers."""

import pytest

from quorate_coordinator.core.jobs.job_queue import JobQueue
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.market_index import IDLE_MAX
from quorate_coordinator.storage import run_reader as histories
from quorate_coordinator.storage.output_access import CLAIMS_MAX, Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.refusals import Refused
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import DOMAIN, Party
from support.memory_archive import MemoryArchive

ACCOUNTS = 3_000
ORDERING = 750  # of these accounts, this many order a job
PER_WAVE = 250


class Crowd(ArchivingMarket):
    """A market to which new, funded clients come in waves."""

    slots = 100

    def __init__(self) -> None:
        super().__init__(*(Party(number) for number in range(4)))
        self.core._check = None  # no check of sums, whose cost grows with the accounts
        self.blocks = 5

    def lock(self, accounts: list[Address], amount: int) -> None:
        """Adds so much to the tabs of these clients, and reports it as the chain does."""
        self.blocks += 1
        notes = tuple(self.escrow.lock(account, amount) for account in accounts)
        self.send(
            ev.ChainAdvanced(
                BlockNumber(self.blocks),
                hash_tuple("block", self.blocks),
                UnixSeconds(self.at),
                notes,
            )
        )

    def stake(self, owner: Address, classes: list[Hash32]) -> None:
        """A block in which an owner opens its first slot in each of these classes."""
        self.blocks += 1
        block = BlockNumber(self.blocks)
        notes = tuple(ev.ChainSlotOpened(item, 0, owner, block) for item in classes)
        self.send(ev.ChainAdvanced(block, hash_tuple("block", block), UnixSeconds(self.at), notes))

    def wave(self, first: int) -> list[Hash32]:
        """Adds one wave of new clients, with one job each."""
        self.clients = [
            KeySigner((1 << 200 | first + number).to_bytes(32, "big")) for number in range(PER_WAVE)
        ]
        self.sessions = self.clients
        self.lock([client.address for client in self.clients], 50_000_000)
        return [self.order(number, 1, budget=Amount(20_000)) for number in range(PER_WAVE)]


def queue_of(market: ArchivingMarket) -> JobQueue:
    return market.core.queue


def test_accounts_without_jobs_leave_the_queue() -> None:
    market, most = Crowd(), 0
    for first in range(0, ORDERING, PER_WAVE):
        jobs = market.wave(first)
        most = max(most, len(queue_of(market)._accounts))
        market.until_archived(*jobs)
        assert (
            not queue_of(market)._accounts
            and not queue_of(market)._lanes
            and not len(queue_of(market)._ready)
        ), first
    assert most >= PER_WAVE // 2, "they were in it while their jobs waited and ran"
    assert len(market.core.state.clients) >= ORDERING and market.archive.count() == ORDERING
    history = market.history
    assert history is not None
    history.refresh()
    assert not history._newest and not history._mine and not history._client_of


def test_a_client_that_deposits_and_leaves_without_a_job_leaves_no_row() -> None:
    market = Crowd()
    before = dict(market.core.state.clients.items())
    strangers = [
        KeySigner((1 << 200 | number).to_bytes(32, "big")).address for number in range(ACCOUNTS)
    ]
    market.lock(strangers, 1_000_000)
    assert len(market.core.state.clients) == len(before) + ACCOUNTS
    market.lock(strangers, -1_000_000)
    assert dict(market.core.state.clients.items()) == before
    job_id = market.order(0, 1)
    market.until_archived(job_id)
    account = market.clients[0].address
    tab = market.core.state.clients[account].tab
    market.lock([account], tab.paid - tab.locked)
    assert market.core.state.clients[account].charged > 0, "clients that owe or owed money stay"


def test_the_coordinator_remembers_few_strangers_that_ask_for_their_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(histories, "ACCOUNTS_REMEMBERED", 100)
    market = ArchivingMarket(*(Party(number) for number in range(4)))
    job_id = market.order(0, 1)
    market.until_archived(job_id)
    history, mine = RunReader(market.core.state, market.archive), market.clients[0].address
    lines = history.lines(mine, 0)
    for number in range(ACCOUNTS):
        assert history.lines(Address(number.to_bytes(20, "big")), 0) == []
        if number % 50 == 0:
            assert history.lines(mine, lines[-1].seq) == []
    assert len(history._newest_over) == 100 and mine in history._newest_over
    assert history.lines(mine, 0) == lines and lines


def test_a_class_that_nobody_offers_any_more_is_forgotten() -> None:
    """A registered provider can name sixteen new classes in each offer. Each known class costs
    tens of kilobytes.
    """
    market = Crowd()
    party = next(iter(market.parties.values()))
    known = market.core.state.providers[party.owner].offer
    assert known is not None
    index = market.core.state.market
    for number in range(200):
        slots = tuple(
            replace(
                known.slots[0], count=Small(1), pool=Pool(f"GPU {place} {number}", "", Small(1))
            )
            for place in range(16)
        )
        market.stake(party.owner, [slot.pool.id() for slot in slots])
        offer = replace(known, seq=Sequence(known.seq + 1 + number), slots=slots)
        market.send(
            ev.OfferReceived(
                OfferEnvelope(offer, seal(DOMAIN, offer.signed(), party.key.sign)),
                party.key.address,
            )
        )
        index.refresh()
    assert (
        len(index.buckets) == len(index.pools) <= IDLE_MAX + 16 + 1 and len(index._left) <= IDLE_MAX
    )
    assert known.slots[0].pool.id() in index.buckets, "the others offer it still"
    back = replace(known, seq=Sequence(known.seq + 1000))
    market.send(
        ev.OfferReceived(
            OfferEnvelope(back, seal(DOMAIN, back.signed(), party.key.sign)), party.key.address
        )
    )
    market.until_decided(market.order(0, 1))


def test_one_execution_claims_few_outputs_and_an_unknown_one_none() -> None:
    """If a provider is cut off before its commit is answered, its claim stays. Such claims must
    not add up to thousands.
    """
    market = ArchivingMarket(*(Party(number) for number in range(4)))
    job_id = market.order(0, 1)
    lease = market.job(job_id).leases[0]
    outputs = Outputs(market.core.state, MemoryArchive())
    for number in range(ACCOUNTS):
        outputs.claim(hash_tuple("unknown", number), hash_tuple("no lease", number))
    assert not outputs.by_digest and not outputs.claimed
    for number in range(CLAIMS_MAX):
        outputs.claim(hash_tuple("mine", number), lease)
        outputs.claim(hash_tuple("mine", number), lease)
    with pytest.raises(Refused, match="other outputs"):
        outputs.claim(hash_tuple("one more"), lease)
    assert len(outputs.by_digest) == CLAIMS_MAX
    outputs.give_up(hash_tuple("mine", 0), lease)
    outputs.claim(hash_tuple("one more"), lease)
    market.until_archived(job_id)
    run = market.archive.run(job_id)
    assert run is not None
    outputs.forget([run])
    assert not outputs.by_digest and not outputs.claimed
