"""Compares two outputs in a process of its own, because strangers wrote them.

The parent gives it paths and gets one line of JSON. It has a limit of memory, of processor time and
of real time, no environment, and can write no file.
"""

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from quorate_content.comparators.report import SHOWN_MAX, Report
from quorate_content.comparators.trees import compare
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Comparator

MEMORY_BYTES = 224 << 20  # of data, beside what Python and numpy map from files
ANSWER_BYTES_MAX = 1 << 20
RETRY_SECONDS = 30.0
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


class Request(Struct, frozen=True):
    """What the process compares."""

    left: str
    right: str
    comparator: Comparator
    include: tuple[str, ...]
    seconds: int
    shown: int


async def compare_apart(
    left: Path,
    right: Path,
    comparator: Comparator,
    include: tuple[str, ...],
    seconds: int = 600,
    shown: int = SHOWN_MAX,
) -> Report:
    """Compares two folders in another process. The report names at most `shown` differences.

    Raises `Refused` if they take more memory or time than allowed, or the process fails, which
    repeats; `Unavailable` if it was killed from outside.
    """
    request = Request(str(left), str(right), comparator, include, seconds, shown)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-m",
        __name__,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        cwd="/",
    )
    try:
        async with asyncio.timeout(seconds + 10):
            answer, _ = await process.communicate(msgspec.json.encode(request))
    except TimeoutError:
        raise Refused(Code.OVERSIZE, f"comparing took more than {seconds} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0 and len(answer) <= ANSWER_BYTES_MAX:
        return msgspec.json.decode(answer, type=Report)
    if process.returncode == -24:  # SIGXCPU
        raise Refused(Code.OVERSIZE, f"comparing took more than {seconds} s of processor time")
    if process.returncode == OUT_OF_MEMORY:
        raise Refused(Code.OVERSIZE, f"comparing took more than {MEMORY_BYTES} bytes of memory")
    ended = f"the comparing process ended with {process.returncode}"
    if process.returncode in (-9, -15):  # SIGKILL, SIGTERM
        raise Unavailable(ended, RETRY_SECONDS)
    raise Refused(Code.MALFORMED, ended)


OUT_OF_MEMORY = 3


def main() -> int:
    """Reads a request from the standard input and answers on the standard output."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (request.seconds, request.seconds + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    try:
        report = compare(
            Path(request.left),
            Path(request.right),
            request.comparator,
            request.include,
            request.shown,
        )
    except MemoryError:
        return OUT_OF_MEMORY
    sys.stdout.flush()
    os.write(1, msgspec.json.encode(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
