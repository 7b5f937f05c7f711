"""Tests that log lines name their lease and hide secrets."""

import asyncio
import io
import json
import logging

import pytest

from quorate_runtime.process.logs import about, redact, setup

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
