"""Takes out of a receipt what an appeal must show (PROTOCOL §5)."""

from msgspec import Struct

from quorate_contracts.bindings.cases import appeal_bond
from quorate_contracts.bindings.court import CaseJob, CaseRun
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Reveal, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, Comparator, Hash32, UnixSeconds


class AppealEvidence(Struct, frozen=True):
    """A provider's execution, the Verdict that faults it, and the Reveal that opens its Commit."""

    job: CaseJob
    run: CaseRun
    verdict: Envelope[Verdict]
    reveal: Reveal

    @property
    def assignment_hash(self) -> Hash32:
        """The execution."""
        return self.reveal.assignment_hash

    def bond(self, limits: Limits) -> Amount:
        """Returns what the provider must lay down."""
        return appeal_bond(self.job, self.run, limits)

    def open_until(self, limits: Limits) -> UnixSeconds:
        """Returns the last moment at which the court hears it, inclusive."""
        run = self.run.assignment.message
        return UnixSeconds(run.accept_by + run.max_duration + limits.case_evidence_age)


def appeal_evidence(receipt: Receipt, provider: Address) -> AppealEvidence:
    """Returns the evidence for an appeal of this provider.

    Raises Refused if the Verdict does not fault it, or a jury cannot judge the job.
    """
    faulted, order = receipt.verdict.message.faulted, receipt.order.message
    own = next(
        (
            item
            for item in receipt.executions
            if item.assignment.message.provider == provider
            and item.commit.message.assignment_hash in faulted
        ),
        None,
    )
    if own is None:
        raise Refused(Code.NOT_YOURS, f"the Verdict faults no execution of 0x{provider.hex()}")
    if own.reveal is None:
        raise Refused(Code.UNSUPPORTED, "the execution was not revealed, so a jury cannot judge it")
    if order.comparator is not Comparator.EXACT or not order.caseable:
        raise Refused(Code.UNSUPPORTED, "a jury judges only jobs that are exact and caseable")
    blind = next(
        blind
        for batch in receipt.batches
        for entry, blind in zip(batch.message.ordered, batch.message.blinds, strict=True)
        if entry.assignment_hash == own.commit.message.assignment_hash
    )
    run = CaseRun(own.index, blind, own.assignment, own.commit)
    return AppealEvidence(CaseJob(receipt.session, receipt.order), run, receipt.verdict, own.reveal)
