"""Tests log lines: they name their lease, hide secrets, and repeat one trouble once a minute."""

import asyncio
import io
import json
import logging

import pytest

from quorate_protocol.refusals import Code, Refused
from quorate_runtime.peers.redial import Redial
from quorate_runtime.process import logs
from quorate_runtime.process.log_throttle import LogThrottle
from quorate_runtime.process.logs import FoldRepeats, about, redact, setup
from support.virtual_clock import VirtualClock

log = logging.getLogger("quorate_node.test")


async def test_json_lines_name_lease_and_job_in_tasks_too(stream: io.StringIO) -> None:
    setup(is_json=True, stream=stream)

    async def work() -> None:
        log.info("started %s", "x", extra={"gpu": "0", "password": "hunter2"})

    with about(lease="ab" * 32, job="cd"):
        task = asyncio.create_task(work())
    await task
    log.info("outside")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["lease"] == "ab" * 32 and first["job"] == "cd" and first["message"] == "started x"
    assert first["gpu"] == "0" and first["password"] == "[redacted]" and first["level"] == "info"
    assert first["time"].endswith("+00:00") and "lease" not in second


def test_human_lines_are_one_line_and_short(stream: io.StringIO) -> None:
    setup(is_json=False, stream=stream)
    with about(lease="ab" * 32):
        log.warning("said %s", "a\nforged line")
    assert (
        stream.getvalue().count("\n") == 1
        and "lease=ababababab" in stream.getvalue()
        and "ab" * 6 not in stream.getvalue()
    )
    try:
        raise ValueError("token=abc123")
    except ValueError:
        log.exception("failed")
    assert "ValueError: token=[redacted]" in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password=hunter2 x", "password=[redacted] x"),
        ('{"token": "hunter2", "a": 1}', "a"),
        ("Authorization: Bearer hunter2.x", "Authorization: [redacted]"),
        ("sent Bearer hunter2", "sent Bearer [redacted]"),
        ("https://me:hunter2@example.org/x", "https://me:[redacted]@example.org/x"),
        ("salt: hunter2", "salt: [redacted]"),
    ],
)
def test_secrets_are_redacted(text: str, kept: str) -> None:
    assert "hunter2" not in redact(text) and kept in redact(text)


def test_hashes_are_not_secrets() -> None:
    text = "commit 0x" + "ab" * 32 + " of job bafy"
    assert redact(text) == text


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
