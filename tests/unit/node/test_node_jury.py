"""Tests jury service, offers and reconciliation."""

import pytest
from msgspec.structs import astuple

from quorate_contracts import court_facts
from quorate_contracts.generated import court
from quorate_node.core import effects, events, jury_duty
from quorate_node.core.jury_duty import Opening, Repeating, Served, Voted, Voting, Waiting
from quorate_node.core.phases import Publishing, Running, Starting
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import jury_lease_id, reconcile
from quorate_node.owner.court_follower import translate
from quorate_protocol.messages.ports import TaskState
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    ExitStatus,
    Hash32,
    Milliseconds,
    Round,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.provider_world import (
    ACCUSED,
    CASE_CLASS,
    CASE_SPEC,
    COORDINATOR,
    CPUS,
    NOW,
    PROVIDER,
    Driver,
    case_names,
    case_opened,
    jury_drawn,
    make_terms,
)
from support.offers import MACHINE

EXECUTION, CASE = case_names()
VOTE_BY = UnixSeconds(NOW + 60)
REVEAL_BY = UnixSeconds(NOW + 120)
DIGEST = Hash32(b"\x0a" * 32)
OTHER = Address(b"\x88" * 20)


def voted(driver: Driver, ballot: Hash32, juror: Address = PROVIDER) -> None:
    driver.do(events.ChainVoted(EXECUTION, events.Vote(juror, ballot)))


def juror(slots: int = 1) -> Driver:
    driver = Driver(ProviderCore(make_terms(slots)))
    driver.do(case_opened())
    driver.do(jury_drawn(OTHER, PROVIDER))
    return driver


@pytest.mark.rule("3.24", "5.146")
def test_juror_repeats_the_job_votes_and_opens_its_ballot() -> None:
    """Who opens a ballot names all of them, in the order of the chain."""
    driver = Driver(ProviderCore(make_terms()))
    driver.do(case_opened())
    (repeat,) = driver.do(jury_drawn(OTHER, PROVIDER))
    assert isinstance(repeat, effects.Reexecute) and repeat.spec_hash == CASE_SPEC
    assert driver.core.free_slots()[0].free == 0, "a re-execution takes a run slot"
    (vote,) = driver.do(events.Reexecuted(CASE, DIGEST))
    assert isinstance(vote, effects.SendVote) and driver.core.free_slots()[0].free == 1
    phase = driver.core.jury[CASE].phase
    assert isinstance(phase, Voting) and vote.jurors == (OTHER, PROVIDER)
    assert vote.ballot == court_facts.ballot(EXECUTION, PROVIDER, phase.salt, DIGEST)
    voted(driver, vote.ballot)
    voted(driver, DIGEST, OTHER)
    voted(driver, vote.ballot)  # again, after a reorganisation
    assert driver.do(events.VoteConfirmed(CASE)) == ()
    (reveal,) = driver.do(events.ChainVotingEnded(EXECUTION, REVEAL_BY))
    votes = (events.Vote(OTHER, DIGEST), events.Vote(PROVIDER, vote.ballot))
    assert reveal == effects.SendJuryReveal(CASE, EXECUTION, votes, DIGEST, phase.salt)
    driver.do(events.ChainCaseDecided(EXECUTION))
    assert isinstance(driver.core.jury[CASE].phase, Served) and not driver.core.cases


@pytest.mark.rule("5.146")
def test_ballot_is_not_opened_before_voting_has_ended() -> None:
    driver = juror()
    driver.do(events.Reexecuted(CASE, DIGEST))
    driver.do(events.VoteConfirmed(CASE))
    assert driver.do(events.Tick(), after=100) == ()
    assert isinstance(driver.core.jury[CASE].phase, Voted)


@pytest.mark.rule("5.146")
def test_a_ballot_that_no_block_has_is_not_opened() -> None:
    driver = juror()
    driver.do(events.Reexecuted(CASE, DIGEST))
    assert driver.do(events.ChainVotingEnded(EXECUTION, REVEAL_BY)) == ()
    assert isinstance(driver.core.jury[CASE].phase, Served)


