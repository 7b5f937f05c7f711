"""Broken rules of the coordinator: signers, matching, draws, closing, answers."""

import dataclasses
import os

from quorate_coordinator.core import views
from quorate_coordinator.core.audit import batches, faults, verdicts
from quorate_coordinator.core.audit import draw as draw_module
from quorate_coordinator.core.jobs import advance, client_signatures, deadlines, orders, places
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model import beacon_time, nonces
from quorate_coordinator.core.model.accusations import Fault
from quorate_coordinator.core.model.entities import Provider
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import held_pay
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.views import SealedOutput
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Round, Seconds, UnixSeconds
from quorate_protocol.values import replace
from sim.mutants import Mutant, Patch, changed, only
from sim.plan import CALM, Behaviour, ClockFault, JobPlan, Market, Plan, Window

INTRUDED = only(lambda plan: plan.has_intruder)
LATE_CLOCK = changed(
    clocks=(ClockFault("coordinator", -4.0, 0.0, 0.0, 0.0),)
)  # late, but its Assignments still come in time
NODES = ("coordinator", "client-0", "client-1", *(f"provider-{number}" for number in range(8)))
ALL_LATE = changed(
    clocks=tuple(ClockFault(node, -60.0, 0.0, 0.0, 0.0) for node in NODES)
)  # only the beacon is in time
ROTATING = only(lambda plan: len(plan.rotations) > 1 and plan.has_intruder)
LARGE = only(lambda plan: plan.market is Market.LARGE)


def _anybody_may_sign(patch: Patch) -> None:
    patch.setattr(offers, "registered", lambda context, owner, key: context.state.providers[owner])


def _nonces_may_be_used_again(patch: Patch) -> None:
    patch.setattr(nonces.UsedNonces, "is_used", lambda used, nonce: False)


def _orders_without_money(patch: Patch) -> None:
    patch.setattr(orders, "_check_funds", lambda *arguments: None)


def _orders_on_an_old_block(patch: Patch) -> None:
    patch.setattr(orders, "_check_block", lambda context: None)


def _without_a_chain(plan: Plan) -> Plan | None:
    """The chain is away for longer than the deployment allows, which is five seconds here."""
    limits = replace(plan.limits, ack_age_max=Seconds(5))
    return (
        dataclasses.replace(plan, limits=limits, chain_outage=Window(4.0, 60.0), has_intruder=False)
        if plan.market is Market.SMALL
        else None
    )


