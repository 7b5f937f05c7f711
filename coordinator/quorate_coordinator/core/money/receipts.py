"""Builds the receipt of a decided job from the state: at the verdict, and again to store it.

The evidence for a verdict does not change afterwards, so the effect need not carry the document
(docs/decisions/0007). Until it is stored, a cache usually has it.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model import skips
from quorate_coordinator.core.model.effects import StoreReceipt, StoreSpec
from quorate_coordinator.core.model.entities import (
    Batch,
    BeaconUsed,
    Decided,
    EmptyDraw,
    Job,
    SkippedPlace,
)
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import Rules, StepContext
from quorate_protocol.codec.cids import RAW, cid_text, document_cid
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages.envelope import Envelope, Sign, seal
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.messages.receipt import (
    VERSION,
    BeaconEvidence,
    Distance,
    Evidence,
    ExecutionEvidence,
    Receipt,
    RegisteredProvider,
    SkipEvidence,
    TakenFromChain,
    decided,
)
from quorate_protocol.messages.signed import Commit, CommitReceipt, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import audit_draw, orders
from quorate_protocol.rules.agreement import pairs_to_compare
from quorate_protocol.rules.receipts import receipt_draws
from quorate_protocol.units import Address, Hash32, Outcome, Round, Small, UnixSeconds

UNDECIDED = (Outcome.UNRESOLVED, Outcome.CANNOT_VERIFY)


def publish(context: StepContext, job: Job) -> Job:
    assert isinstance(job.phase, Decided)
    verdict = job.phase.verdict
    shown = context.evidence.pop(verdict.message.evidence_hash, None)
    if shown is None:
        shown = _evidence_of(context.state, context.rules, job, verdict)
    data = decided(shown, verdict).encode()
    cid = document_cid(data)
    context.state.receipts.put(cid, data)
    context.emit(StoreReceipt(f"receipt-doc-{cid}", job.id, verdict.message.seq, cid))
    return context.put(job, receipt_cid=cid)


def document(state: State, rules: Rules, effect: StoreSpec | StoreReceipt) -> bytes | None:
    """None if the job has left the state: its documents were stored before. Raises Refused if a
    later verdict has replaced the effect's, whose receipt is stored instead.
    """
    job = state.jobs.get(effect.job_id)
    if job is None:
        return None
    if isinstance(effect, StoreSpec):
        return job.submission.spec.encode()
    for verdict in (
        job.phase.verdict if isinstance(job.phase, Decided) else None,
        job.held_verdict,
    ):
        if verdict is not None and verdict.message.seq == effect.verdict_seq:
            waiting = state.receipts.take(effect.cid)
            data = waiting or build(state, rules, job, verdict).encode()
            if waiting is not None or document_cid(data) == effect.cid:
                return data
    raise Refused(Code.WRONG_PHASE, f"receipt: job 0x{job.id.hex()} has another verdict by now")


def build(state: State, rules: Rules, job: Job, verdict: Envelope[Verdict]) -> Receipt:
    return decided(_evidence_of(state, rules, job, verdict), verdict)


def _evidence_of(state: State, rules: Rules, job: Job, verdict: Envelope[Verdict]) -> Evidence:
    said = verdict.message
    return evidence(state, rules, job, said.outcome, said.batches)


def commit_receipt(
    rules: Rules, commit: Envelope[Commit], stored_at: UnixSeconds
) -> Envelope[CommitReceipt]:
    """The signed moment at which a Commit was stored. Cached, because a provider gets it at once
    and the evidence needs it soon after.
    """
    return _commit_receipt(rules.domain, rules.sign, commit.digest(rules.domain), stored_at)


@lru_cache(maxsize=4096)
def _commit_receipt(
    domain: Domain, sign: Sign, commit_hash: Hash32, stored_at: UnixSeconds
) -> Envelope[CommitReceipt]:
    return seal(domain, CommitReceipt(commit_hash, stored_at), sign)


def evidence(state: State, rules: Rules, job: Job, outcome: Outcome, count: int) -> Evidence:
    """Over the job's first `count` batches."""
    batches = job.batches[:count]
    empty = job.empty_draw if outcome in UNDECIDED or count > 1 else None
    empty = empty if empty is not None and empty.batch == count else None
    executions = tuple(
        _execution(state, rules, state.leases[digest], stored_at)
        for batch in batches
        for digest, stored_at in zip(batch.members, batch.stored_at, strict=True)
    )
    places = (slot for batch in batches for slot in batch.slots)
    parties = tuple(
        RegisteredProvider(slot.owner, item.operator_key, slot.payout, slot.network)
        for slot, item in zip(places, executions, strict=True)
    )
    skipped = [(batch.number, skip) for batch in batches for skip in batch.skips]
    skipped += [(empty.batch, skip) for skip in empty.skips] if empty is not None else []
    beacons = [
        found for batch in batches if (found := _beacon(job, batch.commit_set.message.beacon_round))
    ]
    beacons += [found] if empty is not None and (found := _beacon(job, empty.round)) else []
    eligible = state.eligible(job)
    snapshot = state.eligible_snapshots[job.ack.message.eligible_root]
    return Evidence(
        chain_id=rules.domain.chain_id,
        stakes=rules.domain.verifying_contract,
        beacon_key=rules.beacon_key,
        timing=rules.timing,
        coordinator_key=rules.statement_key,
        pools=job.pools,
        image=image_digest(job.submission.spec.image),
        profile=job.submission.spec.profile().digest(),
        session=job.submission.session,
        order=job.submission.order,
        ack=job.ack,
        batches=tuple(batch.commit_set for batch in batches),
        beacons=tuple(BeaconEvidence(item.round, item.signature) for item in beacons),
        executions=executions,
        compare=job.submission.spec.compare,
        distances=_distances(job, batches, executions),
        skips=tuple(_skip(state, number, skip) for number, skip in skipped),
        exhausted_by=empty.round if empty is not None else Round(0),
        witness=job.witness if batches else None,
        withdrawals=snapshot.withdrawals_at(
            job.ack.message.slot_block, state.market.slots_of(snapshot)
        ),
        slots=eligible.show(_met(state, job, batches, empty)),
        taken_from_chain=TakenFromChain(
            job.ack.message.slot_block, job.slot_block_hash, job.list_lengths, parties
        ),
        stop=job.stop if outcome is Outcome.LAPSED else None,
        version=VERSION,
    )


