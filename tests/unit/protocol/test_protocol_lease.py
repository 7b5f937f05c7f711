"""Tests the lease machine as a table of every phase and every event.

Each deadline is tested at its last second and one second later.
"""

import pytest

from quorate_coordinator.core.model import lease as machine
from quorate_coordinator.core.model.events import (
    AcceptReceived,
    CommitReceived,
    DeclineReceived,
    RevealReceived,
    Tick,
)
from quorate_coordinator.core.model.lease import Effect, Lease
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.commitment import commitment, result_digest
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Accept, Assignment, Commit, Decline, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    Address,
    DeclineReason,
    ExitStatus,
    Hash32,
    Milliseconds,
    Price,
    PriceTier,
    Round,
    Seconds,
    Signature,
    UnixSeconds,
)
from support.offers import MACHINE

NOW = 1_000
PROVIDER = Address(b"\x01" * 20)
SIG = Signature(bytes(65))
HASH, CLASS, SALT, OUTPUT = (Hash32(bytes([number]) * 32) for number in (2, 3, 4, 5))
ASSIGNMENT = Assignment(
    HASH,
    Address(bytes(20)),
    PROVIDER,
    HASH,
    HASH,
    PriceTier.ON_DEMAND,
    Price(100),
    Seconds(60),
    UnixSeconds(NOW + 5),
)
ACCEPT = Accept(HASH, MACHINE.digest(), Seconds(10), Seconds(1), Seconds(5), UnixSeconds(NOW))
COMMIT_BY = NOW + 10 + 60 + 5 + DEVNET.commit_grace
REVEAL = Reveal(HASH, PROVIDER, ExitStatus(0), OUTPUT, SALT)
COMMIT = Commit(
    HASH,
    CLASS,
    commitment(HASH, PROVIDER, SALT, result_digest(ExitStatus(0), OUTPUT)),
    OUTPUT,
    Milliseconds(9),
    Round(1),
)
OTHER_COMMIT = Commit(HASH, CLASS, SALT, OUTPUT, Milliseconds(9), Round(1))
DECLINE = Decline(HASH, DeclineReason.BUSY, UnixSeconds(0), UnixSeconds(NOW))


def sealed(message):  # type: ignore[no-untyped-def]
    return Envelope(message, SIG)


PHASES: dict[str, machine.Phase] = {
    "Assigned": machine.Assigned(),
    "Accepted": machine.Accepted(
        sealed(ACCEPT), UnixSeconds(COMMIT_BY), UnixSeconds(COMMIT_BY), UnixSeconds(NOW)
    ),
    "Committed": machine.Committed(sealed(COMMIT), UnixSeconds(NOW)),
    "Closed": machine.Closed(sealed(COMMIT), UnixSeconds(NOW + 6)),
    "Revealed": machine.Revealed(sealed(COMMIT), REVEAL, result_digest(ExitStatus(0), OUTPUT)),
    "Declined": machine.Declined(UnixSeconds(0)),
    "Lapsed": machine.Lapsed(was_accepted=True),
    "Silent": machine.Silent(sealed(COMMIT)),
    "Stopped": machine.Stopped(),
    "Live": machine.Live(sealed(ACCEPT), UnixSeconds(NOW), Milliseconds(9)),
    "Returned": machine.Returned(Milliseconds(9)),
}
EVENTS: dict[str, machine.Event] = {
    "accept": AcceptReceived(sealed(ACCEPT), PROVIDER),
    "decline": DeclineReceived(sealed(DECLINE), PROVIDER),
    "commit": CommitReceived(sealed(COMMIT), PROVIDER, is_stored=True),
    "other commit": CommitReceived(sealed(OTHER_COMMIT), PROVIDER, is_stored=True),
    "progress": machine.ProgressReported(is_fetching=False),
    "close": machine.BatchClosed(UnixSeconds(NOW)),
    "reveal": RevealReceived(REVEAL, has_opened=True),
    "stop": machine.ClientStopped(),
    "tick": Tick(),
}
ROWS = list(PHASES)
# Columns as in ROWS. "=": nothing changes. First letters: the next phase. Else a refusal: W
# means wrong-phase, Q means equivocation.
TABLE = {
    # In the order of PHASES, from Assigned to Returned.
    "accept": "Accepted =         W      W        W W W W W W    W",
    "decline": "Declined Lapsed    W      W        W = = W W W    W",
    "commit": "W        Committed =      =        = W W = W W    W",
    "other commit": "W        Committed Q      Q        Q W W Q W W    W",
    "progress": "=        Accepted  =      =        = = = = = =    =",
    "close": "W        W         Closed Closed   = W W W W W    W",
    "reveal": "W        W         W      Revealed = W W W W W    W",
    "stop": "Stopped  Accepted  =      =        = = = = = =    =",
    "tick": "=        =         =      =        = = = = = =    =",
}
REFUSALS = {"W": Code.WRONG_PHASE, "Q": Code.EQUIVOCATION}
CASES = [
    (row, event, cell)
    for event, line in TABLE.items()
    for row, cell in zip(ROWS, line.split(), strict=True)
]


