"""Attacks that fill the coordinator's memory and disk with orders that nobody pays for."""

from pathlib import Path

import pytest

from quorate_coordinator.base.rate_limits import ORDER_TOKEN_PRICE, RequestRates
from quorate_coordinator.base.request_limits import MAINNET_BOUNDS
from quorate_coordinator.base.storage_sizes import Keeping
from quorate_coordinator.core.jobs import orders
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import ArchiveRuns, StoreSpec
from quorate_coordinator.core.model.entities import Ended
from quorate_coordinator.core.model.tables import LIVE_BYTES
from quorate_coordinator.storage.archive import FileArchive
from quorate_coordinator.storage.document_file import SPARE_BYTES, DocumentFile
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_coordinator.storage.stored_effects import ArchiveWriter, JobDocuments
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import Input, JobSpec
from quorate_protocol.messages.signed import Accept, Assignment, Decline
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    Address,
    Amount,
    DeclineReason,
    Hash32,
    Price,
    Seconds,
    UnixSeconds,
)
from quorate_runtime.http.error_responses import Busy
from support.clocks import SetClock
from support.markets.scripted_market import DOMAIN, Market, Party
from support.memory_archive import MemoryArchive
from support.offers import MACHINE

KEEPING = Keeping(64 << 20, 180 * 86_400)


def without_providers() -> Market:
    """A market whose providers answer nothing."""
    return Market(*[Party(number, is_deaf=True) for number in range(4)])


class UnfetchedMarket(Market):
    """A market whose providers accept each job, and then cannot fetch what it names."""

    def _run(self, party: Party, assignment: Assignment, spec: JobSpec) -> None:
        hashed, at = digest(DOMAIN, assignment), UnixSeconds(self.at)
        accept = Accept(hashed, MACHINE.digest(), Seconds(0), Seconds(1), Seconds(0), at)
        self.send(ev.AcceptReceived(seal(DOMAIN, accept, party.key.sign), party.key.address))
        no = Decline(hashed, DeclineReason.INPUT_UNAVAILABLE, UnixSeconds(0), at)
        self.send(ev.DeclineReceived(seal(DOMAIN, no, party.key.sign), party.key.address))


def spec_effects(market: Market) -> list[StoreSpec]:
    return [effect for effect in market.chain if isinstance(effect, StoreSpec)]


@pytest.mark.rule("4.51")
@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_a_spec_is_stored_at_the_first_accept_and_dropped_uncharged(  # type: ignore[no-untyped-def]
    tmp_path: Path, is_on_disk: bool, attack
) -> None:
    market = without_providers()
    waiting = market.order(0, 1)
    market.beat()
    assert not spec_effects(market), "nobody has accepted it"
    for party in market.parties.values():
        party.is_deaf = False
    for _ in range(8):
        market.beat()
    stored = [effect.job_id for effect in spec_effects(market)]
    assert stored == [waiting], "once, at the first Accept"

    unpaid = UnfetchedMarket(*[Party(number) for number in range(4)])
    inputs = (Input(document_cid(b"nobody has it"), "/inputs/data", 1 << 20),)
    job_id = unpaid.order(0, 1, inputs=inputs, start_within=5)
    archive = FileArchive(tmp_path / "archive.sqlite") if is_on_disk else MemoryArchive()
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING)
    documents = JobDocuments(unpaid.core, file)
    unpaid.deliver()
    for effect in spec_effects(unpaid):
        await documents.store_for(effect)
    spec = sha256(unpaid.job(job_id).submission.spec.encode())
    assert file.get(spec) is not None
    for _ in range(10):
        unpaid.beat()
    assert isinstance(unpaid.job(job_id).phase, Ended)

    async def submit(event: ev.RunsArchived) -> object:
        return unpaid.send(event)

    history = RunReader(unpaid.core.state, archive)
    writer = ArchiveWriter(
        history,
        Outputs(unpaid.core.state, archive),
        submit,
        documents.store_before_leaving,
        file.drop,
    )
    await writer(ArchiveRuns("archive", (job_id,)))
    assert file.get(spec) is None and archive.run(job_id) is not None
    assert not archive.has_document(spec, unpaid.clients[0].address)
    file.close()
    archive.close()
    attack(
        name="orders that end without a charge",
        before="64 KiB on disk for each, for 180 d",
        now="nothing once the run is archived",
        cost="one order",
    )


