"""The Cases contract: it checks the evidence of a case and opens it at Court (PROTOCOL §5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import astuple

from quorate_contracts.bindings.calls import Call, Contract, words
from quorate_contracts.bindings.court import CaseExecution, CaseJob, CaseRun
from quorate_protocol.limits import CASE_EXECUTIONS_MAX, JURORS, Limits
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Assignment, Commit, Order, Session
from quorate_protocol.units import Amount, Price, Seconds


@dataclass(frozen=True, slots=True)
class Cases(Contract):
    """Checks evidence and opens cases. Court pulls the bond, so Court needs the approval."""

    NAME: ClassVar[str] = "Cases"

    def open_case(self, executions: Sequence[CaseExecution]) -> Call:
        """Accuses a provider, after an approval of `case_bond` to Court, with two executions for
        different clients, or three.
        """
        assert 2 <= len(executions) <= CASE_EXECUTIONS_MAX, "a case names two or three executions"
        return self._call(
            "open_case",
            600_000 + 150_000 * len(executions),
            [
                (_job(each.job), _run(each.run), _run(each.contradiction), each.path)
                for each in executions
            ],
        )


def jury_pay(order: Order, price: Price, max_duration: Seconds, limits: Limits) -> Amount:
    """Returns what each juror gets for one execution (PROTOCOL §5)."""
    return Amount(max(min(price * max_duration // 3600, order.budget), limits.jury_pay_min))


def case_bond(executions: Sequence[CaseExecution], limits: Limits) -> Amount:
    """Returns the bond of the accuser: the pay and the gas of a whole jury (PROTOCOL §5)."""
    runs = ((each.job, each.run) for each in executions)
    return Amount(JURORS * (sum(_pay(*each, limits) for each in runs) + limits.jury_gas_fee))


def _pay(job: CaseJob, run: CaseRun, limits: Limits) -> Amount:
    body = run.assignment.message
    return jury_pay(job.order.message, body.price_per_hour, body.max_duration, limits)


def _job(job: CaseJob) -> tuple[object, ...]:
    return (*_signed(job.session), *_signed(job.order))


def _run(run: CaseRun) -> tuple[object, ...]:
    return (run.index, run.blind, *_signed(run.assignment), *_signed(run.commit))


def _signed(
    envelope: Envelope[Session] | Envelope[Order] | Envelope[Assignment] | Envelope[Commit],
) -> tuple[object, ...]:
    return astuple(envelope.message), words(envelope.sig)