def lease(phase: machine.Phase) -> Lease:
    return Lease(sealed(ASSIGNMENT), HASH, HASH, 0, HASH, 0, phase)


def step(
    phase: machine.Phase, event: machine.Event, at: int = NOW
) -> tuple[Lease, tuple[Effect, ...]]:
    return machine.step(lease(phase), event, UnixSeconds(at), DEVNET)


def test_the_table_has_every_phase_and_event() -> None:
    assert len(CASES) == len(PHASES) * len(EVENTS)
    assert {type(phase) for phase in PHASES.values()} == set(machine.Phase.__args__)


@pytest.mark.rule("4.1", "5.22")
@pytest.mark.parametrize(("phase", "event", "expected"), CASES)
def test_each_event_in_each_phase_does_what_the_table_says(
    phase: str, event: str, expected: str
) -> None:
    before = PHASES[phase]
    if expected in REFUSALS:
        with pytest.raises(Refused) as caught:
            step(before, EVENTS[event])
        assert caught.value.code is REFUSALS[expected]
        return
    moved, _ = step(before, EVENTS[event])
    assert type(moved.phase).__name__ == (phase if expected == "=" else expected)
    if expected == "=":
        assert moved == lease(before), "a repeat changes nothing"


@pytest.mark.rule("4.5")
@pytest.mark.parametrize(
    ("phase", "event", "last", "code"),
    [
        ("Assigned", "accept", NOW + 5, Code.TOO_LATE),
        ("Accepted", "commit", COMMIT_BY, Code.TOO_LATE),
        ("Closed", "reveal", NOW + 6, Code.TOO_LATE),
    ],
)
def test_deadlines_are_inclusive(phase: str, event: str, last: int, code: Code) -> None:
    moved, _ = step(PHASES[phase], EVENTS[event], last)
    assert type(moved.phase) is not type(PHASES[phase])
    with pytest.raises(Refused) as caught:
        step(PHASES[phase], EVENTS[event], last + 1)
    assert caught.value.code is code


@pytest.mark.rule("4.7", "5.18")
@pytest.mark.parametrize(
    ("phase", "last", "expected"),
    [
        ("Assigned", NOW + 5, machine.Lapsed(False)),
        ("Accepted", COMMIT_BY, machine.Lapsed(True)),
        ("Closed", NOW + 6, PHASES["Silent"]),
    ],
)
def test_a_tick_ends_an_overdue_lease(phase: str, last: int, expected: machine.Phase) -> None:
    assert step(PHASES[phase], Tick(), last)[0].phase == PHASES[phase]
    assert step(PHASES[phase], Tick(), last + 1)[0].phase == expected


@pytest.mark.rule("4.47")
def test_a_lease_that_no_heartbeat_names_lapses() -> None:
    accepted, _ = step(PHASES["Assigned"], EVENTS["accept"])
    last = NOW + DEVNET.lease_silence
    assert step(accepted.phase, Tick(), last)[0].phase == accepted.phase
    assert step(accepted.phase, Tick(), last + 1)[0].phase == machine.Lapsed(True)
    with pytest.raises(Refused, match="no heartbeat named this lease") as caught:
        step(accepted.phase, EVENTS["commit"], last + 1)
    assert caught.value.code is Code.TOO_LATE
    named, _ = step(accepted.phase, EVENTS["progress"], last)
    assert step(named.phase, Tick(), last + DEVNET.lease_silence)[0].phase == named.phase
    assert isinstance(step(named.phase, EVENTS["commit"], last + 1)[0].phase, machine.Committed)


@pytest.mark.rule("4.47")
def test_a_lease_that_is_fetched_for_longer_than_quoted_lapses() -> None:
    accepted, _ = step(PHASES["Assigned"], EVENTS["accept"])
    fetching = machine.ProgressReported(is_fetching=True)
    last = NOW + ACCEPT.quoted_fetch_seconds + DEVNET.commit_grace
    named, _ = step(accepted.phase, fetching, last)
    assert step(named.phase, Tick(), last + 1)[0].phase == named.phase
    late, _ = step(named.phase, fetching, last + 1)
    lapsed = machine.Lapsed(True)
    assert step(late.phase, Tick(), last + 1)[0].phase == lapsed
    running, _ = step(named.phase, EVENTS["progress"], last + 1)
    assert step(running.phase, Tick(), last + 2)[0].phase == running.phase


