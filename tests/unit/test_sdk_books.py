"""The client's books, nonces and events, without any network."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import EvidenceError, UsageError
from quorate.job import Job
from quorate.ledger import Entry, Ledger
from quorate.ordering import make_order, next_nonce
from quorate.packing import pack
from quorate.sse import ServerEvent, server_events
from quorate_protocol.hashing import sha256
from quorate_protocol.units import Address, Amount, Bps, Hash32, Nonce

CLIENT, COORDINATOR = Address(b"\1" * 20), Address(b"\2" * 20)
JOB = Job(image="python@sha256:" + "0" * 64, command=("true",), max_price="1", max_duration="1h")
SPEC = pack(JOB, {}).spec


def entry(number: int) -> Entry:
    order = make_order(JOB, SPEC, CLIENT, COORDINATOR, Nonce(number << 70), 1_700_000_000, Bps(500))
    return Entry(Hash32(sha256(bytes([number]))), f"job-{number}", order, SPEC.encode(), b"session", number, None, None)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def test_vouchers_grow_with_checked_charges_alone(ledger: Ledger) -> None:
    first, second = entry(1), entry(2)
    ledger.record(first)
    ledger.record(second)
    assert ledger.draft_voucher(CLIENT, COORDINATOR, Amount(10**9)) is None
    ledger.settle(second.job_id, Amount(70))
    voucher = ledger.draft_voucher(CLIENT, COORDINATOR, Amount(10**9))
    assert voucher is not None and (voucher.cumulative, voucher.nonce_floor) == (70, first.order.nonce)
    assert ledger.draft_voucher(CLIENT, COORDINATOR, Amount(10**9)) is None
    ledger.settle(second.job_id, Amount(99))
    ledger.settle(first.job_id, Amount(30))
    voucher = ledger.draft_voucher(CLIENT, COORDINATOR, Amount(10**9))
    assert voucher is not None and (voucher.cumulative, voucher.nonce_floor) == (100, second.order.nonce + 1)


def test_nothing_is_signed_above_the_session(ledger: Ledger) -> None:
    ledger.record(entry(1))
    ledger.settle(entry(1).job_id, Amount(100))
    with pytest.raises(EvidenceError, match="session"):
        ledger.draft_voucher(CLIENT, COORDINATOR, Amount(99))
    assert ledger.draft_voucher(CLIENT, COORDINATOR, Amount(100)) is not None


def test_two_programs_share_the_books(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "ledger.sqlite")
    ledger.record(entry(1))
    other.record(replace(entry(1), name="again"))
    other.settle(entry(1).job_id, Amount(5))
    found = ledger.entry(entry(1).job_id)
    assert found is not None and found.charged == 5 and found.name == "job-1"
    assert ledger.open_jobs(COORDINATOR) == [] and ledger.debt(COORDINATOR).charged == 5


def test_a_settled_order_is_never_forgotten(ledger: Ledger) -> None:
    for number in (1, 2):
        ledger.record(entry(number))
    ledger.settle(entry(1).job_id, Amount(1))
    for number in (1, 2):
        ledger.forget(entry(number).job_id)
    assert [item.name for item in ledger.entries(COORDINATOR)] == ["job-1"]


@given(st.integers(0, 1 << 110), st.integers(0, 2**64 - 1))
def test_nonces_grow(known: int, random64: int) -> None:
    try:
        nonce = next_nonce(known, 1_700_000_000.0, random64)
    except UsageError:
        assert known >> 64 > 1_700_000_000_000
        return
    assert nonce > known and nonce < 1 << 256


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_events_survive_any_cutting(cuts: list[int]) -> None:
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