def test_who_missed_the_vote_is_not_seated_by_the_draw_of_others() -> None:
    """The second draw lists all jurors, and only new ones may vote."""
    driver = juror()
    assert driver.do(jury_drawn(OTHER, PROVIDER, COORDINATOR, vote_by=NOW + 90)) == ()
    assert driver.core.jury[CASE].vote_by == VOTE_BY
    late = Driver(ProviderCore(make_terms()))
    late.do(case_opened())
    assert late.do(jury_drawn(OTHER, PROVIDER, vote_by=0)) == (), "the draw goes on"
    assert late.do(jury_drawn(OTHER, PROVIDER)) != ()


def test_an_execution_may_have_another_case_after_one_that_failed() -> None:
    driver = juror()
    driver.do(events.ChainCaseDecided(EXECUTION))
    again = replace(case_opened(), case_id=DIGEST)
    driver.do(again)
    driver.do(jury_drawn(PROVIDER))
    assert isinstance(driver.core.jury[DIGEST].phase, Repeating)


def test_other_juries_make_no_duty() -> None:
    """The provider was not drawn or is the accused, or the case is unknown or of another host
    class.
    """
    driver = Driver(ProviderCore(make_terms()))
    assert driver.do(jury_drawn(PROVIDER)) == () and not driver.core.jury
    driver.do(case_opened(accused=PROVIDER))
    driver.do(case_opened(pool=DIGEST))
    assert not driver.core.cases
    driver.do(case_opened())
    assert driver.do(jury_drawn(OTHER)) == () and not driver.core.jury
    assert driver.do(events.ChainVotingEnded(EXECUTION, REVEAL_BY)) == ()


def test_jury_duty_waits_for_a_slot_and_gets_it_before_the_next_lease() -> None:
    driver = Driver(ProviderCore(make_terms()))
    driver.do(case_opened())
    lease = driver.assign(1)
    assert driver.do(jury_drawn(PROVIDER)) == ()
    assert isinstance(driver.core.jury[CASE].phase, Waiting)
    due = driver.do(events.TaskFailed(lease, "test"))
    assert any(isinstance(effect, effects.Reexecute) for effect in due)
    assert not driver.execution(driver.assign(2)).occupies_slot


@pytest.mark.parametrize("steps", range(4))
def test_every_phase_of_a_duty_ends_with_its_window(steps: int) -> None:
    driver = juror()
    happened: tuple[events.Event, ...] = (
        events.Reexecuted(CASE, DIGEST),
        events.VoteConfirmed(CASE),
        events.ChainVotingEnded(EXECUTION, REVEAL_BY),
    )
    for number, event in enumerate(happened[:steps]):
        if number == 2:
            voted(driver, ZERO_HASH)
        driver.do(event)
    assert isinstance(driver.core.jury[CASE].phase, (Repeating, Voting, Voted, Opening)[steps])
    driver.do(events.Tick(), after=jury_duty.KEEP_SECONDS + 200)
    assert isinstance(driver.core.jury[CASE].phase, Served)
    assert driver.core.free_slots()[0].free == 1
    driver.do(events.Tick(), after=jury_duty.KEEP_SECONDS + 200)
    assert not driver.core.jury


def test_restarted_juror_can_open_its_ballot() -> None:
    """Digest and salt are in the state before the vote is sent."""
    driver = juror()
    driver.do(events.Reexecuted(CASE, DIGEST))
    twin = Driver(ProviderCore(make_terms()), driver.now, 900)
    twin.core.restore(driver.core.snapshot())
    (vote,) = twin.core.resume()
    assert isinstance(vote, effects.SendVote)
    voted(twin, vote.ballot)
    (reveal,) = twin.do(events.ChainVotingEnded(EXECUTION, REVEAL_BY))
    assert isinstance(reveal, effects.SendJuryReveal)
    assert jury_duty.ballot(EXECUTION, PROVIDER, reveal.salt, reveal.digest) == vote.ballot


