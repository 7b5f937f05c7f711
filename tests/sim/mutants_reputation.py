"""Broken rules of the public log: what the coordinator keeps beside what it publishes."""

from collections.abc import Mapping
from types import SimpleNamespace

from quorate_coordinator.core.audit import summaries
from quorate_coordinator.core.model.effects import AppendSummary, Effect
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.messages.signed import Summary
from quorate_protocol.rules.reputation import fold
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.units import Address, ExecutionEnd
from quorate_protocol.values import replace
from sim.mutants import Mutant, Patch, only
from sim.plan import Behaviour

WITH_LIARS = only(lambda plan: Behaviour.LIAR in plan.behaviours)


def _faults_are_forgiven(patch: Patch) -> None:
    """The coordinator keeps another table of trust than its log gives."""

    def forgiving(known: Mapping[Address, Trusts], summary: Summary) -> Mapping[Address, Trusts]:
        ends = {ExecutionEnd.FAULTED: ExecutionEnd.AGREED}
        executions = tuple(
            replace(item, end=ends.get(item.end, item.end)) for item in summary.executions
        )
        return fold.after_summary(known, replace(summary, executions=executions))

    names = vars(fold) | {"after_summary": forgiving}
    patch.setattr(summaries, "fold", SimpleNamespace(**names))


def _lines_are_not_published(patch: Patch) -> None:
    """The coordinator counts lines that it never writes."""
    emit = StepContext.emit

    def silent(context: StepContext, effect: Effect) -> None:
        if not (isinstance(effect, AppendSummary) and effect.line.message.seq == 1):
            emit(context, effect)

    patch.setattr(StepContext, "emit", silent)


MUTANTS = (
    Mutant("faults are forgiven beside the log", "I10", _faults_are_forgiven, WITH_LIARS),
    Mutant("a line of the log is kept back", "I6", _lines_are_not_published),
)
