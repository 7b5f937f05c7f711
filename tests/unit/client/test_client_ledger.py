"""Tests the client's ledger, nonces and events, without network."""

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.base.errors import EvidenceError, UnavailableError, UsageError
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate.client.base.coordinator_api import ServerEvent, server_events
from quorate.client.base.signed_requests import draft_order, next_nonce
from quorate.client.money.chain_access import one_at_a_time
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate.trust.coordinator_identity import check_identity
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.units import Address, Amount, Bps, Hash32, Nonce, UnixSeconds

CLIENT, COORDINATOR = Address(b"\1" * 20), Address(b"\2" * 20)
JOB = Job(image="python@sha256:" + "0" * 64, command=("true",), max_price="1", max_duration="1h")
SPEC = pack(JOB, {}).spec


def entry(number: int) -> OrderRecord:
    draft = draft_order(JOB, SPEC, CLIENT, COORDINATOR, Bps(500))
    order = draft.stamped(Nonce(number << 70), 1_700_000_000)
    return OrderRecord(
        Hash32(sha256(bytes([number]))),
        f"job-{number}",
        order,
        SPEC.encode(),
        b"session",
        number,
        None,
        None,
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


@pytest.mark.rule("6.65", "4.75")
def test_vouchers_cover_checked_charges_and_what_open_orders_reserve(ledger: Ledger) -> None:
    first, second = entry(1), entry(2)
    ledger.record(first)
    ledger.record(replace(second, reserved=Amount(500)))
    voucher = drafted(ledger, lead=400)
    assert voucher is not None and voucher.cumulative == 400, "no more than the lead"
    voucher = drafted(ledger, lead=600)
    assert voucher is not None and voucher.cumulative == 500 and drafted(ledger, lead=600) is None
    ledger.settle(second.job_id, Amount(70))
    assert drafted(ledger, lead=600) is None, "a voucher never falls"
    ledger.settle(second.job_id, Amount(990))
    ledger.settle(first.job_id, Amount(530))
    voucher = drafted(ledger, lead=0)
    assert voucher is not None and voucher.cumulative == 600


@pytest.mark.rule("4.75")
def test_an_order_is_recorded_only_if_it_fits_the_lead(ledger: Ledger) -> None:
    first, second = (replace(entry(number), reserved=Amount(60)) for number in (1, 2))
    assert ledger.record(first, Amount(100)) and not ledger.record(second, Amount(100))
    assert ledger.entry(second.job_id) is None and ledger.debt(COORDINATOR).promised == 60
    ledger.acknowledge(first.job_id, b"ack", Amount(20))  # it can cost less by its Ack
    assert ledger.record(second, Amount(100)) and ledger.debt(COORDINATOR).promised == 80


@pytest.mark.rule("6.74")
def test_an_order_with_its_own_escrow_is_outside_the_tab_and_never_forgotten(
    ledger: Ledger,
) -> None:
    funded = replace(entry(1), reserved=Amount(60), funded_until=UnixSeconds(2_000))
    assert ledger.record(funded, Amount(0)) is False, "a lead is for the tab's orders"
    assert ledger.record(funded) and ledger.debt(COORDINATOR).promised == 0
    ledger.settle(funded.job_id, Amount(40))
    assert ledger.debt(COORDINATOR).charged == 0 and drafted(ledger, lead=100) is None
    ledger.record(replace(entry(2), funded_until=UnixSeconds(2_000)))
    ledger.forget(entry(2).job_id)
    assert [each.name for each in ledger.funded_orders()] == ["job-1", "job-2"]
    ledger.returned(entry(2).job_id)
    assert [each.name for each in ledger.funded_orders()] == ["job-1"]


@pytest.mark.rule("6.88")
@pytest.mark.parametrize(
    ("shown", "unknown", "carried"),
    [
        (100, 0, 0),  # the coordinator charged nothing that this ledger does not know
        (100, 50, 50),
        (100, 500, 60),  # at most what was signed: 40 are known
        (50, 50, 0),  # nothing newer: this ledger signed 50
    ],
)
def test_a_restored_ledger_goes_on_from_the_newest_voucher_of_its_key(
    ledger: Ledger, shown: int, unknown: int, carried: int
) -> None:
    ledger.record(replace(entry(1), reserved=Amount(50)))
    assert drafted(ledger, lead=50) is not None
    ledger.settle(entry(1).job_id, Amount(40))
    for _ in range(2):
        ledger.adopt_voucher(COORDINATOR, Amount(shown), Amount(unknown))
        totals = ledger.debt(COORDINATOR)
        assert (totals.charged, totals.signed) == (40 + carried, max(50, shown))


@pytest.mark.rule("2.4")
def test_nothing_is_signed_above_the_session(ledger: Ledger) -> None:
    ledger.record(entry(1))
    ledger.settle(entry(1).job_id, Amount(100))
    voucher = drafted(ledger, lead=0, session_limit=99)
    assert voucher is not None and voucher.cumulative == 99


def drafted(ledger: Ledger, lead: int, session_limit: int = 10**9) -> Voucher | None:
    limits = Amount(10**9), Amount(session_limit)
    return ledger.draft_voucher(CLIENT, COORDINATOR, Amount(lead), *limits)


def test_two_programs_share_one_ledger(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "ledger.sqlite")
    ledger.record(entry(1))
    other.record(replace(entry(1), name="again"))
    other.settle(entry(1).job_id, Amount(5))
    found = ledger.entry(entry(1).job_id)
    assert found is not None and found.charged == 5 and found.name == "job-1"
    assert ledger.open_jobs(COORDINATOR) == [] and ledger.debt(COORDINATOR).charged == 5


def test_one_command_at_a_time_sends_transactions_of_a_profile(tmp_path: Path) -> None:
    """Two withdrawals at once could both find that nothing was sent yet."""
    told = pytest.raises(UnavailableError, match="another transaction")
    with one_at_a_time(tmp_path), told, one_at_a_time(tmp_path):
        pass
    with one_at_a_time(tmp_path):
        assert (tmp_path / "transactions.lock").stat().st_mode & 0o077 == 0


def test_a_settled_order_is_never_forgotten(ledger: Ledger) -> None:
    for number in (1, 2):
        ledger.record(entry(number))
    ledger.settle(entry(1).job_id, Amount(1))
    for number in (1, 2):
        ledger.forget(entry(number).job_id)
    assert [item.name for item in ledger.entries(COORDINATOR)] == ["job-1"]


def test_a_full_disk_is_reported_and_the_ledger_stays_whole(ledger: Ledger) -> None:
    """Once a full disk ended the client with a stack trace."""
    ledger.record(entry(1))
    (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnavailableError, match="df -h"):
        for number in range(2, 100):
            ledger.record(entry(number))
    before = len(ledger.entries(COORDINATOR))
    ledger._db.execute("PRAGMA max_page_count = 100000")
    ledger.record(entry(100))
    assert len(ledger.entries(COORDINATOR)) == before + 1


def test_the_newest_session_is_the_last_one_signed_even_if_the_clock_went_back(
    ledger: Ledger,
) -> None:
    ledger.record(
        replace(entry(1), session=b"of the clock that was an hour ahead", submitted_at=5000)
    )
    ledger.record(replace(entry(2), session=b"of the right clock", submitted_at=1400))
    assert ledger.newest_session(COORDINATOR) == b"of the right clock"


def told(chain_id: int = 1, period: int = 2, genesis: int = 1) -> InfoView:
    contracts = dict.fromkeys(("Stakes", "Escrow", "TestToken"), COORDINATOR)
    beacon = BeaconView("http://127.0.0.1:1", b"k" * 96, period, genesis)
    return InfoView(
        COORDINATOR,
        CLIENT,
        chain_id,
        "http://127.0.0.1:1",
        contracts,
        beacon,
        Bps(1),
        "devnet",
        "0",
    )


@pytest.mark.parametrize(
    "told_wrong",
    [{"period": 0}, {"period": -1}, {"chain_id": -1}, {"chain_id": 2**300}, {"genesis": 10**40}],
)
def test_impossible_deployment_values_are_not_pinned(
    told_wrong: dict[str, int], tmp_path: Path
) -> None:
    """Once a beacon period of zero ended the background task by a division by zero, so nothing was
    witnessed or signed.
    """
    with pytest.raises(EvidenceError, match="impossible values"):
        check_identity(tmp_path / "pins.json", told(**told_wrong))
    assert not list(tmp_path.iterdir())


def test_first_contact_writes_whole_pins_or_none(tmp_path: Path) -> None:
    """Once a full disk or a kill left half a file, and the profile was unusable."""
    path, soft_hard = tmp_path / "pins.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    info = told()
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, soft_hard[1]))
    try:
        with pytest.raises(OSError, match="large"):
            check_identity(path, info)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft_hard)
    assert list(tmp_path.iterdir()) == []
    assert check_identity(path, info) == check_identity(path, info)


