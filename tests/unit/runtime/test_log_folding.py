"""Tests that one trouble writes one log line a minute at most, and that lines count the rest."""

import io
import logging

import pytest

from quorate_protocol.refusals import Code, Refused
from quorate_runtime.clock import VirtualClock
from quorate_runtime.peers.redial import Redial
from quorate_runtime.process import logs
from quorate_runtime.process.log_throttle import LogThrottle
from quorate_runtime.process.logs import FoldRepeats, setup

log = logging.getLogger("quorate_node.test")


def record(text: str, at: float, level: int = logging.WARNING) -> logging.LogRecord:
    found = logging.LogRecord("quorate_node.test", level, "", 0, "%s", (text,), None)
    found.created = at
    return found


def test_a_warning_that_repeats_is_written_once_a_minute_with_its_count() -> None:
    fold = FoldRepeats()
    shown = [at for at in range(130) if fold.filter(record(f"block {at} is late", at))]
    assert shown == [0, 60, 120]
    last = record("block 7 is late", 180)
    assert fold.filter(last) and last.getMessage() == "block 7 is late (9 more times before)"


def test_other_lines_are_folded_only_if_they_are_equal() -> None:
    fold, info = FoldRepeats(), logging.INFO
    assert fold.filter(record("job 1 taken", 0, info)) and fold.filter(
        record("job 2 taken", 1, info)
    )
    assert not fold.filter(record("job 1 taken", 2, info))
    assert all(fold.filter(record("broken", at, logging.ERROR)) for at in range(3))


def test_a_flood_of_different_lines_takes_bounded_memory() -> None:
    fold = FoldRepeats()
    for number in range(logs.LINES_MAX * 3):
        fold.filter(record("x" * (number % 1000) + "y" * (number // 1000), 0))
    assert len(fold._lines) <= logs.LINES_MAX


def test_every_program_folds_its_lines(stream: io.StringIO) -> None:
    setup(is_json=False, stream=stream)
    for _ in range(5):
        log.warning("the engine is away")
    assert stream.getvalue().count("the engine is away") == 1


async def test_a_server_that_stays_away_is_logged_ever_more_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, tries = VirtualClock(), 0

    async def connect() -> None:
        nonlocal tries
        tries += 1
        if tries == 400:
            return
        raise Refused(Code.WRONG_SIGNER, "no operator key")

    redial = Redial(clock, LogThrottle(log, clock), jitter=lambda: 0.5, retry_max=2.0)
    await redial.run("coordinator: no connection", connect, lambda: tries >= 402)
    lines = [item.getMessage() for item in caplog.records]
    assert 4 <= len(lines) <= 7, "800 seconds: at 0, 60, 180, 420 s, and again after the success"
    assert "more times since the last line" in lines[1] and "more times" not in lines[-1]
