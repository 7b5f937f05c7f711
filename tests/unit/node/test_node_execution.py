"""Tests the provider's execution machine: each phase with each event, and what a restart finds."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from quorate_node.core import effects, events, execution
from quorate_node.core.phases import (
    MISDATED,
    Accepted,
    Committed,
    Declined,
    Done,
    Fetching,
    Lapsed,
    Publishing,
    Receipted,
    Revealed,
    Running,
    Starting,
)
from quorate_node.core.provider_core import ProviderCore
from quorate_node.status.status import status_of
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.beacon_rounds import round_at, round_time
from quorate_protocol.messages.commitment import check_opens, opens
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Decline
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    EXIT_TIMEOUT,
    Address,
    DeclineReason,
    ExitStatus,
    Hash32,
    Milliseconds,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.provider_world import (
    COORDINATOR,
    DOMAIN,
    NOW,
    OPERATOR,
    PROVIDER,
    STATEMENT_KEY,
    STRANGER,
    Driver,
    commit_set,
    make_terms,
    receipt,
    script,
    stop,
    verdict,
)
from support.offers import MACHINE, class_of

ORDER = (Accepted, Fetching, Starting, Running, Publishing, Committed, Receipted, Revealed, Done)
DUTY = {
    Accepted: effects.SendAccept,
    Fetching: effects.FetchInputs,
    Starting: effects.StartTask,
    Running: effects.WatchTask,
    Publishing: effects.PublishOutput,
    Committed: effects.SendCommit,
    Revealed: effects.SendReveal,
}


def fresh() -> Driver:
    return Driver(ProviderCore(make_terms()))


def published(lease: Hash32) -> events.OutputPublished:
    """Returns a report of another output than the one of `script`."""
    return events.OutputPublished(lease, Hash32(bytes(32)), Hash32(b"\x99" * 32))


def at_phase(kind: type) -> tuple[Driver, Hash32]:
    """Returns a driver whose only execution is in that phase, and its lease."""
    driver = fresh()
    if kind is Declined:
        driver.do(events.DrainRequested(True))
        return driver, driver.assign()
    lease = driver.assign()
    if kind is Lapsed:
        driver.do(events.TaskFailed(lease, "test"))
    elif kind is Done:
        driver.advance(lease, Revealed)
        driver.do(verdict(lease))
    else:
        driver.advance(lease, kind)
    return driver, lease


def test_each_step_of_an_execution_asks_for_the_next_effect() -> None:
    driver = fresh()
    lease = driver.assign()
    for event, phase in zip(script(lease), ORDER[1:6], strict=True):
        due = driver.do(event)
        assert isinstance(driver.execution(lease).phase, phase)
        assert any(isinstance(effect, DUTY[phase]) for effect in due)
    assert driver.do(receipt(driver.execution(lease))) == ()
    (reveal,) = driver.do(commit_set(driver.execution(lease), driver.now))
    assert isinstance(reveal, effects.SendReveal)
    driver.do(verdict(lease))
    assert isinstance(driver.execution(lease).phase, Done)


OWN_EVENTS: dict[type, Callable[[Hash32], events.Event]] = {
    Accepted: events.AcceptDelivered,
    Fetching: events.InputsFetched,
    Starting: events.TaskStarted,
    Running: lambda lease: events.TaskExited(lease, ExitStatus(0), Milliseconds(1)),
    Publishing: published,
}


@pytest.mark.parametrize("phase", [*ORDER, Declined, Lapsed])
@pytest.mark.parametrize("fits", OWN_EVENTS)
def test_report_counts_only_in_its_phase(phase: type, fits: type) -> None:
    driver, lease = at_phase(phase)
    before = driver.execution(lease)
    due = driver.do(OWN_EVENTS[fits](lease))
    moves = phase is fits or (
        fits is Running and phase is Starting
    )  # a container that was started before a crash may have ended
    assert (driver.execution(lease) != before) is moves
    assert bool(due) is moves


@pytest.mark.parametrize("phase", [*ORDER, Declined, Lapsed])
def test_a_failure_before_the_commit_lapses_the_execution(phase: type) -> None:
    """A failing machine must commit nothing rather than a false result."""
    driver, lease = at_phase(phase)
    driver.do(events.TaskFailed(lease, "disk"))
    after = driver.execution(lease).phase
    if phase in (Declined, Receipted, Revealed, Done, Lapsed):
        assert isinstance(after, phase)
    else:
        assert isinstance(after, Lapsed) and "disk" in after.why
        assert [slot.free for slot in driver.core.free_slots()] == [1]
        assert (after.decline is not None) is (phase not in (Accepted, Committed)), (
            "who would wait for a Commit is told"
        )


@pytest.mark.rule("4.46")
@pytest.mark.parametrize("phase", [Fetching, Starting, Running])
def test_provider_says_that_nobody_can_run_a_job_only_when_it_starts_it(phase: type) -> None:
    driver, lease = at_phase(phase)
    driver.do(events.TaskFailed(lease, "no command", is_impossible=True))
    after = driver.execution(lease).phase
    assert isinstance(after, Lapsed) and after.decline is not None
    assert (after.decline.reason is DeclineReason.MISMATCH) is (phase is Starting)


@pytest.mark.rule("4.9")
@pytest.mark.parametrize("phase", [Fetching, Starting, Running, Publishing])
def test_given_up_execution_sends_a_decline_until_the_coordinator_takes_it(phase: type) -> None:
    """A restart sends the Decline again, for as long as the coordinator would wait for a Commit."""
    driver, lease = at_phase(phase)
    due = driver.do(events.TaskFailed(lease, "disk"))
    (said,) = [effect for effect in due if isinstance(effect, effects.SendDecline)]
    reason = DeclineReason.INPUT_UNAVAILABLE if phase is Fetching else DeclineReason.GAVE_UP
    assert said.decline == Decline(lease, reason, UnixSeconds(0), driver.now)
    assert said.give_up_at == driver.execution(lease).commit_by and said in execution.duties(
        driver.execution(lease)
    )
    assert said.lane not in {effect.lane for effect in due if effect is not said}, (
        "an engine that is away holds nothing up"
    )


@pytest.mark.rule("I4")
@pytest.mark.parametrize("phase", [*ORDER, Declined, Lapsed])
def test_stop_commits_a_running_task_and_ends_one_that_has_not_started(phase: type) -> None:
    """The client pays the elapsed time of a running task."""
    driver, lease = at_phase(phase)
    due = driver.do(stop(lease))
    after = driver.execution(lease).phase
    if phase in (Accepted, Fetching):
        assert isinstance(after, Lapsed) and after.decline is not None
        assert any(isinstance(effect, effects.SendDecline) for effect in due)
    elif phase is Running:
        assert (
            due == (effects.StopTask(lease),) and isinstance(after, Running) and after.is_stopping
        )
        driver.do(events.TaskExited(lease, ExitStatus(143), Milliseconds(700)))
        assert isinstance(driver.execution(lease).phase, Publishing)
    elif phase is Starting:
        assert any(
            isinstance(effect, effects.StopTask) for effect in driver.do(events.TaskStarted(lease))
        )
    else:
        assert isinstance(after, phase) and due == ()
    assert driver.refusal(stop(lease, PROVIDER)) is Code.NOT_YOURS


@pytest.mark.parametrize("phase", [*ORDER, Declined, Lapsed])
def test_verdict_ends_an_execution_in_every_phase(phase: type) -> None:
    """A verdict before the Commit means that the job ended without this execution."""
    driver, lease = at_phase(phase)
    assert driver.refusal(verdict(lease, 2, STRANGER)) is Code.WRONG_SIGNER
    driver.do(verdict(lease, 2))
    expected = (
        Done
        if phase in (Committed, Receipted, Revealed, Done)
        else Declined
        if phase is Declined
        else Lapsed
    )
    assert isinstance(driver.execution(lease).phase, expected)


@pytest.mark.parametrize("phase", [*ORDER, Declined, Lapsed])
def test_commit_set_reveals_only_a_committed_result(phase: type) -> None:
    driver, lease = at_phase(phase)
    if phase in (Committed, Receipted, Revealed):
        assert any(
            isinstance(effect, effects.SendReveal)
            for effect in driver.do(commit_set(driver.execution(lease), driver.now))
        )
        return
    committed, other = at_phase(Committed)
    event = commit_set(committed.execution(other), driver.now)
    assert driver.refusal(replace(event, assignment_hash=lease)) is Code.WRONG_PHASE


# ------------------------------------------------------------------------------------------ reveals


@pytest.mark.rule("4.18")
@pytest.mark.parametrize(
    ("late", "ahead", "is_good"), [(0, 0, False), (1, 0, True), (0, 60, True), (0, 61, False)]
)
def test_a_commit_receipt_with_a_wrong_time_keeps_the_result_closed(
    late: int, ahead: int, is_good: bool
) -> None:
    """The run took 1.5 s, and is paid whole from the second after its Assignment on. A receipt from
    the future would make the owner's evidence wait. The status shows what stays closed.
    """
    driver, lease = at_phase(Committed)
    held = driver.execution(lease)
    sent = held.assignment.message.accept_by - DEVNET.accept_within
    dated = UnixSeconds(driver.now + ahead if ahead else sent + late)
    driver.do(receipt(held, time=dated))
    closed = commit_set(driver.execution(lease), driver.now)
    (shown,) = status_of(driver.core, OPERATOR.address, "", {}).leases
    assert shown.closed == ("" if is_good else MISDATED)
    if is_good:
        assert isinstance(driver.do(closed)[0], effects.SendReveal)
        return
    assert driver.refusal(closed) is Code.STALE
    driver.do(receipt(held, time=UnixSeconds(sent + 1)))
    assert isinstance(driver.do(closed)[0], effects.SendReveal), "it was mended"
    (shown,) = status_of(driver.core, OPERATOR.address, "", {}).leases
    assert not shown.closed


@pytest.mark.rule("I8", "2.20", "4.17")
def test_reveal_opens_the_commit() -> None:
    driver, lease = at_phase(Committed)
    phase, held = driver.execution(lease).phase, driver.execution(lease)
    assert isinstance(phase, Committed) and opens(phase.commit, phase.reveal)
    assert check_opens(phase.commit, phase.reveal)
    assert held.accept.host == MACHINE.digest()
    assert phase.commit.class_id == class_of(held.spec)
    assert (phase.commit.usage_ms, phase.commit.encrypted_output) == (1500, b"\x66" * 32)


@pytest.mark.rule("3.34")
def test_salt_is_journaled_before_anything_uses_it() -> None:
    """The salt is in the state one step before the ciphertext and the Commit, and it never
    changes.
    """
    driver, lease = at_phase(Publishing)
    phase = driver.execution(lease).phase
    assert isinstance(phase, Publishing)
    committed = driver.advance(lease, Committed).phase
    assert isinstance(committed, Committed) and committed.reveal.salt == phase.salt != bytes(32)


@pytest.mark.rule("5.10")
def test_beacon_round_is_three_to_four_periods_ahead() -> None:
    terms = make_terms()
    for offset in range(-5, 12):
        at = UnixSeconds(NOW + offset)
        number = execution.beacon_round(terms, at)
        assert (
            at + 3 * terms.beacon.period
            <= round_time(terms.beacon, number)
            <= at + 4 * terms.beacon.period
        )
        assert number - round_at(terms.beacon, at) <= 10
    assert execution.beacon_round(terms, UnixSeconds(terms.beacon.genesis_time - 100)) >= 1


# ------------------------------------------------------------------------------------------ commits


def test_commit_is_sent_again_unchanged_and_ever_more_slowly() -> None:
    driver, lease = at_phase(Committed)
    first = driver.execution(lease).commit()
    sent = []
    for _ in range(10):
        due = execution.next_due(driver.execution(lease))
        (again,) = driver.do(events.Tick(), after=due - driver.now)
        assert isinstance(again, effects.SendCommit) and again.commit == first
        sent.append(driver.now)
    gaps = [late - early for early, late in pairwise(sent)]
    assert gaps == sorted(gaps) and gaps[-1] == execution.RESEND_LONGEST_SECONDS
    driver.do(published(lease))
    assert driver.execution(lease).commit() == first
    driver.do(receipt(driver.execution(lease)))
    assert driver.do(events.Tick(), after=100) == (), "a receipt ends it"


@pytest.mark.rule("3.16")
def test_receipt_counts_only_for_a_commit_made_here_and_signed_by_its_coordinator() -> None:
    driver, lease = at_phase(Committed)
    good = receipt(driver.execution(lease))
    assert driver.refusal(receipt(driver.execution(lease), STRANGER)) is Code.WRONG_SIGNER
    foreign = replace(good.receipt.message, commit_hash=Hash32(b"\x01" * 32))
    assert (
        driver.refusal(replace(good, receipt=seal(DOMAIN, foreign, STATEMENT_KEY.sign)))
        is Code.UNKNOWN
    )
    driver.do(good)
    held = driver.execution(lease)
    driver.do(good)
    assert driver.execution(lease) == held


def test_lapsed_execution_keeps_its_commit() -> None:
    """So the provider never signs another Commit for the Assignment, and it keeps the evidence."""
    driver, lease = at_phase(Committed)
    commit = driver.execution(lease).commit()
    driver.do(events.TaskFailed(lease, "commit refused: too-late"))
    driver.do(published(lease))
    assert isinstance(driver.execution(lease).phase, Lapsed)
    assert driver.execution(lease).commit() == commit


# ---------------------------------------------------------------------------------------- deadlines


@pytest.mark.rule("4.7")
@pytest.mark.parametrize("phase", [Accepted, Fetching, Starting, Running, Publishing])
def test_execution_without_a_commit_lapses_after_commit_by(phase: type) -> None:
    """The lapse frees the slot and removes the container. It does not come a second earlier.

    A fetch has an earlier deadline, and ends with a Decline.
    """
    driver, lease = at_phase(phase)
    due = execution.next_due(driver.execution(lease))
    assert driver.do(events.Tick(), after=due - 1 - driver.now) == ()
    gone = driver.do(events.Tick(), after=1)
    said = {effects.SendDecline} if phase is Fetching else set()
    assert {type(effect) for effect in gone} == {effects.StopTask, effects.RemoveTask} | said
    assert (
        isinstance(driver.execution(lease).phase, Lapsed) and driver.core.free_slots()[0].free == 1
    )


@pytest.mark.rule("4.42")
def test_a_fetch_ends_ten_seconds_after_the_quoted_time() -> None:
    driver, lease = at_phase(Fetching)
    found = driver.execution(lease)
    assert found.accept is not None
    end = found.accept.time + found.accept.quoted_fetch_seconds + execution.FETCH_GRACE_SECONDS
    assert execution.next_due(found) == end + 1 < found.commit_by
    assert driver.do(events.Tick(), after=end + 1 - driver.now)
    ended = driver.execution(lease).phase
    assert isinstance(ended, Lapsed) and ended.decline is not None
    assert ended.decline.reason is DeclineReason.INPUT_UNAVAILABLE


def test_output_published_after_commit_by_is_not_committed() -> None:
    """The coordinator would refuse a late Commit, which is only evidence against its signer."""
    driver, lease = at_phase(Publishing)
    driver.now = UnixSeconds(driver.execution(lease).commit_by + 1)
    driver.do(published(lease))
    assert isinstance(driver.execution(lease).phase, Lapsed)
    assert driver.execution(lease).commit() is None


@pytest.mark.parametrize("phase", [Committed, Receipted, Revealed])
def test_execution_without_a_verdict_lapses_after_seven_days(phase: type) -> None:
    driver, lease = at_phase(phase)
    driver.do(events.Tick(), after=execution.KEEP_SECONDS + 1000)
    assert isinstance(driver.execution(lease).phase, Lapsed)


@pytest.mark.parametrize("phase", [Declined, Done, Lapsed])
def test_ended_execution_is_forgotten_with_all_its_rows(phase: type) -> None:
    """No table may grow for ever."""
    driver, lease = at_phase(phase)
    assert driver.do(
        events.Tick(), after=execution.next_due(driver.execution(lease)) - driver.now
    ) == (effects.ForgetLease(lease),)
    assert not driver.core.executions and not driver.core.commits and not driver.core.active
    assert driver.do(events.Tick(), after=10**6) == ()


def test_execution_that_ended_minutes_ago_keeps_only_its_hash() -> None:
    """The provider drops spec and verdict after minutes. A later verdict still passes if its
    coordinator signed it. After seven days every verdict is refused.
    """
    driver, lease = at_phase(Done)
    driver.do(events.Tick(), after=execution.DONE_KEEP_SECONDS)
    assert not driver.core.executions and list(driver.core.settled) == [lease]
    twin = ProviderCore(make_terms())
    twin.restore(driver.core.snapshot())
    assert list(twin.settled) == [lease]
    late = verdict(lease, 9)
    assert driver.do(late) == ()
    with pytest.raises(Refused, match="no such assignment"):
        driver.do(replace(late, signer=Address(b"\x77" * 20)))
    driver.do(events.Tick(), after=execution.KEEP_SECONDS)
    assert not driver.core.settled
    with pytest.raises(Refused, match="no such assignment"):
        driver.do(late)


# ------------------------------------------------------------------------------------------ results


def test_time_out_is_a_result() -> None:
    """I4: the provider commits a time-out with its status and the empty directory."""
    driver, lease = at_phase(Running)
    publish, _ = driver.do(events.TaskExited(lease, EXIT_TIMEOUT, Milliseconds(30_000)))
    assert isinstance(publish, effects.PublishOutput) and publish.exit_status == EXIT_TIMEOUT
    phase = driver.advance(lease, Committed).phase
    assert isinstance(phase, Committed) and phase.reveal.exit_status == EXIT_TIMEOUT


@pytest.mark.parametrize("phase", [*ORDER, Declined, Lapsed])
def test_restored_snapshot_has_the_same_state_and_effects_due(phase: type) -> None:
    driver, lease = at_phase(phase)
    twin = ProviderCore(make_terms())
    twin.restore(driver.core.snapshot())
    assert twin.executions[lease] == driver.execution(lease)
    assert twin.snapshot() == driver.core.snapshot()
    due = twin.resume()
    assert due == driver.core.resume()
    if phase in DUTY:
        assert any(isinstance(effect, DUTY[phase]) for effect in due)
    else:
        assert due == ()
    assert digest(DOMAIN, twin.executions[lease].assignment.message) == lease
    assert twin.executions[lease].coordinator == COORDINATOR