def _busy(plan: Plan, behaviours: tuple[Behaviour, ...], seconds: float) -> Plan | None:
    """Twenty jobs of two clients, one every so many seconds, in calm weather."""
    if plan.market is not Market.SMALL:
        return None
    jobs = tuple(
        JobPlan(number % 2, number // 2 + 1, 1.0 + seconds * number, None) for number in range(20)
    )
    calm = dataclasses.replace(
        plan,
        behaviours=behaviours,
        jobs=jobs,
        weather=CALM,
        cuts=(),
        clocks=(),
        outage=None,
        rotations=(),
        leavings=(),
        sleeps=(),
        vanishes=None,
        is_stingy=False,
    )
    return dataclasses.replace(
        calm, crash_chance=0.0, leaver=None, is_poor=False, chain_outage=None
    )


def _acks_hide_another_secret(patch: Patch) -> None:
    counter = iter(range(10**9))
    patch.setattr(orders, "secret_hash", lambda secret: Hash32(next(counter).to_bytes(32, "big")))


def _too_few_owners_are_enough(patch: Patch) -> None:
    patch.setattr(orders, "OWNERS_MIN_QUORUM", 2)


def _known_rounds_draw(patch: Patch) -> None:
    patch.setattr(
        beacon_time, "first_usable_round", lambda context, *_: beacon_time.newest_round(context)
    )


def _fast_jobs_are_drawn_by_the_round_of_the_ack(patch: Patch) -> None:
    patch.setattr(beacon_time, "round_of_fast", beacon_time.newest_round)


def _fast_jobs_are_drawn_a_round_early(patch: Patch) -> None:
    following = beacon_time.round_of_fast
    patch.setattr(beacon_time, "round_of_fast", lambda context: Round(following(context) - 1))


def _fast_jobs_need_no_witness(patch: Patch) -> None:
    patch.setattr(deadlines, "_why_nobody_is_drawn", lambda context, job: "")


def _any_named_round_draws(patch: Patch) -> None:
    patch.setattr(
        beacon_time, "first_usable_round", lambda _, named, at: max(Round(1), Round(named - 4))
    )


def _rotated_keys_are_forgotten(patch: Patch) -> None:
    patch.setattr(Provider, "has_key", lambda provider, key, moment: key == provider.operator_key)


def _rotated_keys_stay(patch: Patch) -> None:
    def had(provider: Provider, key: Address, moment: UnixSeconds) -> bool:
        return key in {provider.operator_key, *(past.key for past in provider.past_keys)}

    patch.setattr(Provider, "has_key", had)


def _receipts_show_todays_key(patch: Patch) -> None:
    patch.setattr(Provider, "key_at", lambda provider, moment: provider.operator_key)


def _later_batches_use_known_rounds(patch: Patch) -> None:
    escalate = verdicts._escalate

    def early(context, job, count):  # type: ignore[no-untyped-def]
        now = escalate(context, job, count)
        return context.put(
            now, phase=replace(now.phase, round=Round(beacon_time.newest_round(context) - 1))
        )

    patch.setattr(verdicts, "_escalate", early)


def _disputes_go_on_at_once(patch: Patch) -> None:
    escalate = verdicts._escalate

    def soon(context, job, count):  # type: ignore[no-untyped-def]
        now = escalate(context, job, count)
        return context.put(
            now, phase=replace(now.phase, round=Round(beacon_time.newest_round(context) + 2))
        )

    patch.setattr(verdicts, "_escalate", soon)


def _empty_draws_use_a_later_round(patch: Patch) -> None:
    draw = draw_module.draw

    def drawn_again(context, job, phase, beacon, rate):  # type: ignore[no-untyped-def]
        return draw(
            context,
            context.put(job, beacons=(*job.beacons[:-1], beacon)) if phase.is_again else job,
            phase,
            beacon,
            rate,
        )

    patch.setattr(draw_module, "draw", drawn_again)


def _sets_are_dated_by_the_clock(patch: Patch) -> None:
    patch.setattr(beacon_time, "known_moment", lambda context: context.at)


def _held_jobs_are_looked_at_when_it_suits(patch: Patch) -> None:
    patch.setattr(
        held_pay, "_closed_at", lambda job: job.batches[-1].commit_set.message.closed_at + 2
    )


def _blinds_are_zero(patch: Patch) -> None:
    derive = StepContext.derive
    patch.setattr(
        StepContext,
        "derive",
        lambda context, label: ZERO_HASH if label == "blind" else derive(context, label),
    )


def _auditors_have_more_time(patch: Patch) -> None:
    assign_place = draw_module.assign_place

    def longer(context, job, place):  # type: ignore[no-untyped-def]
        rules = context.rules
        context.rules = replace(
            rules, limits=replace(rules.limits, accept_within=rules.limits.accept_within + 3)
        )
        try:
            return assign_place(context, job, place)
        finally:
            context.rules = rules

    patch.setattr(draw_module, "assign_place", longer)


def _chance_is_not_in_the_journal(patch: Patch) -> None:
    patch.setattr(StepContext, "derive", lambda context, label: hash_tuple(os.urandom(32), label))


def _free_slots_are_not_counted(patch: Patch) -> None:
    patch.setattr(offers, "free_slots", lambda *arguments: 1)
    patch.setattr("quorate_node.core.capacity.free", lambda *arguments: 1)
    patch.setattr("quorate_node.core.capacity.taken", lambda *arguments: 0)


def _batches_close_early(patch: Patch) -> None:
    committed_members = batches.committed_members

    def committed(context, phase):  # type: ignore[no-untyped-def]
        if phase.beacon is None:
            return committed_members(context, phase)
        hashes = [place.assignment_hash for place in phase.places if place.assignment_hash]
        members = [context.state.leases[assignment_hash] for assignment_hash in hashes]
        return [lease for lease in members if type(lease.phase).__name__ == "Committed"] or None

    patch.setattr(batches, "committed_members", committed)


def _stopped_jobs_are_compared(patch: Patch) -> None:
    advance_primary = advance._advance_primary
    patch.setattr(
        advance,
        "_advance_primary",
        lambda context, job, phase: advance_primary(context, replace(job, stop=None), phase),
    )


def _jobs_wait_for_ever(patch: Patch) -> None:
    patch.setattr(advance, "_advance_revealing", lambda context, job, phase: job)


def _lapsed_places_stay_empty(patch: Patch) -> None:
    patch.setattr(places, "reopen", lambda context, job, lease, retry_at: job)


def _killed_runs_are_faults(patch: Patch) -> None:
    patch.setattr(faults, "is_killed", lambda lease: False)


def _lapses_are_faults(patch: Patch) -> None:
    reopen = places.reopen

    def struck(context, job, lease, retry_at):  # type: ignore[no-untyped-def]
        known = context.state.faults.get(lease.provider) or ()
        client = job.submission.order.message.client
        fault = Fault(lease.assignment_hash, job.id, client, context.at)
        context.state.faults[lease.provider] = (*known, fault)
        return reopen(context, job, lease, retry_at)

    patch.setattr(places, "reopen", struck)


def _outputs_before_the_verdict(patch: Patch) -> None:
    run_view = views.run_view

    def early(state, job, is_client):  # type: ignore[no-untyped-def]
        view = run_view(state, job, is_client)
        opened = [state.leases[digest].phase for digest in job.leases]
        shown = [phase for phase in opened if type(phase).__name__ == "Revealed"]
        if view.output is None and shown:
            one = shown[0]
            output = SealedOutput(
                one.commit.message.encrypted_output,
                one.reveal.salt,
                one.reveal.output_digest,
                one.reveal.exit_status,
            )
            return replace(view, output=output)
        return view

    patch.setattr(views, "run_view", early)


def _late_witnesses(patch: Patch) -> None:
    on_witness = client_signatures.on_witness

    def taken(context, event):  # type: ignore[no-untyped-def]
        try:
            on_witness(context, event)
        except Refused as refused:
            if refused.code.value != "too-late":
                raise
            context.put(
                client_signatures._job_of(context, event.witness.message), witness=event.witness
            )

    patch.setattr(client_signatures, "on_witness", taken)


def _anybody_may_stop(patch: Patch) -> None:
    on_stop = client_signatures.on_stop

    def stopped(context, event):  # type: ignore[no-untyped-def]
        job = context.state.jobs.get(event.stop.message.job_id)
        on_stop(
            context,
            event
            if job is None
            else replace(event, key=job.submission.session.message.session_key),
        )

    patch.setattr(client_signatures, "on_stop", stopped)


def _held_jobs_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(held_pay, "draw_at_hold_end", lambda context, job: None)


def _tiny_and_intruded(plan: Plan) -> Plan | None:
    return dataclasses.replace(plan, has_intruder=True) if plan.market is Market.TINY else None


MUTANTS = (
    Mutant(
        "a fast job is drawn by the round of its Ack",
        "I9",
        _fast_jobs_are_drawn_by_the_round_of_the_ack,
    ),
    Mutant("a fast job is drawn a round early", "I9", _fast_jobs_are_drawn_a_round_early),
    Mutant("a fast job needs no witness", "I9", _fast_jobs_need_no_witness),
    Mutant("signatures of providers are not compared", "I5", _anybody_may_sign, INTRUDED),
    Mutant("a nonce may be used again", "I4", _nonces_may_be_used_again, INTRUDED),
    Mutant("orders without money are taken", "I4", _orders_without_money, INTRUDED),
    Mutant("orders are taken on an old block", "I9", _orders_on_an_old_block, _without_a_chain),
    Mutant(
        "two owners are enough for a quorum", "I3", _too_few_owners_are_enough, _tiny_and_intruded
    ),
    Mutant("the Ack hides another secret", "I9", _acks_hide_another_secret),
    Mutant("auditors are drawn by a known round", "I9", _known_rounds_draw),
    Mutant("the primary may name a known round", "I9", _any_named_round_draws),
    Mutant(
        "a late clock draws by rounds it has seen", "I9", _sets_are_dated_by_the_clock, ALL_LATE
    ),
    Mutant("a key rotated away answers for nothing", "I3", _rotated_keys_are_forgotten, ROTATING),
    Mutant("a key rotated away is good for ever", "I5", _rotated_keys_stay, ROTATING),
    Mutant("receipts show the key of today", "I5", _receipts_show_todays_key, ROTATING),
    Mutant("a later batch is drawn by a known round", "I9", _later_batches_use_known_rounds),
    Mutant("a coordinator chooses when a dispute goes on", "I9", _disputes_go_on_at_once),
    Mutant(
        "an empty draw is drawn again",
        "I9",
        _empty_draws_use_a_later_round,
        only(lambda plan: plan.market is Market.SMALL),
    ),
    Mutant("a late clock dates what it closes", "I9", _sets_are_dated_by_the_clock, LATE_CLOCK),
    Mutant(
        "held jobs are looked at when it suits", "I9", _held_jobs_are_looked_at_when_it_suits, LARGE
    ),
    Mutant("blinds can be guessed", "I9", _blinds_are_zero),
    Mutant("auditors can tell their role", "I9", _auditors_have_more_time),
    Mutant("chance that the journal does not have", "I10", _chance_is_not_in_the_journal),
    Mutant("a run slot is given twice", "I2", _free_slots_are_not_counted),
    Mutant("a batch closes before all have committed", "I8", _batches_close_early),
    Mutant("what a client stopped is compared", "I4", _stopped_jobs_are_compared),
    Mutant("a job may wait for ever", "I7", _jobs_wait_for_ever),
    Mutant(
        "a lapsed place stays empty",
        "I7",
        _lapsed_places_stay_empty,
        only(lambda plan: Behaviour.SLEEPER in plan.behaviours),
    ),
    Mutant(
        "a time-out is a fault",
        "I5",
        _killed_runs_are_faults,
        only(lambda plan: Behaviour.LIAR in plan.behaviours),
    ),
    Mutant(
        "a lapse is a fault",
        "I5",
        _lapses_are_faults,
        only(lambda plan: Behaviour.SLEEPER in plan.behaviours),
    ),
    Mutant("the output is shown before the verdict", "I8", _outputs_before_the_verdict),
    Mutant("a witness after its round counts", "I9", _late_witnesses, INTRUDED),
    Mutant("anybody may stop a job", "I4", _anybody_may_stop, INTRUDED),
    Mutant("held jobs are never looked at again", "I7", _held_jobs_are_not_looked_at, LARGE),
)
