"""Broken rules of orders, quotes, windows, waiting and stopping (PROTOCOL §4)."""

from quorate_coordinator.core.jobs import client_signatures, orders, provider_answers
from quorate_coordinator.core.matching import nearest_offer, work_windows
from quorate_coordinator.core.model import lease
from quorate_coordinator.core.model.entities import Job
from quorate_protocol.rules import quotes, settlement
from sim.mutants import Mutant, Patch, only
from sim.plan import Behaviour, Market

INTRUDED = only(lambda plan: plan.has_intruder and plan.market is not Market.TINY)
ABSENT = only(lambda plan: plan.has_absent_inputs)
SITTING = only(lambda plan: bool({Behaviour.SLEEPER, Behaviour.LATE} & set(plan.behaviours)))
STOPPING = only(lambda plan: any(job.stop_after is not None for job in plan.jobs))


def _lonely_prices(patch: Patch) -> None:
    patch.setattr(nearest_offer, "lonely_price", lambda *arguments: None)


def _two_executions_are_enough(patch: Patch) -> None:
    patch.setattr(orders, "EXECUTIONS_VERIFIED", 2)


def _budgets_cover_one(patch: Patch) -> None:
    patch.setattr(settlement, "executions_priced", lambda rule: 1)


def _any_quote(patch: Patch) -> None:
    patch.setattr(quotes, "check", lambda accept, spec: None)


def _jobs_wait_until_expiry(patch: Patch) -> None:
    expiry = property(lambda job: job.submission.order.message.expiry)
    patch.setattr(Job, "waits_until", expiry)


def _clients_have_no_window(patch: Patch) -> None:
    patch.setattr(work_windows, "halve_client", lambda context, account: None)


def _lapses_narrow_nothing(patch: Patch) -> None:
    patch.setattr(work_windows, "halve", lambda context, found: None)


def _stopped_jobs_go_on_waiting(patch: Patch) -> None:
    patch.setattr(client_signatures, "end_unpaid", lambda context, job, reason: job)


def _stops_free_no_money(patch: Patch) -> None:
    patch.setattr(client_signatures, "_costs", lambda context, job, lease: job.reserved)


def _fetching_lasts_for_ever(patch: Patch) -> None:
    patch.setattr(lease, "_fetches_too_long", lambda phase, limits: False)


def _fetch_failures_end_nothing(patch: Patch) -> None:
    patch.setattr(provider_answers, "on_decline", lambda context, event: None)


MUTANTS = (
    Mutant("an order at a lonely price is taken", "I3", _lonely_prices, INTRUDED),
    Mutant("two executions are enough for an order", "I3", _two_executions_are_enough, INTRUDED),
    Mutant("a budget for one execution is enough", "I3", _budgets_cover_one, INTRUDED),
    Mutant("any quote is taken", "I7", _any_quote, INTRUDED),
    Mutant("a job waits until its order expires", "I7", _jobs_wait_until_expiry, ABSENT),
    Mutant("a client has no window", "I7", _clients_have_no_window, ABSENT),
    Mutant("a lapse does not halve a window", "I7", _lapses_narrow_nothing),
    Mutant("a stopped job goes on waiting", "I4", _stopped_jobs_go_on_waiting, STOPPING),
    Mutant("a Stop frees no money", "I4", _stops_free_no_money, STOPPING),
    Mutant("fetching lasts for ever", "I7", _fetching_lasts_for_ever, SITTING),
    Mutant("what is given up stays taken", "I7", _fetch_failures_end_nothing, ABSENT),
)
