"""Tests jury service, statements, offers and reconciliation."""

import pytest

from quorate_contracts.bindings import events as chain_events
from quorate_contracts.bindings.court import CaseId
from quorate_contracts.bindings.court import ballot as court_ballot
from quorate_node.chain.court_follower import translate
from quorate_node.core import effects, events
from quorate_node.core.juries import jury_duty
from quorate_node.core.juries.jury_duty import Opening, Repeating, Served, Voted, Voting, Waiting
from quorate_node.core.phases import Publishing, Running, Starting
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.reconcile import jury_lease_id, reconcile
from quorate_protocol.ports import TaskState
from quorate_protocol.refusals import Code
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    ExitStatus,
    Hash32,
    Milliseconds,
    Nonce,
    Round,
    Seconds,
    Sequence,
    UnixSeconds,
)
from support.markets.provider_world import (
    COORDINATOR,
    HOST,
    NOW,
    PROVIDER,
    STATEMENT_KEY,
    STRANGER,
    Driver,
    make_terms,
    statement,
)

CASE = Nonce(7)
ACCUSED = Address(b"\x99" * 20)
SPECS = (Hash32(b"\x01" * 32), Hash32(b"\x02" * 32))
VOTE_BY = UnixSeconds(NOW + 60)
REVEAL_BY = UnixSeconds(NOW + 120)
DIGESTS = (Hash32(b"\x0a" * 32), Hash32(b"\x0b" * 32))


def opened(accused: Address = ACCUSED, host_class: Hash32 | None = None) -> events.ChainCaseOpened:
    """Returns the event of a case over two executions."""
    named = tuple(events.CaseExecution(spec, host_class or HOST.id()) for spec in SPECS)
    return events.ChainCaseOpened(CASE, accused, named)


def drawn(*jurors: Address) -> events.ChainJuryDrawn:
    """Returns the event of a jury with these jurors."""
    return events.ChainJuryDrawn(CASE, jurors, VOTE_BY)


def juror(slots: int = 1) -> Driver:
    """Returns a provider that is a juror in the case."""
    driver = Driver(ProviderCore(make_terms(slots)))
    driver.do(opened())
    driver.do(drawn(ACCUSED, PROVIDER))
    return driver


@pytest.mark.rule("3.24", "5.78")
def test_juror_repeats_each_execution_votes_and_opens_its_ballot() -> None:
    """The juror executes them in the order of the case."""
    driver = Driver(ProviderCore(make_terms()))
    driver.do(opened())
    (first,) = driver.do(drawn(PROVIDER))
    assert isinstance(first, effects.Reexecute) and (first.index, first.spec_hash) == (0, SPECS[0])
    assert driver.core.free_slots()[0].free == 0, "a re-execution takes a run slot"
    (second,) = driver.do(events.Reexecuted(CASE, 0, DIGESTS[0]))
    assert isinstance(second, effects.Reexecute) and (second.index, second.spec_hash) == (
        1,
        SPECS[1],
    )
    (vote,) = driver.do(events.Reexecuted(CASE, 1, DIGESTS[1]))
    assert isinstance(vote, effects.SendVote) and driver.core.free_slots()[0].free == 1
    phase = driver.core.jury[CASE].phase
    assert isinstance(phase, Voting)
    assert vote.ballot == court_ballot(CaseId(CASE), PROVIDER, phase.salt, DIGESTS), (
        "the contract's formula"
    )
    assert driver.do(events.VoteConfirmed(CASE)) == ()
    (reveal,) = driver.do(events.ChainVotingEnded(CASE, REVEAL_BY))
    assert reveal == effects.SendJuryReveal(CASE, DIGESTS, phase.salt)
    driver.do(events.ChainCaseDecided(CASE))
    assert isinstance(driver.core.jury[CASE].phase, Served) and not driver.core.cases


