"""The simulator finds what it is there to find: each seeded mutant of a rule is caught within a few seeds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from quorate_coordinator.core import chain_notes, closing, draws, ledger, orders, placing
from quorate_node.core import capacity, execution
from quorate_protocol import lease, settlement
from quorate_protocol.commitment import result_digest
from quorate_protocol.messages import Commit, Reveal
from quorate_protocol.units import Amount, Hash32, Round
from sim import plan
from sim.run import play

Mutate = Callable[[pytest.MonkeyPatch], None]


def _copied_commitments_open(patch: pytest.MonkeyPatch) -> None:
    def check(commit: Commit, reveal: Reveal) -> Hash32:
        return result_digest(reveal.exit_status, reveal.output_digest)

    patch.setattr(lease, "check_opens", check)
    patch.setattr("sim.coordinator.check_opens", check)


def _auditors_are_drawn_by_a_known_round(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draws, "first_usable_round", lambda turn, named: Round(draws.round_at(turn, turn.at)))


def _the_same_owner_may_audit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draws, "used_slots", lambda turn, job: [])
    patch.setattr("quorate_protocol.audit._same_party", lambda one, other: False)


def _the_fee_is_charged_twice(patch: pytest.MonkeyPatch) -> None:
    split = settlement.split

    def doubled(*arguments: object) -> settlement.Split:
        found = split(*arguments)  # type: ignore[arg-type]
        return replace(found, charged=Amount(found.charged + found.fee), fee=Amount(2 * found.fee))

    patch.setattr(settlement, "split", doubled)


def _a_run_slot_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(capacity, "free", lambda *arguments: 1)
    patch.setattr(capacity, "taken", lambda *arguments: 0)
    patch.setattr("quorate_coordinator.core.book.free_slots", lambda *arguments: 1)


def _stopped_jobs_are_compared(patch: pytest.MonkeyPatch) -> None:
    after = placing._after_commit
    patch.setattr(placing, "_after_commit", lambda turn, job, held: after(turn, replace(job, stop=None), held))


def _cases_told_again_are_new(patch: pytest.MonkeyPatch) -> None:
    def opened(turn, note):  # type: ignore[no-untyped-def]
        turn.state.cases[f"foreign-{note.case_id}-{turn.at}"] = chain_notes.Case(f"foreign-{note.case_id}-{turn.at}", note.accused, (), ())

    patch.setattr(chain_notes, "_case_opened", opened)


def _a_job_may_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(closing, "decide_if_open", lambda turn, job: None)


def _silence_is_never_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "_tick", lambda held, at: (held, ()))


def _two_commits_are_taken(patch: pytest.MonkeyPatch) -> None:
    def commit(held, envelope, at):  # type: ignore[no-untyped-def]
        if isinstance(held.phase, lease.Accepted | lease.Committed):
            return lease._to(held, lease.Committed(envelope, at), lease.Effect.SLOT_FREED)
        return held, ()

    patch.setattr(lease, "_commit", commit)


def _old_statements_are_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("quorate_node.core.provider.ProviderCore._statement", lambda core, event: ())


def _reveals_before_the_set(patch: pytest.MonkeyPatch) -> None:
    enter = execution._enter

    def eager(found, phase):  # type: ignore[no-untyped-def]
        moved, due = enter(found, phase)
        if isinstance(phase, execution.Committed):
            due = (*due, execution.effects.SendReveal(found.hash, found.coordinator, phase.reveal, found.commit_by))
        return moved, due

    patch.setattr(execution, "_enter", eager)
    patch.setattr(lease, "_reveal", lambda held, reveal, at: (held, ()))


def _acks_hide_another_secret(patch: pytest.MonkeyPatch) -> None:
    counter = iter(range(10**9))
    patch.setattr(orders, "secret_hash", lambda secret: Hash32(next(counter).to_bytes(32, "big")))


def _charges_beyond_the_reservation(patch: pytest.MonkeyPatch) -> None:
    # It takes a poor client and a program that answers differently each time.
    patch.setattr("sim.workload.KINDS", ("random", "random", "times-out"))
    patch.setattr("sim.run.draw", lambda seed: replace(plan.draw(seed), is_poor=True))
    patch.setattr(ledger, "_room", lambda turn, job: job.submission.order.message.budget)


# Where to look: the seeds at which each was seen to be caught, and some more, because a change of the plan moves them.
MUTANTS: dict[Mutate, range] = {
    _copied_commitments_open: range(5, 40),
    _auditors_are_drawn_by_a_known_round: range(1, 6),
    _the_same_owner_may_audit: range(1, 12),
    _the_fee_is_charged_twice: range(1, 6),
    _a_run_slot_is_given_twice: range(1, 20),
    _stopped_jobs_are_compared: range(100, 140),
    _cases_told_again_are_new: range(150, 200),
    _a_job_may_wait_for_ever: range(1, 8),
    _silence_is_never_noticed: range(1, 20),
    _two_commits_are_taken: range(1, 30),
    _old_statements_are_taken: range(1, 6),
    _reveals_before_the_set: range(1, 6),
    _acks_hide_another_secret: range(1, 6),
    _charges_beyond_the_reservation: range(25, 60),
}


@pytest.mark.parametrize(("mutate", "seeds"), MUTANTS.items(), ids=lambda item: getattr(item, "__name__", ""))
def test_mutant_is_caught(mutate: Mutate, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert any(play(seed)[2] is not None for seed in seeds), f"nobody noticed within {len(seeds)} seeds"
