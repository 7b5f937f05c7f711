"""Takes out of a receipt what a settlement must show (PROTOCOL §6)."""

from quorate_contracts.bindings.settlement import (
    SETTLED_EXECUTIONS_MAX,
    JobEvidence,
    SettledExecution,
)
from quorate_protocol.crypto.commitment import result_digest
from quorate_protocol.messages.receipt import ExecutionEvidence, Receipt
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32


def job_evidence(receipt: Receipt, provider: Address) -> JobEvidence:
    """Returns evidence of this provider's execution and of up to two others with its result.

    Raises Refused if the receipt shows no execution of the provider, or no other owner's with the
    same result.
    """
    shown = [item for item in receipt.executions if item.reveal is not None]
    own = next((item for item in shown if item.assignment.message.provider == provider), None)
    if own is None:
        raise Refused(
            Code.NOT_YOURS, f"the receipt shows no revealed execution of 0x{provider.hex()}"
        )
    chosen = {provider: own}
    for item in shown:
        if _result(item) == _result(own):
            chosen.setdefault(item.assignment.message.provider, item)
    if len(chosen) < 2:
        raise Refused(
            Code.UNSUPPORTED,
            "no other owner's execution in the receipt has the same result: such pay comes by "
            "the coordinator's epochs only",
        )
    blinds = _blinds(receipt)
    listed = list(chosen.values())[:SETTLED_EXECUTIONS_MAX]
    return JobEvidence(
        receipt.session, receipt.order, tuple(_settled(item, blinds) for item in listed)
    )


def _result(item: ExecutionEvidence) -> Hash32:
    assert item.reveal is not None, "only revealed executions are compared"
    return result_digest(item.reveal.exit_status, item.reveal.output_digest)


def _blinds(receipt: Receipt) -> dict[Hash32, Hash32]:
    """The blind of each execution by the hash of its Assignment, as the CommitSets opened it."""
    return {
        entry.assignment_hash: blind
        for batch in receipt.batches
        for entry, blind in zip(batch.message.ordered, batch.message.blinds, strict=True)
    }


def _settled(item: ExecutionEvidence, blinds: dict[Hash32, Hash32]) -> SettledExecution:
    assert item.reveal is not None, "only revealed executions are settled"
    blind = blinds[item.commit.message.assignment_hash]
    return SettledExecution(
        item.index, blind, item.assignment, item.commit, item.reveal, item.commit_receipt
    )
