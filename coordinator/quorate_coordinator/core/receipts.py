"""Builds the receipt of a decided job from what the state holds."""

from quorate_coordinator.core.effects import StoreDocument
from quorate_coordinator.core.state import Decided, Job
from quorate_coordinator.core.turn import Turn
from quorate_protocol import lease as leases
from quorate_protocol.cids import document_cid
from quorate_protocol.lease import Lease
from quorate_protocol.receipt import BeaconEvidence, ExecutionEvidence, Receipt, TakenFromChain


def publish(turn: Turn, job: Job, members: list[Lease]) -> Job:
    """Stores the receipt and notes its CID."""
    data = build(turn, job, members).encode()
    cid = document_cid(data)
    turn.emit(StoreDocument(f"receipt-doc-{cid}", data))
    return turn.put(job, receipt_cid=cid)


def build(turn: Turn, job: Job, members: list[Lease]) -> Receipt:
    """The receipt of a decided job; the same state gives the same bytes."""
    assert isinstance(job.phase, Decided)
    rules = turn.rules
    executions = tuple(_execution(turn, lease) for lease in members)
    block = job.ack.message.slot_block
    keys = tuple(sorted({item.operator_key for item in executions}))
    return Receipt(
        chain_id=rules.domain.chain_id,
        stakes=rules.domain.verifying_contract,
        beacon_key=rules.beacon_key,
        coordinator_key=rules.statement_key,
        spec=job.submission.spec,
        session=job.submission.session,
        order=job.submission.order,
        ack=job.ack,
        batches=tuple(batch.commit_set for batch in job.batches),
        beacons=tuple(BeaconEvidence(item.round, item.signature) for item in job.beacons),
        executions=executions,
        witness=job.witness,
        stop=job.stop,
        verdict=job.phase.verdict,
        taken_from_chain=TakenFromChain(block, job.list_length, turn.state.eligible(job), keys),
    )


def _execution(turn: Turn, lease: Lease) -> ExecutionEvidence:
    phase = lease.phase
    assert isinstance(phase, leases.Revealed | leases.Silent)
    accept = turn.state.accepts[lease.hash]
    reveal = phase.reveal if isinstance(phase, leases.Revealed) else None
    key = turn.state.providers[lease.provider].key_at(lease.assignment.message.accept_by)
    return ExecutionEvidence(lease.index, lease.assignment, accept, phase.commit, reveal, key)