@given(st.integers(0, 1 << 110), st.integers(0, 2**64 - 1))
def test_each_nonce_is_larger_than_the_last(known: int, random64: int) -> None:
    try:
        nonce = next_nonce(known, 1_700_000_000.0, random64)
    except UsageError:
        assert known >> 64 > 1_700_000_000_000
        return
    assert nonce > known and nonce < 1 << 256


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_events_are_read_from_chunks_of_any_size(cuts: list[int]) -> None:
    text = b': hello\r\nid: 7\ndata: {"a":\ndata: 1}\n\n: alive\n\nid: 8\nevent: x\ndata: two\n\n'

    async def chunks() -> AsyncIterator[bytes]:
        at = 0
        for index in range(len(text)):
            size = cuts[index % len(cuts)]
            yield text[at : at + size]
            at += size

    async def read() -> list[ServerEvent]:
        return [event async for event in server_events(chunks())]

    assert asyncio.run(read()) == [ServerEvent("7", '{"a":\n1}'), ServerEvent("8", "two")]


def test_a_ledger_from_before_rentals_is_opened_with_its_orders(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    old = Ledger(path)
    old.record(entry(1))
    old.close()
    with sqlite3.connect(path) as file:
        file.execute("ALTER TABLE orders DROP COLUMN metered")
    file.close()
    again = Ledger(path)
    assert again.entry(entry(1).job_id) == entry(1)
    again.close()
