"""A large output on a devnet: from the sandbox through sealing, upload, check and download.

QUORATE_OUTPUT_GIB sets its size; no daemon's memory grows with it. With -s it prints the figures.
"""

import os
import time
from pathlib import Path

import pytest

from quorate import Job, Market
from support.requirements import require

GIB = 1 << 30
SIZE = int(os.environ.get("QUORATE_OUTPUT_GIB", "1")) * GIB
MOST_RESIDENT = 400 << 20
PROGRAM = """
import sys
with open("/outputs/checkpoint", "wb") as file:
    for number in range(int(sys.argv[1]) >> 24):
        file.seek(number << 24)
        file.write(number.to_bytes(8, "big"))
    file.truncate(int(sys.argv[1]))
"""


def most_resident(parent: int) -> int:
    """Returns the most memory that a descendant of a process ever had, in bytes."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue  # it has ended
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if int(fields["PPid"]) == parent:
            own = int(fields.get("VmHWM", "0").split()[0]) << 10
            found = max(found, own, most_resident(int(status.parent.name)))
    return found


@pytest.mark.slow
@pytest.mark.rule("4.82", "4.89")
async def test_an_output_of_gigabytes_arrives_with_flat_memory(image: Path, tmp_path: Path) -> None:
    require("bwrap")
    require("mounts")
    job = Job(
        image=image,
        command=["python3", "-c", PROGRAM, str(SIZE)],
        max_price=5,
        max_duration="5m",
        resources={"outputs": SIZE + (1 << 20)},
    )
    began = time.monotonic()
    async with Market.local(providers=3, executor="bwrap", folder=tmp_path / "net") as market:
        ready = time.monotonic()
        result = await (await market.submit(job)).result(tmp_path / "output")
        peak = most_resident(os.getpid())
    assert result.is_success and len(result.providers) == 2
    written = result.output / "checkpoint"
    assert written.stat().st_size == SIZE
    with written.open("rb") as file:
        file.seek(SIZE - (1 << 24))
        assert int.from_bytes(file.read(8), "big") == (SIZE >> 24) - 1
    assert peak < MOST_RESIDENT
    took = time.monotonic() - ready
    print(f"{SIZE >> 30} GiB in {took:.0f} s after {ready - began:.0f} s; {peak >> 20} MiB at most")
