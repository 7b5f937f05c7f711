"""Broken rules of the provider: when it reveals, what it signs, which messages it trusts."""

from quorate_node.core import capacity, debts, effects, events, execution, jury_duty
from quorate_node.core.phases import Committed, Revealed
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import Reconciled
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.values import replace
from sim.mutants import Mutant, Patch, changed, only
from sim.plan import Behaviour, Market

INTRUDED = only(lambda plan: plan.has_intruder)
CRASHING = only(lambda plan: plan.crash_chance > 0.005)
CASES = only(
    lambda plan: (
        Behaviour.LIAR in plan.behaviours and len(plan.jobs) >= 8 and plan.market is Market.SMALL
    )
)

STINGY = changed(is_stingy=True, capital=0, trust=1_000)
FUNDED = changed(funded_job=1, sleeps_at_funded=True, is_poor=False)
GPUS = only(lambda plan: plan.has_gpus)
LOST_GPUS = only(lambda plan: len(plan.gpu_losses) > 1)


def _reveals_before_the_set(patch: Patch) -> None:
    enter = execution._enter

    def eager(found, phase):  # type: ignore[no-untyped-def]
        moved, due = enter(found, phase)
        if isinstance(phase, Committed):
            due = (
                *due,
                effects.SendReveal(
                    found.assignment_hash, found.coordinator, phase.reveal, found.commit_by
                ),
            )
        return moved, due

    patch.setattr(execution, "_enter", eager)
    patch.setattr(
        "quorate_coordinator.core.model.lease._reveal", lambda held, reveal, at: (held, ())
    )


def _commit_sets_without(code: Code):  # type: ignore[no-untyped-def]
    def mutate(patch: Patch) -> None:
        commit_set = execution._commit_set

        def taken(found, event, at, terms):  # type: ignore[no-untyped-def]
            try:
                return commit_set(found, event, at, terms)
            except Refused as refused:
                if refused.code is not code:
                    raise
                return execution._enter(
                    found, Revealed(found.phase.commit, found.phase.reveal, event.commit_set)
                )

        patch.setattr(execution, "_commit_set", taken)

    return mutate


def _signers_are_not_checked(patch: Patch) -> None:
    patch.setattr(execution, "_check_signer", lambda found, signer, terms: None)


def _late_assignments(patch: Patch) -> None:
    assigned = ProviderCore._on_assignment
    patch.setattr(
        ProviderCore,
        "_on_assignment",
        lambda core, event, at: assigned(core, event, min(at, event.assignment.message.accept_by)),
    )


def _assignments_of_anybody(patch: Patch) -> None:
    assigned = ProviderCore._on_assignment

    def taken(core, event, at):  # type: ignore[no-untyped-def]
        own = core.terms.statement_keys.get(event.assignment.message.coordinator, event.signer)
        return assigned(core, replace(event, signer=own), at)

    patch.setattr(ProviderCore, "_on_assignment", taken)


def _owners_trust_anybody(patch: Patch) -> None:
    patch.setattr(debts, "why_unsecured", lambda debt, owed, most, policy: None)


def _vouchers_of_strangers(patch: Patch) -> None:
    patch.setattr(debts, "check_voucher", lambda *arguments: None)


def _no_evidence_is_kept(patch: Patch) -> None:
    patch.setattr(execution, "_fits", lambda found, event, terms: False)


def _a_new_salt_for_each_commit(patch: Patch) -> None:
    step = execution.step

    def salted(found, event, at, random, terms):  # type: ignore[no-untyped-def]
        moved, due = step(found, event, at, random, terms)
        if isinstance(moved.phase, Committed) and isinstance(event, events.Tick):
            commit = replace(moved.phase.commit, commitment=random)
            moved = moved.to(replace(moved.phase, commit=commit))
            return moved, execution.duties(moved)
        return moved, due

    patch.setattr(execution, "step", salted)


def _runs_again_after_a_crash(patch: Patch) -> None:
    patch.setattr(
        "sim.provider.reconcile",
        lambda desired, duties, observed, terms: Reconciled((), tuple(observed)),
    )


def _ballots_open_while_others_vote(patch: Patch) -> None:
    patch.setattr(jury_duty, "ballot", lambda execution, juror, salt, digest: digest)


def _gpus_are_given_twice(patch: Patch) -> None:
    def of_class(terms, pool, executions, jury, gone):  # type: ignore[no-untyped-def]
        return capacity.present_groups(terms.run_slots(pool), gone)

    patch.setattr(capacity, "free_groups", of_class)
    patch.setattr(capacity, "held_gpus", lambda executions, jury: frozenset())


def _lost_gpus_do_not_matter(patch: Patch) -> None:
    patch.setattr(execution, "lose_gpus", lambda found, gone, at: (found, ()))


MUTANTS = (
    Mutant("an owner works on trust without bound", "I3", _owners_trust_anybody, STINGY),
    Mutant("a stranger's voucher is believed", "I10", _vouchers_of_strangers, INTRUDED),
    Mutant("an owner keeps no evidence", "I3", _no_evidence_is_kept, FUNDED),
    Mutant("a GPU is given to two leases", "I2", _gpus_are_given_twice, GPUS),
    Mutant("a result of a lost GPU counts", "I3", _lost_gpus_do_not_matter, LOST_GPUS),
    Mutant("a provider reveals before the CommitSet", "I8", _reveals_before_the_set),
    Mutant("a stale CommitSet opens a result", "I8", _commit_sets_without(Code.STALE), INTRUDED),
    Mutant(
        "a CommitSet from the future opens a result",
        "I8",
        _commit_sets_without(Code.TOO_EARLY),
        INTRUDED,
    ),
    Mutant(
        "a CommitSet without its Commit opens it",
        "I8",
        _commit_sets_without(Code.UNKNOWN),
        INTRUDED,
    ),
    Mutant(
        "a second CommitSet is believed", "I8", _commit_sets_without(Code.EQUIVOCATION), INTRUDED
    ),
    Mutant("a provider believes any signer", "I5", _signers_are_not_checked, INTRUDED),
    Mutant("an Assignment after acceptBy is taken", "I7", _late_assignments, INTRUDED),
    Mutant("Assignments of strangers are run", "I5", _assignments_of_anybody, INTRUDED),
    Mutant(
        "a Commit sent again has a new salt",
        "I8",
        _a_new_salt_for_each_commit,
        only(lambda plan: plan.weather.drop > 0),
    ),
    Mutant("a restart removes what runs", "I6", _runs_again_after_a_crash, CRASHING),
    Mutant("a jury's ballots bind to nothing", "I5", _ballots_open_while_others_vote, CASES),
)
