"""Tests the plain words for how a run stands."""

import pytest

from quorate.cli.run_state import cause, chosen, exit_status, fits, run_row, state
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Verdict
from quorate_protocol.messages.views import ExecutionView, RunView
from quorate_protocol.units import (
    Address,
    Amount,
    Hash32,
    Label,
    Outcome,
    Sequence,
    Signature,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace

ZERO = Hash32(bytes(32))


def run(
    phase: str = "running",
    outcome: Outcome | None = None,
    status: int | None = None,
    lease: str = "revealed",
    is_final: bool = True,
    name: str = "tile",
    rule: Label = Label.QUORUM_2,
) -> RunView:
    provider = Address(b"\2" * 20)
    one = ExecutionView(ZERO, provider, "primary", 0, lease, None, status, None, True, None)
    verdict = None
    if outcome is not None:
        message = Verdict(
            ZERO, Sequence(1), rule, outcome, Small(1), (), (), (), ZERO, UnixSeconds(1)
        )
        verdict = Envelope(message, Signature(bytes(65)))
    money = Amount(120), Amount(500)
    begun = UnixSeconds(1_000)
    return RunView(
        ZERO, provider, name, phase, rule, begun, (one,), verdict, *money, None, is_final, None
    )


@pytest.mark.parametrize(
    ("view", "said", "exit_code"),
    [
        (run("matching"), "waiting for a provider", None),
        (replace(run("matching"), waits="your window is 1"), "waiting for your other runs", None),
        (run("running"), "running", None),
        (run("running", rule=Label.NONE), "starting", None),
        (run("awaiting-round"), "waiting for the draw", None),
        (run("revealing"), "being verified", None),
        (run("ended"), "not run", None),
        (run("ended", lease="stopped"), "stopped", None),
        (run("decided", Outcome.ACCEPTED, 0), "verified", 0),
        (run("decided", Outcome.ACCEPTED, 0, is_final=False), "done, audit open", 0),
        (run("decided", Outcome.ACCEPTED, 0, rule=Label.UNVERIFIED), "unverified", 0),
        (run("decided", Outcome.ACCEPTED, 1), "failed (1)", 1),
        (run("decided", Outcome.ACCEPTED, 256 + 11), "killed (signal 11)", 267),
        (run("decided", Outcome.ACCEPTED, 512), "timed out", 512),
        (run("decided", Outcome.ACCEPTED, 513), "out of memory", 513),
        (run("decided", Outcome.UNRESOLVED, 0), "results differ", None),
        (run("decided", Outcome.CANNOT_VERIFY, 0), "too few to verify", None),
        (run("decided", Outcome.LAPSED, lease="lapsed"), "not finished", None),
        (run("decided", Outcome.LAPSED), "stopped", None),
        (run("decided", Outcome.LAPSED, lease="stopped"), "stopped", None),
    ],
)
def test_a_state_is_said_in_plain_words(view: RunView, said: str, exit_code: int | None) -> None:
    assert (state(view), exit_status(view)) == (said, exit_code)


def test_a_rental_that_starts_has_cost_nothing_yet_whatever_its_budget() -> None:
    assert run_row(run(rule=Label.NONE), 1_060.0)[-1] == "nothing yet"
    assert "secrets" in cause(run(rule=Label.NONE))


def test_a_row_has_exit_code_age_and_cost() -> None:
    done = run("decided", Outcome.ACCEPTED, 1)
    assert run_row(done, 4_600)[1:] == ["tile", "failed (1)", "1", "1h", "0.00012 USD"]
    assert run_row(run(), 1_000)[-1] == "at most 0.0005 USD"
    assert "--memory" in cause(run("decided", Outcome.ACCEPTED, 513)) and cause(done) == ""


def test_runs_are_chosen_by_name_state_and_number() -> None:
    views = (run("decided", Outcome.ACCEPTED, 1, name="a"), run(name="ab"), run(name="b"))
    assert [view.name for view in chosen(views, "a*", "", None, None)] == ["a", "ab"]
    assert [view.name for view in chosen(views, "", "failed", None, None)] == ["a"]
    assert [view.name for view in chosen(views, "", "", None, 2)] == ["a", "ab"]
    assert chosen(views, "", "", 60, None) == []
    assert fits("a", b"\xab\xcd", "0xab") and not fits("a", b"\xab\xcd", "b")
