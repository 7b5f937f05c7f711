"""A rental's streams: MB/s of OpenSSH's scp, and milliseconds of a shell and of commands.

Client, SSH server and container share this machine; prints one JSON line.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from quorate.images import build_python_image
from support.executors.rented import MIB, Rental, client, ran, read_until, rented, shell_image


async def copied(rental: Rental, mib: int) -> dict[str, float]:
    """MB/s with the start of scp and of its connection."""
    here, back = rental.folder / "here", rental.folder / "back"
    here.write_bytes(os.urandom(MIB) * mib)
    rates = {}
    for name, source, target in (
        ("scp_up_mb_s", str(here), rental.at("there")),
        ("scp_down_mb_s", rental.at("there"), str(back)),
    ):
        began = time.monotonic()
        found = await ran(rental.copy(source, target), seconds=300)
        assert found.status == 0, found
        rates[name] = round(mib * MIB / 1e6 / (time.monotonic() - began), 1)
    assert back.stat().st_size == here.stat().st_size
    return rates


async def shell(rental: Rental, count: int) -> dict[str, float]:
    """From a line to the shell's answer in its terminal, and from a command to its end on an open
    connection.
    """
    async with client(rental) as connection:
        process = await connection.create_process(term_type="xterm")
        process.stdin.write("echo rea''dy; while read n; do echo got$n.; done\n")
        await read_until(process, "ready")
        answers, commands = [], []
        for number in range(count):
            began = time.monotonic()
            process.stdin.write(f"{number}\n")
            await read_until(process, f"got{number}.")
            answers.append(time.monotonic() - began)
        for _ in range(max(3, count // 10)):
            began = time.monotonic()
            assert (await connection.run("echo x")).stdout == "x\n"
            commands.append(time.monotonic() - began)
    return {
        "shell_rtt_ms": round(statistics.median(answers) * 1000, 2),
        "shell_rtt_max_ms": round(max(answers) * 1000, 2),
        "command_ms": round(statistics.median(commands) * 1000, 1),
    }


async def measure(folder: Path, mib: int, count: int) -> dict[str, float]:
    base = build_python_image(folder / "python.tar", ()).path
    image = shell_image(base, folder / "shells.tar")
    size = max(256, 2 * mib) * MIB
    async with rented(image, folder, scratch_bytes=size, disk_scratch_bytes=size) as rental:
        return {"mib": mib, **await copied(rental, mib), **await shell(rental, count)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), given.mib, given.count))))


if __name__ == "__main__":
    main()
