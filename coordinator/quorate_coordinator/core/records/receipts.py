"""Builds the receipt of a decided job from the state: at the verdict, and again to store it.

The evidence for a verdict does not change afterwards. So the effect need not carry the document
(docs/decisions/0007). Usually it is stored milliseconds later, and until then a cache has it.
"""

from collections.abc import Callable, Iterator

from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.effects import StoreReceipt, StoreSpec
from quorate_coordinator.core.entities import Batch, Decided, Job
from quorate_coordinator.core.lease import Lease
from quorate_coordinator.core.state import State
from quorate_coordinator.core.step_context import Rules, StepContext
from quorate_protocol.cids import RAW, cid_text, document_cid
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.receipt import (
    BeaconEvidence,
    ExecutionEvidence,
    Receipt,
    RegisteredProvider,
    TakenFromChain,
)
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import audit_draw
from quorate_protocol.units import Hash32


def publish(context: StepContext, job: Job) -> Job:
    """Orders the shell to store the receipt of a job that was just decided, and records its CID."""
    assert isinstance(job.phase, Decided)
    verdict = job.phase.verdict
    data = build(context.state, context.rules, job, verdict).encode()
    cid = document_cid(data)
    context.state.receipts.put(cid, data)
    context.emit(StoreReceipt(f"receipt-doc-{cid}", job.id, verdict.message.seq, cid))
    return context.put(job, receipt_cid=cid)


def document(state: State, rules: Rules, effect: StoreSpec | StoreReceipt) -> bytes | None:
    """Returns the document that an effect stores. None if the job has left the state, because its
    documents were stored before.

    Raises Refused if a later verdict has replaced the effect's verdict. The later receipt is stored
    instead.
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
    """The receipt of one verdict on a job. Its bytes stay the same while the state has the job."""
    batches = job.batches[: verdict.message.batches]
    executions = tuple(
        _execution(state, state.leases[digest]) for batch in batches for digest in batch.members
    )
    slots = (slot for batch in batches for slot in batch.slots)
    parties = tuple(
        RegisteredProvider(slot.owner, item.operator_key, slot.payout, slot.network)
        for slot, item in zip(slots, executions, strict=True)
    )
    rounds = {batch.commit_set.message.beacon_round for batch in batches}
    eligible = state.eligible(job)
    return Receipt(
        chain_id=rules.domain.chain_id,
        stakes=rules.domain.verifying_contract,
        beacon_key=rules.beacon_key,
        timing=rules.timing,
        coordinator_key=rules.statement_key,
        spec=job.submission.spec,
        session=job.submission.session,
        order=job.submission.order,
        ack=job.ack,
        batches=tuple(batch.commit_set for batch in batches),
        beacons=tuple(
            BeaconEvidence(item.round, item.signature)
            for item in job.beacons
            if item.round in rounds
        ),
        executions=executions,
        witness=job.witness,
        stop=job.stop,
        verdict=verdict,
        slots=eligible.show(index for batch in batches for index in _touched(job, batch)),
        taken_from_chain=TakenFromChain(job.ack.message.slot_block, job.list_length, parties),
    )


def _touched(job: Job, batch: Batch) -> Iterator[int]:
    """Yields the indices of the eligible list that a batch's draw tried, up to the last one that it
    took.
    """
    message = batch.commit_set.message
    for beacon in job.beacons:
        if message.slots and beacon.round == message.beacon_round:
            seed = audit_draw.seed(beacon.randomness, message.job_id, message.secret, message.batch)
            yield from audit_draw.touched(seed, message.slots, job.list_length)


def _execution(state: State, lease: Lease) -> ExecutionEvidence:
    phase = lease.phase
    assert isinstance(phase, leases.Revealed | leases.Silent)
    accept = state.accepts[lease.assignment_hash]
    reveal = phase.reveal if isinstance(phase, leases.Revealed) else None
    key = state.providers[lease.provider].key_at(lease.assignment.message.accept_by)
    return ExecutionEvidence(lease.index, lease.assignment, accept, phase.commit, reveal, key)


def job_documents(
    state: State, rules: Rules, job_id: Hash32
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(CID, function that makes the bytes) of a finished job's spec and receipt. Both are stored
    before the job leaves the state.
    """
    job = state.jobs.get(job_id)
    if job is None:
        return
    spec = job.submission.spec
    yield cid_text(RAW, job.submission.order.message.spec_hash), spec.encode
    if isinstance(job.phase, Decided) and job.receipt_cid is not None:
        verdict = job.phase.verdict
        yield job.receipt_cid, lambda: build(state, rules, job, verdict).encode()