@pytest.mark.rule("4.51")
def test_a_waiting_order_takes_memory_that_its_reservation_covers(attack) -> None:  # type: ignore[no-untyped-def]
    market = without_providers()
    cheap = {"budget": Amount(100), "max_executions": 3, "max_price_per_hour": Price(100_000)}
    market.limit = 1
    with pytest.raises(Refused, match="are needed") as caught:
        market.order(0, 1, **cheap)
    assert caught.value.code is Code.BAD_AMOUNT and not market.core.state.live
    market.limit = 60
    job_id = market.order(0, 2)
    job, client = market.job(job_id), market.clients[0].address
    assert job.live_bytes == orders.bytes_of(job.submission) > orders.ORDER_BYTES
    assert job.reserved * orders.COVERED_PER_USD >= job.live_bytes * USD
    known = market.core.state
    assert known.clients[client].live_bytes == known.counters[LIVE_BYTES] == job.live_bytes
    for _ in range(700):
        if isinstance(market.job(job_id).phase, Ended):
            break
        market.beat()
    assert known.clients[client].live_bytes == known.counters[LIVE_BYTES] == 0
    most = orders.LIVE_BYTES_MAX * USD // orders.COVERED_PER_USD
    attack(
        name="orders that wait, with the largest specs",
        before="82 KiB each, and 100,000 end the service",
        now=f"{orders.LIVE_BYTES_MAX >> 30} GiB in all, then orders are refused",
        cost=f"{most / USD:g} USD locked meanwhile",
    )


def test_large_clients_leave_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch, attack) -> None:  # type: ignore[no-untyped-def]
    market = without_providers()
    size = orders.bytes_of(market.job(market.order(1, 1)).submission)
    monkeypatch.setattr(orders, "LIVE_BYTES_MAX", 10 * size)
    taken = 0
    with pytest.raises(Refused, match="live orders take") as caught:
        for number in range(20):
            market.order(0, 2 + number)
            taken += 1
    assert caught.value.code is Code.BUSY and 0 < taken < 6
    market.order(1, 2)
    attack(
        name="one client fills the memory for orders",
        before="4,096 of the largest",
        now=f"{taken} of 10 places; the others stay free",
        cost="its reservations",
    )


def test_an_order_without_a_charge_costs_a_token_that_money_buys(attack) -> None:  # type: ignore[no-untyped-def]
    clock, account = SetClock(), Address(b"\x07" * 20)
    rates = RequestRates(MAINNET_BOUNDS, clock)

    def order(charged: int) -> None:
        rates.check_order(account, charged)
        rates.by_order.charge(account)

    def until_refused(charged: int) -> int:
        for number in range(100_000):
            try:
                order(charged)
            except Busy:
                return number
        raise AssertionError("it was never refused")

    burst = until_refused(0)
    assert burst == MAINNET_BOUNDS.orders_burst
    assert until_refused(50 * ORDER_TOKEN_PRICE) == 50, "what it was charged buys tokens"
    for number in range(3_000):
        order((51 + number) * ORDER_TOKEN_PRICE)  # a client that is charged is never stopped
    rates.check_order(Address(b"\x08" * 20), 0)
    attack(
        name="orders that are never charged, as fast as they can be sent",
        before="100 a second of one account",
        now=f"{burst} at once, then {MAINNET_BOUNDS.orders_per_second:g} a second",
        cost=f"{ORDER_TOKEN_PRICE / USD:g} USD for each more",
    )


async def test_a_full_file_refuses_orders_and_takes_receipts(tmp_path: Path) -> None:
    clock = SetClock()
    keeping = Keeping(SPARE_BYTES + (1 << 20), 180 * 86_400)
    file = DocumentFile(tmp_path / "documents.sqlite", keeping, clock)
    number = 0
    while not file.is_nearly_full:
        number += 1
        await file.put(Hash32(sha256(str(number).encode())) * 300)
        assert number < 10_000
    await file.put(b"a receipt")
    assert file.get(sha256(b"a receipt")) == b"a receipt" and not file.problem
    clock.at += keeping.least_seconds + 1
    assert not file.is_nearly_full, "the oldest may go"
    file.close()
