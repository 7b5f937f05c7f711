"""Broken rules about the confirmation of faults (PROTOCOL §5 Faults)."""

import dataclasses

from quorate_coordinator.core.audit import faults, repeats, unverifiable, verdicts
from quorate_coordinator.core.model.market_index import MarketIndex
from quorate_protocol.rules import audit_draw, confirmation, verdict
from quorate_protocol.units import UnixSeconds
from sim.mutants import Mutant, Patch, only
from sim.plan import CALM, Behaviour, Market, Plan

LIARS = only(lambda plan: plan.market is Market.SMALL and Behaviour.LIAR in plan.behaviours)
COINS = only(lambda plan: plan.market is Market.SMALL and plan.has_coin_flips)


def _coins_at_last(plan: Plan) -> Plan | None:
    """Coins all the time, and orders also when the first of them are decided."""
    if plan.market is not Market.SMALL or any(
        kind is not Behaviour.HONEST for kind in plan.behaviours
    ):
        return None
    jobs = tuple(dataclasses.replace(job, at=job.at * 2, stop_after=None) for job in plan.jobs)
    return dataclasses.replace(plan, has_coin_flips=True, jobs=jobs, weather=CALM, cuts=())


def _two_that_hear(plan: Plan) -> Plan | None:
    """Many owners, and all but two are deaf: so a draw meets more silence than may be."""
    deaf = len(plan.behaviours) - 2
    behaviours = *plan.behaviours[:2], *[Behaviour.DEAF] * deaf
    return dataclasses.replace(plan, behaviours=behaviours) if deaf >= 4 else None


def _faults_are_not_confirmed(patch: Patch) -> None:
    patch.setattr(confirmation, "missing", lambda found, result, class_id: 0)


def _one_repeat_confirms(patch: Patch) -> None:
    patch.setattr(confirmation, "REPEATS", 1)


def _confirmed_faults_are_spared(patch: Patch) -> None:
    patch.setattr(repeats, "begin", lambda context, job, group, wanted: job)
    patch.setattr(verdicts, "EXECUTIONS_MAX", 0)


def _who_contradicts_itself_counts(patch: Patch) -> None:
    patch.setattr(confirmation, "contradicted", lambda repeats: frozenset())


def _one_owner_sets_an_image_aside(patch: Patch) -> None:
    patch.setattr(confirmation, "RANDOM_OWNERS", 1)


def _images_with_two_results_are_verified(patch: Patch) -> None:
    patch.setattr(unverifiable, "until", lambda context, submission: UnixSeconds(0))


def _three_results_end_no_job(patch: Patch) -> None:
    patch.setattr(verdict, "_has_differed", lambda rule, agreement, results: False)


def _faults_of_anybody_count(patch: Patch) -> None:
    patch.setattr(faults, "counted", lambda context, job, faulted: list(faulted))


def _silence_ends_no_draw(patch: Patch) -> None:
    patch.setattr(audit_draw, "is_ended", lambda skips, batch, draw_pass: False)


def _withdrawals_are_ignored(patch: Patch) -> None:
    patch.setattr(MarketIndex, "withdrawals", lambda market, pool: ())


MUTANTS = (
    Mutant(
        "three results end no job",
        "I4",
        _three_results_end_no_job,
        only(lambda plan: plan.market is Market.SMALL),
    ),
    Mutant("a fault over anybody's job counts", "5.119", _faults_of_anybody_count, LIARS),
    Mutant("silence ends no draw", "I9", _silence_ends_no_draw, _two_that_hear),
    Mutant("who withdrew is left out without a word", "I9", _withdrawals_are_ignored),
    Mutant("a fault needs no confirmation", "I5", _faults_are_not_confirmed, LIARS),
    Mutant("one repeat confirms a fault", "I5", _one_repeat_confirms, LIARS),
    Mutant("a confirmed fault is spared", "I5", _confirmed_faults_are_spared, LIARS),
    Mutant("who contradicts itself still counts", "I5", _who_contradicts_itself_counts, COINS),
    Mutant("one owner sets an image aside", "I5", _one_owner_sets_an_image_aside, COINS),
    Mutant(
        "an image with two results is verified",
        "I5",
        _images_with_two_results_are_verified,
        _coins_at_last,
    ),
)
