"""Broken rules of the protocol itself: leases, commitments, draws, verdicts, records."""

from quorate_coordinator.core.jobs import provider_answers
from quorate_coordinator.core.model import entities, lease
from quorate_protocol.messages import eligible_list
from quorate_protocol.messages.commitment import result_digest
from quorate_protocol.messages.signed import Commit, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import agreement, audit_draw, trust_record, verdict
from quorate_protocol.rules.receipts import receipt_draws
from quorate_protocol.units import Hash32, Label, UnixSeconds
from quorate_protocol.values import replace
from sim.mutants import Mutant, Patch, only
from sim.plan import Behaviour, Market

LATE = only(lambda plan: Behaviour.LATE in plan.behaviours or plan.weather.longest > 100)
MUTE_BESIDE_A_LIAR = only(
    lambda plan: (
        {Behaviour.MUTE, Behaviour.LIAR} <= set(plan.behaviours) and plan.market is Market.SMALL
    )
)
COPYING = only(lambda plan: Behaviour.COPIER in plan.behaviours)


def _without_code(patch: Patch, name: str, code: Code, otherwise: object) -> None:
    """Removes the check of one code: the function is called again at a time that passes."""
    function = getattr(lease, name)

    def checked(held, *arguments):  # type: ignore[no-untyped-def]
        try:
            return function(held, *arguments)
        except Refused as refused:
            if refused.code is not code:
                raise
            return otherwise(function, held, *arguments)  # type: ignore[operator]

    patch.setattr(lease, name, checked)


def _late_accepts(patch: Patch) -> None:
    def earlier(function, held, accept, at, limits):  # type: ignore[no-untyped-def]
        return function(held, accept, held.assignment.message.accept_by, limits)

    _without_code(patch, "_accept", Code.TOO_LATE, earlier)


def _late_commits(patch: Patch) -> None:
    _without_code(
        patch,
        "_commit",
        Code.TOO_LATE,
        lambda function, held, commit, at, known, limits: function(
            held, commit, held.phase.commit_by, held.phase.commit_by, limits
        ),
    )
    patch.setattr(lease, "_tick", _lapses_later(lease._tick))  # type: ignore[no-untyped-call]


def _lapses_later(tick):  # type: ignore[no-untyped-def]
    """The lapse comes later as well; otherwise it would hide the mutant."""

    def later(held, at, limits):  # type: ignore[no-untyped-def]
        is_open = isinstance(held.phase, lease.Accepted)
        return tick(held, UnixSeconds(at - 60) if is_open else at, limits)

    return later


def _late_reveals(patch: Patch) -> None:
    _without_code(
        patch,
        "_reveal",
        Code.TOO_LATE,
        lambda function, held, reveal, at: function(held, reveal, held.phase.reveal_by),
    )
    tick = lease._tick
    patch.setattr(
        lease,
        "_tick",
        lambda held, at, limits: tick(
            held, UnixSeconds(at - 30) if isinstance(held.phase, lease.Closed) else at, limits
        ),
    )


def _any_class(patch: Patch) -> None:
    patch.setattr(provider_answers, "_check_class", lambda context, held, commit: None)


def _silence_is_never_noticed(patch: Patch) -> None:
    patch.setattr(lease, "_tick", lambda held, at, limits: (held, ()))


def _two_commits(patch: Patch) -> None:
    def commit(held, envelope, at, known, limits):  # type: ignore[no-untyped-def]
        if isinstance(held.phase, lease.Accepted | lease.Committed):
            return lease._to(held, lease.Committed(envelope, at), lease.Effect.SLOT_FREED)
        return held, ()

    patch.setattr(lease, "_commit", commit)


def _copied_commitments_open(patch: Patch) -> None:
    def check(commit: Commit, reveal: Reveal) -> Hash32:
        return result_digest(reveal.exit_status, reveal.output_digest)

    patch.setattr(lease, "check_opens", check)
    patch.setattr("sim.coordinator.check_opens", check)