@pytest.mark.rule("5.78")
def test_ballot_is_not_opened_before_voting_has_ended() -> None:
    """Neither a repeated vote nor the passing of time opens the ballot."""
    driver = juror()
    for index, digest in enumerate(DIGESTS):
        driver.do(events.Reexecuted(CASE, index, digest))
    driver.do(events.VoteConfirmed(CASE))
    assert driver.do(events.Tick(), after=100) == ()
    assert isinstance(driver.core.jury[CASE].phase, Voted)


@pytest.mark.rule("3.25", "5.84")
def test_unavailable_content_gives_a_zero_digest_in_the_ballot() -> None:
    """Such a vote is void."""
    driver = juror()
    driver.do(events.Reexecuted(CASE, 0, ZERO_HASH))
    driver.do(events.Reexecuted(CASE, 1, DIGESTS[1]))
    phase = driver.core.jury[CASE].phase
    assert isinstance(phase, Voting) and phase.digests == (ZERO_HASH, DIGESTS[1])


def test_other_juries_make_no_duty() -> None:
    """The provider was not drawn or is the accused, or the case is unknown or of another host
    class.
    """
    driver = Driver(ProviderCore(make_terms()))
    assert driver.do(drawn(PROVIDER)) == () and not driver.core.jury
    driver.do(opened(PROVIDER))
    driver.do(opened(ACCUSED, Hash32(b"\x01" * 32)))
    assert not driver.core.cases
    driver.do(opened())
    assert driver.do(drawn(ACCUSED)) == () and not driver.core.jury
    assert driver.do(events.ChainVotingEnded(CASE, REVEAL_BY)) == ()


def test_jury_duty_waits_for_a_slot_and_gets_it_before_the_next_lease() -> None:
    """So I2 holds for jury duty too."""
    driver = Driver(ProviderCore(make_terms()))
    driver.do(opened())
    lease = driver.assign(1)
    assert driver.do(drawn(PROVIDER)) == ()
    assert isinstance(driver.core.jury[CASE].phase, Waiting)
    due = driver.do(events.TaskFailed(lease, "test"))
    assert any(isinstance(effect, effects.Reexecute) for effect in due)
    assert not driver.execution(driver.assign(2)).occupies_slot


@pytest.mark.parametrize("steps", range(5))
def test_every_phase_of_a_duty_ends_with_its_window(steps: int) -> None:
    driver = juror()
    happened: tuple[events.Event, ...] = (
        events.Reexecuted(CASE, 0, DIGESTS[0]),
        events.Reexecuted(CASE, 1, DIGESTS[1]),
        events.VoteConfirmed(CASE),
        events.ChainVotingEnded(CASE, REVEAL_BY),
    )
    for event in happened[:steps]:
        driver.do(event)
    assert isinstance(
        driver.core.jury[CASE].phase, (Repeating, Repeating, Voting, Voted, Opening)[steps]
    )
    driver.do(events.Tick(), after=jury_duty.KEEP_SECONDS + 200)
    assert isinstance(driver.core.jury[CASE].phase, Served)
    assert driver.core.free_slots()[0].free == 1
    driver.do(events.Tick(), after=jury_duty.KEEP_SECONDS + 200)
    assert not driver.core.jury


def test_restarted_juror_can_open_its_ballot() -> None:
    """Digests and salt are in the state before the vote is sent."""
    driver = juror()
    for index, digest in enumerate(DIGESTS):
        driver.do(events.Reexecuted(CASE, index, digest))
    twin = Driver(ProviderCore(make_terms()), driver.now, 900)
    twin.core.restore(driver.core.snapshot())
    (vote,) = twin.core.resume()
    assert isinstance(vote, effects.SendVote)
    (reveal,) = twin.do(events.ChainVotingEnded(CASE, REVEAL_BY))
    assert isinstance(reveal, effects.SendJuryReveal)
    assert jury_duty.ballot(CASE, PROVIDER, reveal.salt, reveal.digests) == vote.ballot


