"""A small daemon that tests kill: the ledger over a real journal.

It pays `--events` times, then waits until all effects are performed. It prints `reply <n>` for each
acknowledged payment, `effect <key>` for each performed effect, and last `state <hex>`.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from quorate_protocol.units import Amount, Hash32
from quorate_runtime.actor.actor import Actor
from quorate_runtime.clock import SystemClock
from quorate_runtime.journal.journal import Journal
from quorate_runtime.process import crash_points
from support.journal.ledger_core import Effect, Event, Ledger, Paid, ledger_codec

CALLERS = 4
SNAPSHOT_EVERY = 7


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def perform(effect: Effect) -> None:
    say(f"effect {effect.key}")


async def main(folder: Path, events: int) -> None:
    """Runs the daemon once."""
    journal = Journal.open(folder)
    core = Ledger()
    actor: Actor[Event, Effect] = Actor(
        core,
        journal,
        SystemClock(),
        ledger_codec(),
        lambda: Hash32(os.urandom(32)),
        snapshot_every=SNAPSHOT_EVERY,
    )
    actor.bind(perform)
    await actor.start()
    running = asyncio.create_task(actor.run())

    async def caller(number: int) -> None:
        for index in range(events):
            balance = await actor.submit(Paid(f"caller {number}", Amount(1)))
            assert balance == core.balances[f"caller {number}"], index
            say(f"reply {number} {balance}")

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    while journal.pending_effects():
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    say(f"state {core.snapshot().hex()}")
    await journal.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--crash-at", default="")
    arguments = parser.parse_args()
    crash_points.configure(arguments.crash_at)
    asyncio.run(main(arguments.folder, arguments.events))
