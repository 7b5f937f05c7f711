"""A process that tests kill: many callers append to one journal.

It prints `ok <offset>` for each acknowledgement. Exit status 3 means that an append failed, 4 that
the folder is in use.
"""

import argparse
import asyncio
import resource
import signal
import sys
from itertools import count
from pathlib import Path

from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.actor.journal_port import JournalBusy, JournalFailed, Record
from quorate_runtime.journal.journal import Journal
from quorate_runtime.process import crash_points

CALLERS = 32
APPENDS_MAX = 200_000


async def main(folder: Path, appends: int) -> None:
    """Appends so many times, then waits until the process is killed."""
    journal = Journal.open(folder)
    numbers = count(1)

    async def caller() -> None:
        for number in numbers:
            if number > appends:
                return
            payload = b"event %d " % number * 20
            appended = await journal.append(
                Record(1, UnixSeconds(number), Hash32(bytes(32)), payload),
                [(f"k{number}", b"effect")],
            )
            sys.stdout.write(f"ok {appended.offset}\n")
            sys.stdout.flush()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--crash-at", default="")
    parser.add_argument("--file-bytes-max", type=int)
    parser.add_argument("--appends", type=int, default=APPENDS_MAX)
    arguments = parser.parse_args()
    crash_points.configure(arguments.crash_at)
    if arguments.file_bytes_max:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (arguments.file_bytes_max, arguments.file_bytes_max)
        )
    try:
        asyncio.run(main(arguments.folder, arguments.appends))
    except JournalFailed as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    except JournalBusy as error:
        print(error, file=sys.stderr)
        sys.exit(4)