def test_events_of_the_court_become_events_of_the_core() -> None:
    """A zero hash after the last execution stands for no execution."""
    three = (*SPECS, ZERO_HASH)
    amounts = (Amount(0),) * 3
    case = chain_events.CaseOpened(
        CASE,
        ACCUSED,
        COORDINATOR,
        HOST.id(),
        Round(1),
        Amount(1),
        three,
        three,
        three,
        three,
        three,
        (Seconds(1),) * 3,
        amounts,
    )
    named = tuple(events.CaseExecution(spec, HOST.id(), Seconds(1)) for spec in SPECS)
    assert translate(case) == events.ChainCaseOpened(CASE, ACCUSED, named)
    assert translate(chain_events.JuryDrawn(CASE, (PROVIDER,), VOTE_BY)) == drawn(PROVIDER)
    assert translate(chain_events.RevealsOpen(CASE, REVEAL_BY)) == events.ChainVotingEnded(
        CASE, REVEAL_BY
    )
    decided = chain_events.Decided(CASE, ACCUSED, True, 1, Amount(1), Amount(0))
    assert translate(decided) == events.ChainCaseDecided(CASE)
    assert translate(chain_events.Redraw(CASE, Round(3))) is None and translate(None) is None


# -------------------------------------------------------------------------------------------- money


@pytest.mark.rule("3.21", "6.5")
def test_statement_that_is_older_or_lower_or_of_a_stranger_is_refused() -> None:
    """A second statement with the same number is refused too. `held` may fall, because a verdict
    lowers it.
    """
    driver = Driver(ProviderCore(make_terms()))
    driver.do(statement(100, 1, held=50))
    driver.do(statement(100, 1, held=50))
    driver.do(statement(100, 3, held=20))
    assert driver.refusal(statement(200, 2)) is Code.STALE
    assert driver.refusal(statement(101, 3, held=20)) is Code.EQUIVOCATION
    assert driver.refusal(statement(99, 4)) is Code.BAD_AMOUNT
    assert driver.refusal(statement(300, 5, signer=STRANGER)) is Code.WRONG_SIGNER
    assert driver.refusal(statement(300, 5, provider=ACCUSED)) is Code.NOT_YOURS
    driver.do(statement(150, 4, signer=STATEMENT_KEY))
    assert driver.core.statements[COORDINATOR].message.final == 150


def test_final_epoch_with_new_credit_is_claimed() -> None:
    """The provider claims only if there is more credit than it has claimed."""
    driver = Driver(ProviderCore(make_terms()))
    (claim,) = driver.do(events.ChainEpochFinal(COORDINATOR, Sequence(1), Amount(70)))
    assert claim == effects.SendClaim(COORDINATOR, Sequence(1), Amount(70))
    driver.do(events.ClaimConfirmed(COORDINATOR, Amount(70)))
    assert driver.do(events.ChainEpochFinal(COORDINATOR, Sequence(2), Amount(70))) == ()
    (again,) = driver.do(events.ChainEpochFinal(COORDINATOR, Sequence(3), Amount(71)))
    assert again.key != claim.key


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
    found = reconcile(driver.core.live(), (), observed)
    is_lost = state is TaskState.ABSENT and phase is Running
    assert [event.assignment_hash for event in found.failures] == (
        [held.assignment_hash] if is_lost else []
    )
    assert found.strays == ()


def test_containers_that_no_lease_needs_are_strays() -> None:
    """The container of a jury duty is no stray."""
    driver = juror()
    mine = jury_lease_id(CASE, 0, driver.core.terms.provider)
    other = jury_lease_id(CASE, 1, driver.core.terms.provider)
    observed = {mine: TaskState.RUNNING, other: TaskState.EXITED, "ff" * 32: TaskState.RUNNING}
    assert reconcile((), driver.core.jury.values(), observed).strays == (other, "ff" * 32)


def test_start_by_follows_from_recent_run_times() -> None:
    """It does not follow from the maximum duration of a job."""
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign(1)
    driver.advance(lease, Running)
    driver.do(events.TaskExited(lease, ExitStatus(0), Milliseconds(2_500)))
    assert driver.core.scalars.recent_ms == (2_500,)
    driver.do(events.TaskFailed(lease, "test"))
    accept = driver.execution(driver.assign(2)).accept
    assert accept is not None and accept.quoted_run_seconds == 3