def _reveals_of_anybody(patch: Patch) -> None:
    _without_code(
        patch, "_reveal", Code.WRONG_SIGNER, lambda function, held, reveal, at: (held, ())
    )


def _reveals_before_the_set(patch: Patch) -> None:
    patch.setattr(lease, "_reveal", lambda held, reveal, at: (held, ()))
    patch.setattr("sim.coordinator.CoordinatorDaemon._check_reveal", lambda daemon, reveal: None)


def _one_is_a_quorum(patch: Patch) -> None:
    suffices = verdict._suffices
    patch.setattr(
        verdict,
        "_suffices",
        lambda rule, tier, executions, groups, best: suffices(
            Label.NONE, tier, executions, groups, best
        ),
    )


def _three_are_a_quorum(patch: Patch) -> None:
    def suffices(rule, tier, executions, groups, best):  # type: ignore[no-untyped-def]
        return len(best) >= 3 if rule is Label.QUORUM_2 else len(best) >= 1

    patch.setattr(verdict, "_suffices", suffices)


def _nobody_is_faulted(patch: Patch) -> None:
    decide = verdict.decide

    def decided(*arguments):  # type: ignore[no-untyped-def]
        found = decide(*arguments)
        return replace(found, faulted=()) if isinstance(found, verdict.Accepted) else found

    patch.setattr(verdict, "decide", decided)


def _the_smallest_group_wins(patch: Patch) -> None:
    groups = agreement.groups
    patch.setattr(agreement, "groups", lambda *known: sorted(groups(*known), key=len)[:1])


def _all_agree_within_a_tolerance(patch: Patch) -> None:
    patch.setattr(
        agreement.Agreement,
        "distance",
        lambda known, one, other: 0 if one == other or not known.is_exact else None,
    )


def _a_result_outside_a_tolerance_is_a_fault(patch: Patch) -> None:
    patch.setattr(entities.Job, "is_exact", property(lambda job: True))


def _never_audited(patch: Patch) -> None:
    patch.setattr(audit_draw, "is_audited", lambda seed, rate: False)


