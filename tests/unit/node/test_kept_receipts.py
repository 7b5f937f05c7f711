"""Receipts that a provider keeps, and what a settlement takes out of them (PROTOCOL 6.35)."""

import os
from pathlib import Path

import pytest

from quorate_contracts.job_evidence import job_evidence
from quorate_node.chain.settling import receipt_of
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging import kept_receipts
from quorate_node.messaging.kept_receipts import KeptReceipts, read_receipt, receipt_path
from quorate_node.messaging.verdict_checks import VerdictChecks
from quorate_protocol.codec import canonical
from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Seconds
from quorate_protocol.values import replace
from quorate_runtime.clock import VirtualClock
from quorate_runtime.process.health import Board
from support.markets.provider_world import make_terms
from support.markets.scripted_market import COORDINATOR, DOMAIN, INFO, STATEMENT, Market, Party
from support.receipt_readers import executed


def decided() -> tuple[Market, Receipt]:
    """Returns a market and the receipt of its only job."""
    market = Market(*[Party(number) for number in range(4)])
    market.until_decided(market.order(0, 1))
    return market, canonical.decode(Receipt, market.receipts[-1])


@pytest.mark.rule("6.35")
async def test_a_provider_keeps_the_receipt_of_each_job_that_passes_its_check(
    tmp_path: Path,
) -> None:
    market, body = decided()
    keys = {COORDINATOR.address: STATEMENT.address}
    terms = replace(make_terms(), domain=DOMAIN, beacon=INFO, statement_keys=keys)
    clock = VirtualClock(market.at)

    async def fetch(job_id: Hash32) -> bytes:
        return document(body)

    kept = KeptReceipts(tmp_path, Seconds(60), clock)
    fetches = {COORDINATOR.address: fetch}
    folder = tmp_path / "false-receipts"
    checks = VerdictChecks(ProviderCore(terms), fetches, folder, Board(), clock, kept)
    await checks.look(executed(market, body))
    data = read_receipt(receipt_path(tmp_path, body.verdict.message.job_id))
    assert receipt_of(data) == body


@pytest.mark.rule("6.35")
def test_old_receipts_and_those_beyond_the_bound_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_receipts, "FILES_MAX", 3)
    monkeypatch.setattr(kept_receipts, "LOOK_EVERY", 1)
    kept = KeptReceipts(tmp_path, Seconds(60), VirtualClock(1_000))
    jobs = [Hash32(bytes([number]) * 32) for number in range(6)]
    for number, job in enumerate(jobs):
        kept.keep(job, b"{}")
        os.utime(receipt_path(tmp_path, job), (930 + 20 * number,) * 2)
    kept.keep(jobs[0], b"{}")
    found = {path.name for path in (tmp_path / kept_receipts.FOLDER).iterdir()}
    assert found == {receipt_path(tmp_path, job).name for job in (jobs[0], jobs[4], jobs[5])}
    with pytest.raises(Refused, match="--receipt FILE"):
        read_receipt(receipt_path(tmp_path, jobs[1]))


@pytest.mark.rule("6.25", "6.35")
def test_a_settlement_shows_the_owner_first_and_others_with_its_result() -> None:
    _, body = decided()
    own = body.executions[1].assignment.message.provider
    evidence = job_evidence(body, own)
    first, *others = evidence.executions
    assert first.assignment.message.provider == own and first.receipt is not None
    assert {each.reveal.output_digest for each in others} == {first.reveal.output_digest}
    with pytest.raises(Refused) as refused:
        job_evidence(body, Address(bytes(20)))
    assert refused.value.code is Code.NOT_YOURS
    alone = replace(body, executions=body.executions[:1])
    with pytest.raises(Refused) as refused:
        job_evidence(alone, body.executions[0].assignment.message.provider)
    assert refused.value.code is Code.UNSUPPORTED