@pytest.mark.rule("4.43")
def test_a_stop_leaves_an_accepted_lease_the_time_to_store_what_it_has() -> None:
    stopped, effects = step(PHASES["Accepted"], EVENTS["stop"], NOW + 7)
    assert not effects and isinstance(stopped.phase, machine.Accepted)
    assert stopped.phase.commit_by == NOW + 7 + 5 + DEVNET.commit_grace
    late, _ = step(PHASES["Accepted"], EVENTS["stop"], COMMIT_BY)
    assert late.phase == PHASES["Accepted"]


@pytest.mark.rule("4.4")
def test_commit_by_comes_from_the_signed_accept() -> None:
    moved, _ = step(PHASES["Assigned"], EVENTS["accept"], NOW + 4)
    assert isinstance(moved.phase, machine.Accepted) and moved.phase.commit_by == COMMIT_BY


@pytest.mark.rule("4.2")
@pytest.mark.parametrize(
    ("start_by", "kept"),
    [
        (0, False),
        (NOW, False),
        (NOW + 1, True),
        (NOW + DEVNET.decline_ahead_max, True),
        (NOW + 21, False),
    ],
)
def test_a_decline_may_ask_to_wait_only_within_bounds(start_by: int, kept: bool) -> None:
    decline = Decline(HASH, DeclineReason.BUSY, UnixSeconds(start_by), UnixSeconds(NOW))
    moved, effects = step(machine.Assigned(), DeclineReceived(sealed(decline), PROVIDER))
    assert moved.phase == machine.Declined(UnixSeconds(start_by if kept else 0))
    assert effects == (Effect.SLOT_FREED, Effect.PLACE_KEPT if kept else Effect.PLACE_OPEN)


@pytest.mark.rule("I8", "3.19")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"salt": OUTPUT}, Code.DOES_NOT_OPEN),
        ({"exit_status": ExitStatus(1)}, Code.DOES_NOT_OPEN),
        ({"output_digest": SALT}, Code.DOES_NOT_OPEN),
        ({"provider": Address(b"\x09" * 20)}, Code.WRONG_SIGNER),
    ],
)
def test_a_reveal_must_open_its_commitment(change: dict[str, object], code: Code) -> None:
    from quorate_protocol.values import replace

    with pytest.raises(Refused) as caught:
        step(PHASES["Closed"], RevealReceived(replace(REVEAL, **change), has_opened=True))  # type: ignore[arg-type]
    assert caught.value.code is code


@pytest.mark.rule("3.13", "3.14")
@pytest.mark.parametrize(
    ("quoted", "time", "code"),
    [(10**6, NOW, Code.BAD_AMOUNT), (1, NOW - 100, Code.STALE), (1, NOW + 6, Code.STALE)],
)
def test_an_accept_out_of_bounds_is_refused(quoted: int, time: int, code: Code) -> None:
    accept = Accept(
        HASH, MACHINE.digest(), Seconds(quoted), Seconds(1), Seconds(5), UnixSeconds(time)
    )
    with pytest.raises(Refused) as caught:
        step(machine.Assigned(), AcceptReceived(sealed(accept), PROVIDER))
    assert caught.value.code is code


@pytest.mark.rule("4.6")
@pytest.mark.parametrize("phase", ROWS)
def test_a_run_slot_is_taken_until_the_commit(phase: str) -> None:
    assert lease(PHASES[phase]).occupies_slot == (phase in ("Assigned", "Accepted", "Live"))
    assert lease(PHASES[phase]).is_terminal == (
        phase in ("Revealed", "Declined", "Lapsed", "Silent", "Stopped", "Returned")
    )


@pytest.mark.rule("5.25")
def test_a_commit_set_that_is_signed_again_restarts_the_reveal_time() -> None:
    moved, _ = step(PHASES["Closed"], machine.BatchClosed(UnixSeconds(NOW + 3)), NOW + 3)
    assert moved.phase == machine.Closed(
        sealed(COMMIT), UnixSeconds(NOW + 3 + DEVNET.reveal_within)
    )


@pytest.mark.rule("4.5")
def test_a_reveal_in_time_counts_while_its_large_ciphertext_is_opened() -> None:
    arriving = RevealReceived(REVEAL, False, Seconds(100))
    moved, effects = step(PHASES["Closed"], arriving, NOW + 1)
    assert isinstance(moved.phase, machine.Closed) and not effects
    assert moved.phase.reveal_by == NOW + 101
    again, _ = step(moved.phase, arriving, NOW + 90)
    assert again.phase == moved.phase, "what does not open gets no more time"
    closed, _ = step(moved.phase, machine.BatchClosed(UnixSeconds(NOW + 3)), NOW + 3)
    assert closed.phase == moved.phase
    opened, _ = step(moved.phase, RevealReceived(REVEAL, has_opened=True), NOW + 100)
    assert isinstance(opened.phase, machine.Revealed)
    silent, _ = step(moved.phase, Tick(), NOW + 102)
    assert isinstance(silent.phase, machine.Silent)
