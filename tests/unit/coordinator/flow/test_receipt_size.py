"""Tests that a receipt's size depends on the tries of its draw and not on the market's size.

The effect that stores a receipt names it and does not carry it (docs/decisions/0007).
"""

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.effects import Effect, StoreReceipt, StoreSpec
from quorate_coordinator.core.model.entities import AwaitingRound, BeaconUsed, Decided, PoolSlots
from quorate_coordinator.core.model.state import DocumentCache
from quorate_coordinator.core.money import receipts
from quorate_protocol.codec import canonical
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.messages import receipt
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.receipts import receipt_checks
from quorate_protocol.units import Hash32, Round, Sequence, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover
from support.markets.scripted_market import CPUS, Market, Party

BASE_BYTES = 10_000  # a job with one auditor: 13 signed messages, its spec and two reveals
JOURNAL_BYTES = 30_000
SHOWN_BYTES = 2_100  # one slot with its Merkle path, in a list of up to a million slots
CODEC: PackedCodec[ev.Event, Effect] = PackedCodec(ev.Event, Effect)


def market_of(slots: int) -> Market:
    """Returns a market of five owners that share `slots` slots."""
    market = Market(*(Party(number) for number in range(5)))
    few = market.core.state.pool_slots[CPUS.id()].slots
    with market.core.state.transaction():
        market.core.state.pool_slots[CPUS.id()] = PoolSlots(
            tuple(replace(few[index % 5], index=index) for index in range(slots))
        )
    return market


@pytest.mark.parametrize("slots", [8, 400, 10_000])
def test_receipts_stay_small(slots: int) -> None:
    market = market_of(slots)
    jobs = [market.order(0, number) for number in range(1, 4)]
    market.until_decided(*jobs)
    for data in market.receipts:
        body = canonical.decode(receipt.Receipt, data)
        report = receipt_checks.verify(receipt.document(body), recover, verify_round)
        assert report.valid, report.failures
        assert body.taken_from_chain.list_length == slots
        tries = max(body.batches[0].message.slots) + 1
        assert 1 <= len(body.slots) <= tries
        assert len(data) < BASE_BYTES + len(body.slots) * SHOWN_BYTES, (
            f"{len(data)} bytes after {tries} tries over {slots} slots"
        )


@pytest.mark.rule("3.39")
def test_a_receipt_has_the_hash_of_the_block_of_its_slots() -> None:
    market = market_of(5)
    block, hashed = market.next_block, Hash32(b"\x7c" * 32)
    market.send(ev.ChainAdvanced(block, hashed, UnixSeconds(market.at), ()))
    job_id = market.order(0, 1)
    market.chain_says()
    market.until_decided(job_id)
    chain = market.receipt(0).taken_from_chain
    assert (chain.block, chain.block_hash) == (block, hashed)


def test_effects_name_documents() -> None:
    market = market_of(400)
    market.until_decided(market.order(0, 1))
    documents = [effect for effect in market.chain if isinstance(effect, StoreSpec | StoreReceipt)]
    assert len(documents) == 2
    for effect in documents:
        data = receipts.document(market.core.state, market.core.rules, effect)
        assert data is not None and len(CODEC.encode_effect(effect)) < 400
        assert not isinstance(effect, StoreReceipt) or document_cid(data) == effect.cid


@pytest.mark.parametrize("slots", [8, 400, 10_000])
def test_the_journal_of_a_job_stays_small(slots: int) -> None:
    """The sum covers the job's events and all effects of these steps."""
    market = market_of(slots)
    begun, effects = len(market.log), len(market.effects)
    market.until_decided(market.order(0, 1))
    events = sum(len(CODEC.encode_event(item.event)) for item in market.log[begun:])
    performed = sum(len(CODEC.encode_effect(effect)) for effect in market.effects[effects:])
    assert events + performed < JOURNAL_BYTES


def test_a_receipt_that_is_stored_late_has_the_same_bytes() -> None:
    """The store was away for long. Meanwhile the job is drawn again, has another verdict, or has
    left the state.
    """
    market = market_of(8)
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    state, rules = market.core.state, market.core.rules
    (effect,) = [effect for effect in market.chain if isinstance(effect, StoreReceipt)]
    job = state.jobs[job_id]
    assert isinstance(job.phase, Decided)
    again = AwaitingRound(len(job.batches), 1, Round(9), ())
    later = BeaconUsed(Round(9), b"later", b"later")
    with state.transaction():
        state.jobs[job_id] = replace(
            job, phase=again, held_verdict=job.phase.verdict, beacons=(*job.beacons, later)
        )
    assert receipts.document(state, rules, effect) == market.receipts[0]
    other = replace(job.phase.verdict, message=replace(job.phase.verdict.message, seq=Sequence(99)))
    with state.transaction():
        state.jobs[job_id] = replace(job, phase=Decided(other, True, UnixSeconds(0)))
    with pytest.raises(Refused, match="another verdict"):
        receipts.document(state, rules, effect)
    with state.transaction():
        del state.jobs[job_id]
    assert receipts.document(state, rules, effect) is None
    assert list(receipts.job_documents(state, rules, Hash32(job_id))) == []


def test_a_job_leaves_the_state_only_after_its_receipt_is_stored() -> None:
    market = market_of(8)
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    made = receipts.job_documents(market.core.state, market.core.rules, job_id)
    found, ordered = {cid: write() for cid, write in made}, market.job(job_id).submission
    assert all(document_cid(data) == cid for cid, data in found.items())
    expected = [ordered.spec.encode(), ordered.terms.encode(), market.receipts[0]]
    assert list(found.values()) == expected


def test_the_oldest_documents_are_dropped_when_the_cache_is_full() -> None:
    waiting = DocumentCache(bytes_max=10)
    waiting.put("a", b"12345")
    waiting.put("b", b"12345")
    waiting.put("b", b"1234")
    assert waiting.take("a") == b"12345" and waiting.take("a") is None
    waiting.put("c", b"1234567")
    assert waiting.take("b") is None and waiting.take("c") == b"1234567"
    waiting.put("d", b"more than there is room for")
    assert waiting.take("d") is None


def test_cached_receipt_is_the_one_that_would_be_built() -> None:
    market = market_of(8)
    market.until_decided(market.order(0, 1))
    effect = next(item for item in market.chain if isinstance(item, StoreReceipt))
    state, rules = market.core.state, market.core.rules
    kept = receipts.document(state, rules, effect)
    assert state.receipts.take(effect.cid) is None, "it was given away"
    made = receipts.document(state, rules, effect)
    assert kept is not None and kept == made and document_cid(made) == effect.cid