def _distances(
    job: Job, batches: tuple[Batch, ...], executions: tuple[ExecutionEvidence, ...]
) -> tuple[Distance, ...]:
    members = [name for batch in batches for name in batch.members]
    found = {(item.one, item.other): item.ppb for item in job.comparisons}
    pairs = pairs_to_compare([item.reveal for item in executions]) if found else ()
    return tuple(
        Distance(Small(one), Small(other), found[members[one], members[other]])
        for one, other in pairs
    )


def _beacon(job: Job, number: Round) -> BeaconUsed | None:
    return next((item for item in job.beacons if item.round == number), None)


def _met(
    state: State, job: Job, batches: tuple[Batch, ...], empty: EmptyDraw | None
) -> Iterator[int]:
    for batch in batches:
        met = skips.met(state, batch.number, batch.skips)
        message = batch.commit_set.message
        beacon = _beacon(job, message.beacon_round)
        if beacon is not None:
            seed = audit_draw.seed(beacon.randomness, job.id, job.secret, batch.number)
            wanted = orders.first_draw(job.order, job.ack.message.rule)
            tries = receipt_draws.tries_of(message, seed, met, wanted)
            yield from audit_draw.indices_of(seed, tries, job.list_length)
    beacon = _beacon(job, empty.round) if empty is not None else None
    if empty is not None and beacon is not None:
        seed = audit_draw.seed(beacon.randomness, job.id, job.secret, empty.batch)
        tries = audit_draw.tries_in(
            skips.met(state, empty.batch, empty.skips), (), empty.batch, audit_draw.DRAW_PASSES
        )
        yield from audit_draw.indices_of(seed, tries, job.list_length)


def _skip(state: State, batch: int, skip: SkippedPlace) -> SkipEvidence:
    lease = state.leases[skip.assignment_hash]
    said = state.declines.get(skip.assignment_hash)
    return SkipEvidence(
        batch=Small(batch),
        attempt=Small(skip.attempt),
        index=lease.index,
        blind=lease.blind,
        assignment=lease.assignment,
        decline=said.decline if said is not None else None,
        operator_key=said.key if said is not None else _key_of(state, lease),
    )


def _key_of(state: State, lease: Lease) -> Address:
    return state.providers[lease.provider].key_at(lease.assignment.message.accept_by)


def _execution(
    state: State, rules: Rules, lease: Lease, stored_at: UnixSeconds
) -> ExecutionEvidence:
    phase = lease.phase
    assert isinstance(phase, leases.Revealed | leases.Silent)
    accept = state.accepts[lease.assignment_hash]
    reveal = phase.reveal if isinstance(phase, leases.Revealed) else None
    receipt = commit_receipt(rules, phase.commit, stored_at)
    return ExecutionEvidence(
        index=lease.index,
        assignment=lease.assignment,
        accept=accept,
        commit=phase.commit,
        commit_receipt=receipt,
        reveal=reveal,
        operator_key=_key_of(state, lease),
    )


def job_documents(
    state: State, rules: Rules, job_id: Hash32
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(CID, function that makes the bytes) of a finished job's receipt, and of its spec and terms
    if it is paid for. All are stored before the job leaves the state.
    """
    job = state.jobs.get(job_id)
    if job is None:
        return
    if job.is_paid_for:
        spec, terms = job.submission.spec, job.submission.terms
        yield cid_text(RAW, job.order.spec_hash), spec.encode
        yield cid_text(RAW, job.order.terms_hash), terms.encode
    if isinstance(job.phase, Decided) and job.receipt_cid is not None:
        verdict = job.phase.verdict
        yield job.receipt_cid, lambda: build(state, rules, job, verdict).encode()
