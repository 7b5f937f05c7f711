"""A daemon is killed with SIGKILL at every crash point of the journal, and started again.

Every event that it acknowledged is there, every effect that it decided is performed, and its state
follows from its events.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from quorate_protocol.refusals import Unavailable
from quorate_protocol.step import Input
from quorate_protocol.units import Amount, Hash32
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.journal_port import JournalFailed
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal import journal_files
from quorate_runtime.journal.journal import Journal
from quorate_runtime.process import crash_points
from support.journal.ledger_core import Effect, Event, Ledger, Notify, Paid, ledger_codec

TESTS = Path(__file__).parents[2]
DAEMON = ("-m", "support.journal.ledger_daemon")
POINTS = [
    "actor.before-append:1",
    "actor.before-append:10",
    "journal.before-commit:1",
    "journal.before-commit:6",
    "journal.after-commit:1",
    "journal.after-commit:6",
    "effect.before:5",
    "effect.after.Notify:1",
    "effect.after:5",
]


def run_daemon(folder: Path, *options: str) -> "tuple[int, list[list[str]]]":
    """Runs the daemon; returns its exit status and the lines that it printed."""
    result = subprocess.run(
        [sys.executable, *DAEMON, folder, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode, [line.split() for line in result.stdout.splitlines()]


async def replayed(folder: Path) -> Ledger:
    """The state after all kept events, from the older snapshot and without the daemon's code."""
    core, codec, journal, after = Ledger(), ledger_codec(), Journal.open(folder), 0
    with closing(sqlite3.connect(journal_files.database(folder))) as connection:
        snapshots = connection.execute(
            "SELECT offset, payload FROM snapshots ORDER BY offset"
        ).fetchall()
    if len(snapshots) == journal_files.SNAPSHOTS_KEPT:
        after, payload = snapshots[0]
        core.restore(payload[8:])
    for stored in journal.replay(after):
        core.step(
            Input(
                stored.record.at,
                stored.record.random,
                codec.decode_event(stored.record.version, stored.record.payload),
            )
        )
    await journal.close()
    return core


@pytest.mark.rule("I6", "5.65")
@pytest.mark.parametrize("point", POINTS)
async def test_daemon_killed_anywhere_keeps_replies_and_performs_every_effect(
    tmp_path: Path, point: str
) -> None:
    status, lines = await asyncio.to_thread(
        run_daemon, tmp_path / "j", "--events", "6", "--crash-at", point
    )
    assert status == -signal.SIGKILL
    told = {(line[1], int(line[2])) for line in lines if line[0] == "reply"}
    effects = [line[1] for line in lines if line[0] == "effect"]
    status, again = await asyncio.to_thread(run_daemon, tmp_path / "j", "--events", "1")
    assert status == 0
    effects_again = [line[1] for line in again if line[0] == "effect"]
    core = await replayed(tmp_path / "j")
    assert [line[1] for line in again if line[0] == "state"] == [core.snapshot().hex()]
    assert all(
        core.balances[f"caller {number}"] > balance for number, balance in told
    )  # the second run paid one more each
    assert set(effects) | set(effects_again) == {f"notify/{n}" for n in range(1, core.count + 1)}
    if point.startswith("effect.after"):
        assert effects[-1] in effects_again  # performed and not yet marked, so performed once more
    if point.startswith("effect.before"):
        assert not set(effects_again) <= set(effects)


async def test_full_disk_ends_the_actor_before_any_further_reply_or_effect(tmp_path: Path) -> None:
    done: list[Effect] = []

    async def perform(effect: Effect) -> None:
        done.append(effect)

    journal = Journal.open(tmp_path / "j", pages_max=24)
    actor: Actor[Event, Effect] = Actor(
        Ledger(), journal, SystemClock(), ledger_codec(), lambda: Hash32(os.urandom(32))
    )
    actor.bind(perform)
    await actor.start()
    running = asyncio.create_task(actor.run())
    told: list[tuple[str, object]] = []
    refused: list[BaseException] = []

    async def caller(name: str) -> None:
        try:
            for _ in range(1000):
                told.append((name, await actor.submit(Paid(name, Amount(1)))))
        except (JournalFailed, Unavailable) as error:
            # What this test waits for.
            refused.append(error)

    await asyncio.gather(*(caller("x" * 200 + str(n)) for n in range(8)))
    with pytest.raises(ExceptionGroup) as ended:
        await running
    assert ended.group_contains(JournalFailed) and len(refused) == 8
    await journal.close()
    core = await replayed(tmp_path / "j")
    count = core.count
    assert told and len(told) <= count
    assert all(
        isinstance(balance, int) and core.balances[name] >= balance for name, balance in told
    )
    assert {effect.number for effect in done if isinstance(effect, Notify)} <= set(
        range(1, count + 1)
    )


def test_crash_points_are_checked_and_silent_unless_armed() -> None:
    crash_points.configure("")
    crash_points.crash_point("journal.before-commit")
    for text in ("x:0", "x:-1", "x:one"):
        with pytest.raises(AssertionError):
            crash_points.configure(text)
    crash_points.configure("journal:9")
    crash_points.crash_point("journalist")
    crash_points.crash_point("actor.before-append")
    crash_points.configure("")
