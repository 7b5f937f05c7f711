"""Tests a coordinator that lies to a provider with its real key.

The provider refuses each such frame, or the frame changes nothing. Nothing runs or commits twice,
and honest work goes on. Frames take the same way as in the daemon: decoded, signatures recovered,
journaled.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate_node import market_entry
from quorate_node.core import bidding, effects, events, execution
from quorate_node.core import provider_core as provider_module
from quorate_node.core.effects import Effect
from quorate_node.core.phases import Committed, Declined, Done, Lapsed, Receipted, Revealed, Running
from quorate_node.core.provider_core import ProviderCore
from quorate_node.market.frame_handler import FrameHandler
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DAY
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import Assignment, CommitEntry, CommitSet, Heartbeat, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    DeclineReason,
    Hash32,
    Label,
    Outcome,
    Price,
    PriceTier,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.keys.crypto import KeySigner, recover
from support.markets.provider_world import (
    COORDINATOR,
    DOMAIN,
    JOB,
    NOW,
    OPERATOR,
    PROVIDER,
    STATEMENT_KEY,
    STRANGER,
    Driver,
    commit_set,
    make_assignment,
    make_spec,
    make_terms,
    receipt,
    script,
    stop,
    verdict,
    voucher,
)

CODEC: PackedCodec[events.Event, Effect] = PackedCodec(events.Event, Effect)
SOURCES = ("http://127.0.0.1:1/v1/content",)


class Node(Driver):
    """A provider with a connection to its coordinator."""

    def deliver(self, frame: frames.Frame) -> tuple[Effect, ...]:
        """Delivers a frame. Raises Refused with the code that the coordinator would get."""
        # no event is submitted: the handler only translates frames
        inbox = FrameHandler(None, COORDINATOR, DOMAIN, recover)  # type: ignore[arg-type]
        event = inbox.event(frames.decode(frames.encode(frame)))
        assert CODEC.decode_event(CODEC.version, CODEC.encode_event(event)) == event
        return self.do(event)

    def refuses(self, frame: frames.Frame) -> Code:
        """Delivers a frame that must be refused and change nothing."""
        before = self.core.snapshot()
        with pytest.raises(Refused) as refusal:
            self.deliver(frame)
        assert self.core.snapshot() == before and refusal.value.detail
        return refusal.value.code


def fresh(slots: int = 1) -> Node:
    return Node(ProviderCore(make_terms(slots)))


def sent(
    assignment: Assignment, spec: JobSpec, key: KeySigner = STATEMENT_KEY
) -> frames.AssignmentSent:
    return frames.AssignmentSent(seal(DOMAIN, assignment, key.sign), spec, SOURCES)


def lease_of(assignment: Assignment) -> Hash32:
    return digest(DOMAIN, assignment)


# -------------------------------------------------------------------------------------- assignments

SPEC = make_spec()
HONEST = make_assignment(SPEC)


@pytest.mark.rule("2.10")
@pytest.mark.parametrize(
    ("lie", "key", "code"),
    [
        ({"provider": Address(b"\x99" * 20)}, STATEMENT_KEY, Code.NOT_YOURS),
        ({"coordinator": Address(b"\x99" * 20)}, STATEMENT_KEY, Code.WRONG_SIGNER),
        ({}, STRANGER, Code.WRONG_SIGNER),
        ({}, OPERATOR, Code.WRONG_SIGNER),
        ({"accept_by": UnixSeconds(NOW - 1)}, STATEMENT_KEY, Code.TOO_LATE),
        ({"accept_by": UnixSeconds(0)}, STATEMENT_KEY, Code.TOO_LATE),
        ({"accept_by": UnixSeconds(NOW + DAY)}, STATEMENT_KEY, Code.TOO_EARLY),
        ({"accept_by": UnixSeconds(2**64 - 1)}, STATEMENT_KEY, Code.TOO_EARLY),
    ],
)
def test_invalid_assignment_is_refused(lie: dict[str, object], key: KeySigner, code: Code) -> None:
    node = fresh()
    assert node.refuses(sent(replace(HONEST, **lie), SPEC, key)) is code  # type: ignore[arg-type]
    assert not node.core.executions


@pytest.mark.parametrize(
    ("lie", "spec", "reason"),
    [
        ({"spec_hash": Hash32(b"\x01" * 32)}, SPEC, DeclineReason.MISMATCH),
        ({}, make_spec("another"), DeclineReason.MISMATCH),
        ({"max_duration": Seconds(31)}, SPEC, DeclineReason.MISMATCH),
        ({"max_duration": Seconds(0)}, SPEC, DeclineReason.MISMATCH),
        ({"pool": Hash32(b"\x01" * 32)}, SPEC, DeclineReason.MISMATCH),
        ({"price_per_hour": Price(0)}, SPEC, DeclineReason.PRICE),
        ({"price_per_hour": Price(99_999)}, SPEC, DeclineReason.PRICE),
        ({"price_tier": PriceTier.SPOT}, SPEC, DeclineReason.PRICE),
    ],
)
def test_assignment_that_does_not_match_its_spec_is_declined_and_never_runs(
    lie: dict[str, object], spec: JobSpec, reason: DeclineReason
) -> None:
    node = fresh()
    assignment = replace(HONEST, **lie)  # type: ignore[arg-type]
    (answer,) = node.deliver(sent(assignment, spec))
    assert isinstance(answer, effects.SendDecline) and answer.decline.reason is reason
    lease = lease_of(assignment)
    for event in script(lease):
        assert node.do(event) == ()
    assert node.deliver(sent(assignment, spec)) == (answer,), "a repeat gets the same answer"
    assert isinstance(node.execution(lease).phase, Declined) and node.core.free_slots()[0].free == 1


@pytest.mark.rule("I2")
@pytest.mark.parametrize("slots", [1, 2])
def test_no_more_assignments_are_accepted_than_there_are_slots(slots: int) -> None:
    node, answers = fresh(slots), []
    for number in range(1, 40):
        answers += node.deliver(sent(make_assignment(SPEC, number), SPEC))
    accepted = [type(item).__name__ for item in answers]
    assert accepted == ["SendAccept"] * slots + ["SendDecline"] * (39 - slots)


def test_flood_of_assignments_is_bounded_and_the_accepted_run_goes_on() -> None:
    """The provider keeps only some declined assignments. The accepted run stays, and later
    messages about it count.
    """
    node = fresh()
    lease = node.assign(1)
    node.advance(lease, Running)
    for number in range(2, provider_module.DECLINED_KEPT_MAX + 402):
        node.deliver(sent(make_assignment(SPEC, number), SPEC))
    kept = len(node.core.executions)
    assert kept == provider_module.DECLINED_KEPT_MAX + 1 == len(node.core.declined) + 1
    assert isinstance(node.execution(lease).phase, Running)
    node.advance(lease, Revealed)
    node.do(verdict(lease))
    assert isinstance(node.execution(lease).phase, Done)
    node.do(events.Tick(), after=3600)
    while node.core.declined:
        node.do(events.Tick())
    assert not node.core.executions


def test_stopped_assignments_are_kept_whole_for_minutes_only() -> None:
    """A client that orders and stops at once could otherwise fill a provider's memory for seven
    days.
    """
    node = fresh()
    for number in range(1, 101):
        assignment = make_assignment(SPEC, number, node.now)
        node.deliver(sent(assignment, SPEC))
        node.deliver(frames.StopSent(lease_of(assignment), stop(ZERO_HASH).stop))
        assert isinstance(node.execution(lease_of(assignment)).phase, Lapsed)
    for _ in range(10):
        node.do(events.Tick(), after=100)
    assert not node.core.executions and len(node.core.settled) == 100
    node.do(events.Tick(), after=7 * DAY)
    node.do(events.Tick())
    assert not node.core.settled


@pytest.mark.parametrize("end", ["verdict", "stopped"])
def test_ended_assignment_is_never_run_again(end: str) -> None:
    """A second run would have another salt. Two Commits for one Assignment are evidence against
    the provider that signed them.
    """
    node = fresh()
    assignment = replace(HONEST, accept_by=UnixSeconds(NOW + bidding.ACCEPT_AHEAD_MAX))
    frame, lease = sent(assignment, SPEC), lease_of(assignment)
    node.deliver(frame)
    if end == "verdict":
        node.advance(lease, Committed)
        node.do(verdict(lease))
    else:
        node.do(stop(lease))
    assert node.deliver(frame) == ()
    node.do(events.Tick(), after=3000)
    assert not node.core.executions
    assert node.refuses(frame) is Code.REPLAYED


def test_accept_that_the_coordinator_never_takes_frees_its_slot() -> None:
    """The coordinator claims that it listens for two hours, and never answers."""
    node = fresh()
    assignment = replace(HONEST, accept_by=UnixSeconds(NOW + bidding.ACCEPT_AHEAD_MAX))
    node.deliver(sent(assignment, SPEC))
    held = node.execution(lease_of(assignment))
    assert node.core.free_slots()[0].free == 0
    assert node.core.next_due() == held.commit_by + 1 < NOW + 700
    node.do(events.Tick(), after=held.commit_by + 1 - node.now)
    assert isinstance(node.execution(lease_of(assignment)).phase, Lapsed)
    assert node.core.free_slots()[0].free == 1


# ------------------------------------------------------------------------- frames after the commit


def committed(kind: type = Committed) -> tuple[Node, Hash32]:
    node = fresh()
    lease = node.assign()
    node.advance(lease, kind)
    return node, lease


def set_frame(
    node: Node,
    lease: Hash32,
    change: Callable[[CommitSet, CommitEntry], CommitSet],
    key: KeySigner = STATEMENT_KEY,
) -> frames.CommitSetSent:
    honest = commit_set(node.execution(lease), node.now)
    message = change(honest.commit_set.message, honest.commit_set.message.ordered[0])
    return frames.CommitSetSent(lease, seal(DOMAIN, message, key.sign))


def later(seconds: int) -> Callable[[CommitSet, CommitEntry], CommitSet]:
    return lambda found, _: replace(found, closed_at=UnixSeconds(found.closed_at + seconds))


OTHER = CommitEntry(Hash32(b"\x88" * 32), PROVIDER, Hash32(b"\x89" * 32))
SETS: dict[str, tuple[Callable[[CommitSet, CommitEntry], CommitSet], Code]] = {
    "without mine": (lambda found, _: replace(found, ordered=(OTHER,)), Code.UNKNOWN),
    "empty": (lambda found, _: replace(found, ordered=(), blinds=()), Code.UNKNOWN),
    "foreign commit": (
        lambda found, mine: replace(
            found, ordered=(replace(mine, commit_hash=Hash32(b"\x77" * 32)),)
        ),
        Code.UNKNOWN,
    ),
    "foreign provider": (
        lambda found, mine: replace(
            found, ordered=(replace(mine, provider=Address(b"\x77" * 20)),)
        ),
        Code.UNKNOWN,
    ),
    "foreign lease": (
        lambda found, mine: replace(found, ordered=(replace(mine, assignment_hash=ZERO_HASH),)),
        Code.UNKNOWN,
    ),
    "old": (later(-5), Code.STALE),
    "ahead": (later(3), Code.TOO_EARLY),
    "of the beginning of time": (
        lambda found, _: replace(found, closed_at=UnixSeconds(0)),
        Code.STALE,
    ),
    "of the end of time": (
        lambda found, _: replace(found, closed_at=UnixSeconds(2**63)),
        Code.TOO_EARLY,
    ),
}


@pytest.mark.rule("I8", "2.10", "5.23", "5.24")
@pytest.mark.parametrize("phase", [Committed, Receipted])
@pytest.mark.parametrize("name", SETS)
def test_false_commit_set_reveals_nothing(phase: type, name: str) -> None:
    node, lease = committed(phase)
    change, code = SETS[name]
    assert node.refuses(set_frame(node, lease, change)) is code
    assert node.refuses(set_frame(node, lease, later(-4), STRANGER)) is Code.WRONG_SIGNER
    (reveal,) = node.deliver(set_frame(node, lease, later(-4)))
    assert isinstance(reveal, effects.SendReveal)


@pytest.mark.rule("5.24")
@pytest.mark.parametrize(
    "change",
    [
        lambda found, mine: replace(found, ordered=(OTHER, mine), blinds=(ZERO_HASH, ZERO_HASH)),
        lambda found, mine: replace(found, ordered=(mine, OTHER), blinds=(ZERO_HASH, ZERO_HASH)),
        lambda found, _: replace(found, job_id=Hash32(b"\x01" * 32)),
        lambda found, _: replace(found, batch=Small(1)),
        lambda found, _: replace(found, beacon_round=Round(found.beacon_round + 1)),
    ],
    ids=["order", "more", "job", "batch", "round"],
)
def test_second_commit_set_of_a_batch_is_refused_as_equivocation(
    change: Callable[[CommitSet, CommitEntry], CommitSet],
) -> None:
    """Other members could copy the result. Only `closed_at` may change."""
    node, lease = committed(Revealed)
    assert node.refuses(set_frame(node, lease, change)) is Code.EQUIVOCATION
    due = execution.duties(node.execution(lease))
    again = node.deliver(set_frame(node, lease, later(1)))
    assert isinstance(again[0], effects.SendReveal)
    assert [effect.key for effect in again] != [effect.key for effect in due], "it is sent again"


@pytest.mark.rule("3.20")
def test_newest_of_contradicting_verdicts_counts() -> None:
    """A final verdict replaces a provisional one. An older verdict changes nothing, and another
    job's verdict is refused.
    """
    node, lease = committed(Revealed)

    def frame(
        seq: int, outcome: Outcome, group: tuple[Hash32, ...], job: Hash32 = JOB
    ) -> frames.VerdictSent:
        message = Verdict(
            job, Sequence(seq), Label.QUORUM_2, outcome, Small(1), group, (), (), ZERO_HASH, NOW
        )
        return frames.VerdictSent(lease, seal(DOMAIN, message, STATEMENT_KEY.sign))

    assert node.refuses(frame(1, Outcome.ACCEPTED, (lease,), Hash32(b"\x01" * 32))) is Code.UNKNOWN
    commit = node.execution(lease).commit()
    for seq, outcome in (
        (5, Outcome.ACCEPTED),
        (4, Outcome.UNRESOLVED),
        (6, Outcome.UNRESOLVED),
        (6, Outcome.ACCEPTED),
    ):
        assert node.deliver(frame(seq, outcome, (lease,))) == ()
    phase = node.execution(lease).phase
    assert isinstance(phase, Done) and phase.commit == commit
    assert (phase.verdict.message.seq, phase.verdict.message.outcome) == (6, Outcome.UNRESOLVED)


@pytest.mark.rule("3.22", "6.65")
def test_the_highest_voucher_of_the_coordinator_counts() -> None:
    node = fresh()
    for cumulative in (500, 499, 0, 500):
        node.deliver(frames.VoucherSent(voucher(cumulative).voucher))
        assert node.core.debt(COORDINATOR).vouched == 500
    stranger, other = voucher(600, STRANGER), voucher(600, payee=Address(b"\x99" * 20))
    assert node.refuses(frames.VoucherSent(stranger.voucher)) is Code.WRONG_SIGNER
    assert node.refuses(frames.VoucherSent(other.voucher)) is Code.NOT_YOURS
    assert node.refuses(frames.VoucherSent(voucher(2**96).voucher)) is Code.BAD_AMOUNT


@pytest.mark.rule("6.88")
def test_a_provider_shows_the_coordinator_the_latest_assignment_that_it_signed() -> None:
    node = fresh(slots=3)
    assert market_entry.shown(node.core.debt(COORDINATOR)) == ()
    for number, later in ((1, 0), (2, 9), (3, 4)):
        assignment = make_assignment(SPEC, number, UnixSeconds(node.now + later))
        node.deliver(sent(assignment, SPEC))
    [frame] = market_entry.shown(node.core.debt(COORDINATOR))
    assert isinstance(frame, frames.AssignmentShown)
    assert frame.assignment.message == make_assignment(SPEC, 2, UnixSeconds(node.now + 9))


def test_frames_of_a_provider_are_refused_from_a_coordinator() -> None:
    node = fresh()
    beat = seal(DOMAIN, Heartbeat(PROVIDER, Sequence(1), (), (), NOW), STATEMENT_KEY.sign)
    for frame in (frames.Ok(), frames.LogsSent(ZERO_HASH, 0, b"x"), frames.HeartbeatSent(beat)):
        assert node.refuses(frame) is Code.UNSUPPORTED
    for data in (b"", b"{}", b"[" * 10_000, b'{"frame":{"kind":"Nothing"}}', bytes(range(256))):
        with pytest.raises(Refused):
            frames.decode(data)


# ------------------------------------------------------------------------------ sequences of frames

STEPS = st.lists(
    st.tuples(st.integers(0, 13), st.integers(1, 3), st.integers(0, 5)), min_size=5, max_size=60
)


def lying(node: Node, what: int, number: int, detail: int) -> frames.Frame | events.Event | None:
    """Returns one thing that a coordinator may say about one of three assignments, or that the
    shell may report.
    """
    assignment = make_assignment(SPEC, number, NOW, price=100_000 - detail // 5)
    assignment = replace(assignment, accept_by=UnixSeconds(NOW + (5, 3000)[detail % 2]))
    lease = lease_of(assignment)
    found = node.core.executions.get(lease)
    commit = found.commit() if found else None
    match what:
        case 0 | 1:
            return sent(assignment, SPEC)
        case 2:
            return frames.StopSent(lease, stop(lease).stop)
        case 3:
            return frames.VerdictSent(lease, verdict(lease, detail).verdict)
        case 4 if found and commit:
            return set_frame(node, lease, list(SETS.values())[detail][0])
        case 5 | 6 if found and commit:
            return set_frame(node, lease, lambda message, _: message)
        case 7 if found and commit:
            return frames.ReceiptSent(receipt(found).receipt)
        case 8:
            return frames.VoucherSent(voucher(detail * 10 + number).voucher)
        case 9:
            return events.TaskFailed(lease, "disk")
        case 10:
            node.now = UnixSeconds(node.now + (1, 5, 60, 700, 4000, 100_000)[detail])
            return events.Tick()
        case _:
            moves = script(lease)
            return moves[(what + detail) % len(moves)]


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_no_sequence_of_frames_makes_anything_run_or_commit_twice(
    steps: list[tuple[int, int, int]],
) -> None:
    node = fresh()
    started: dict[Hash32, int] = {}
    commits: dict[Hash32, set[Hash32]] = {}
    reveals: dict[Hash32, set[Hash32]] = {}
    for what, number, detail in steps:
        step = lying(node, what, number, detail)
        if step is None:
            continue
        before = node.core.snapshot()
        try:
            due = node.deliver(step) if isinstance(step, frames.Frame) else node.do(step)
        except Refused:
            assert node.core.snapshot() == before
            continue
        for effect in due:
            if isinstance(effect, effects.StartTask):
                started[effect.assignment_hash] = started.get(effect.assignment_hash, 0) + 1
            elif isinstance(effect, effects.SendCommit):
                commits.setdefault(effect.assignment_hash, set()).add(digest(DOMAIN, effect.commit))
            elif isinstance(effect, effects.SendReveal):
                assert effect.assignment_hash in commits, "revealed before it was committed to"
                reveals.setdefault(effect.assignment_hash, set()).add(effect.reveal.salt)
        assert sum(item.occupies_slot for item in node.core.live()) <= 1
        twin = ProviderCore(make_terms())
        twin.restore(node.core.snapshot())
        assert twin.resume() == node.core.resume()
    assert all(times == 1 for times in started.values())
    assert all(len(found) == 1 for found in (*commits.values(), *reveals.values()))