def test_events_of_the_court_become_events_of_the_core() -> None:
    places = (COORDINATOR, ACCUSED, OTHER, CPUS.id(), 1, BlockNumber(1), NOW, 1)
    filing = court.Filing(*places, 30, Amount(5), EXECUTION, *(ZERO_HASH,) * 3)
    case = court.CaseOpened(EXECUTION, ACCUSED, filing, CASE_SPEC, ZERO_HASH, CASE_CLASS)
    told = translate(case)
    assert told == replace(case_opened(max_duration=30, pay=5), case_id=court_facts.case_id(filing))
    drawn = court.JuryDrawn(EXECUTION, (PROVIDER,), VOTE_BY)
    assert translate(drawn) == jury_drawn(PROVIDER)
    vote = events.Vote(PROVIDER, DIGEST)
    assert translate(court.Voted(EXECUTION, *astuple(vote))) == events.ChainVoted(EXECUTION, vote)
    assert translate(court.RevealsOpen(EXECUTION, REVEAL_BY)) == events.ChainVotingEnded(
        EXECUTION, REVEAL_BY
    )
    decided = court.Decided(EXECUTION, 1, Amount(1), Amount(0))
    assert translate(decided) == events.ChainCaseDecided(EXECUTION)
    assert translate(court.RoundSet(EXECUTION, Round(3))) is None and translate(None) is None


def test_offer_numbers_grow_over_restarts() -> None:
    """Otherwise a coordinator would take a new offer for an older one."""
    driver = Driver(ProviderCore(make_terms()))
    (first,) = driver.do(events.OfferDue())
    twin = Driver(ProviderCore(make_terms()))
    twin.core.restore(driver.core.snapshot())
    (second,) = twin.do(events.OfferDue())
    assert isinstance(first, effects.SendOffer) and isinstance(second, effects.SendOffer)
    assert second.seq > first.seq > 0


# ----------------------------------------------------------------------------------- reconciliation


@pytest.mark.rule("I6")
@pytest.mark.parametrize("state", [TaskState.RUNNING, TaskState.EXITED, TaskState.ABSENT])
@pytest.mark.parametrize("phase", [Starting, Running, Publishing])
def test_running_task_without_a_container_fails_after_a_restart(
    phase: type, state: TaskState
) -> None:
    """The provider attaches again to tasks that still run or have exited."""
    driver = Driver(ProviderCore(make_terms()))
    held = driver.advance(driver.assign(), phase)
    observed = {} if state is TaskState.ABSENT else {held.lease_id: state}
    found = reconcile(driver.core.live(), (), observed, driver.core.terms)
    is_lost = state is TaskState.ABSENT and phase is Running
    assert [event.assignment_hash for event in found.failures] == (
        [held.assignment_hash] if is_lost else []
    )
    assert found.strays == ()


@pytest.mark.rule("I6", "2.19")
@pytest.mark.parametrize(("phase", "lapses"), [(Starting, True), (Publishing, False)])
def test_a_lease_that_has_not_begun_lapses_if_the_class_changed(phase: type, lapses: bool) -> None:
    """Its Accept named the class before. What ran before the driver was updated is published."""
    driver = Driver(ProviderCore(make_terms()))
    held = driver.advance(driver.assign(), phase)
    slots = driver.core.terms.classes[0]
    updated = replace(slots, offer=replace(slots.offer, host=replace(MACHINE, level="v4")))
    terms = replace(driver.core.terms, classes=(updated,))
    found = reconcile(driver.core.live(), (), {}, terms)
    assert [event.assignment_hash for event in found.failures] == [held.assignment_hash] * lapses


def test_containers_that_no_lease_needs_are_strays() -> None:
    """The container of a jury duty is no stray."""
    driver = juror()
    mine = jury_lease_id(CASE, driver.core.terms.provider)
    other = jury_lease_id(DIGEST, driver.core.terms.provider)
    observed = {mine: TaskState.RUNNING, other: TaskState.EXITED, "ff" * 32: TaskState.RUNNING}
    assert reconcile((), driver.core.jury.values(), observed, driver.core.terms).strays == (
        other,
        "ff" * 32,
    )


def test_start_by_follows_from_recent_run_times() -> None:
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign(1)
    driver.advance(lease, Running)
    driver.do(events.TaskExited(lease, ExitStatus(0), Milliseconds(2_500)))
    assert driver.core.scalars.recent_ms == (2_500,)
    driver.do(events.TaskFailed(lease, "test"))
    accept = driver.execution(driver.assign(2)).accept
    assert accept is not None and accept.quoted_run_seconds == 3