def _another_rate(patch: Patch) -> None:
    rate = audit_draw.rate_ppm
    patch.setattr(audit_draw, "rate_ppm", lambda *arguments: rate(*arguments) // 2)


def _another_draw(patch: Patch) -> None:
    patch.setattr(audit_draw, "slot_index", lambda seed, attempt, length: attempt % length)


def _same_owner_audits(patch: Patch) -> None:
    patch.setattr("quorate_coordinator.core.audit.draw.used_slots", lambda context, job: [])
    patch.setattr(audit_draw, "_same_party", lambda one, other: False)


def _shown_slots_are_believed(patch: Patch) -> None:
    patch.setattr(eligible_list.ShownSlot, "is_under", lambda shown, root: True)


def _tries_need_not_be_shown(patch: Patch) -> None:
    patch.setattr(receipt_draws, "_shown", lambda body, touched: ())


def _parties_are_not_their_slots(patch: Patch) -> None:
    patch.setattr(receipt_draws, "_are_parties", lambda body, drawn: True)


def _all_are_of_the_primarys_pool(patch: Patch) -> None:
    patch.setattr(entities.Job, "place_of", lambda job, slot: (job.pool.id(), -1))


def _any_round_draws_a_dispute(patch: Patch) -> None:
    patch.setattr(receipt_draws, "_rounds", lambda body: ())


def _silence_alone_is_a_fault(patch: Patch) -> None:
    patch.setattr(verdict, "has_lapsed", lambda execution: False)


def _faults_leave_no_strike(patch: Patch) -> None:
    patch.setattr(
        trust_record,
        "after_audit",
        lambda known, passed, now: replace(known, passed=known.passed + 1) if passed else known,
    )


def _kills_are_believed(patch: Patch) -> None:
    suffices = verdict._adaptive_suffices

    def believing(tier, executions, groups, best):  # type: ignore[no-untyped-def]
        return suffices(tier, [replace(item, is_killed=False) for item in executions], groups, best)

    patch.setattr(verdict, "_adaptive_suffices", believing)


def _passes_count_twice(patch: Patch) -> None:
    after = trust_record.after_audit

    def twice(known, passed, now):  # type: ignore[no-untyped-def]
        return (
            after(after(known, passed, now), passed, now) if passed else after(known, passed, now)
        )

    patch.setattr(trust_record, "after_audit", twice)


MUTANTS = (
    Mutant(
        "an Accept after acceptBy is taken",
        "I7",
        _late_accepts,
        only(lambda plan: plan.weather.longest > 100),
    ),
    Mutant("a Commit after commitBy is taken", "I7", _late_commits),
    Mutant("a reveal after revealBy is taken", "I7", _late_reveals, LATE),
    Mutant(
        "a Commit of another class is taken", "I3", _any_class, only(lambda plan: plan.has_intruder)
    ),
    Mutant(
        "silence is never noticed",
        "I7",
        _silence_is_never_noticed,
        only(lambda plan: Behaviour.SLEEPER in plan.behaviours),
    ),
    Mutant(
        "a second Commit replaces the first",
        "I8",
        _two_commits,
        only(lambda plan: Behaviour.EQUIVOCATOR in plan.behaviours),
    ),
    Mutant("a copied commitment opens", "I8", _copied_commitments_open, COPYING),
    Mutant("a reveal in another's name is a repeat", "I8", _reveals_of_anybody, COPYING),
    Mutant(
        "a reveal before its CommitSet is taken",
        "I8",
        _reveals_before_the_set,
        only(lambda plan: plan.has_intruder),
    ),
    Mutant(
        "one result is a quorum",
        "I3",
        _one_is_a_quorum,
        only(lambda plan: plan.market is Market.SMALL),
    ),
    Mutant(
        "a quorum needs one more",
        "I3",
        _three_are_a_quorum,
        only(lambda plan: plan.market is Market.SMALL),
    ),
    Mutant(
        "the outvoted are not named",
        "I5",
        _nobody_is_faulted,
        only(lambda plan: Behaviour.LIAR in plan.behaviours),
    ),
    Mutant(
        "the smaller group wins",
        "I3",
        _the_smallest_group_wins,
        only(lambda plan: Behaviour.LIAR in plan.behaviours),
    ),
    Mutant("all agree within a tolerance", "I3", _all_agree_within_a_tolerance),
    Mutant("noise is a fault", "I5", _a_result_outside_a_tolerance_is_a_fault),
    Mutant("the beacon's audits are left out", "I9", _never_audited),
    Mutant("the audit rate is halved", "I10", _another_rate),
    Mutant("auditors are taken in order", "I9", _another_draw),
    Mutant("the same owner is drawn twice", "I9", _same_owner_audits),
    Mutant("what is shown of a list is believed", "I9", _shown_slots_are_believed),
    Mutant("tries need not be shown", "I9", _tries_need_not_be_shown),
    Mutant("auditors are not who their slots are", "I9", _parties_are_not_their_slots),
    Mutant(
        "an auditor is asked for the primary's pool",
        "I9",
        _all_are_of_the_primarys_pool,
        only(lambda plan: plan.has_two_pools),
    ),
    Mutant("any round may draw a dispute", "I9", _any_round_draws_a_dispute),
    Mutant(
        "silence alone in a batch is a fault", "I5", _silence_alone_is_a_fault, MUTE_BESIDE_A_LIAR
    ),
    Mutant(
        "faults leave no strike",
        "I10",
        _faults_leave_no_strike,
        only(lambda plan: Behaviour.LIAR in plan.behaviours),
    ),
    Mutant(
        "a time-out needs no audit",
        "I4",
        _kills_are_believed,
        only(lambda plan: plan.market is Market.LARGE),
    ),
    Mutant("a passed audit counts twice", "I10", _passes_count_twice),
)
