"""Measures the memory of this process, in which tests run parts of the daemons, and of others."""

import os
from pathlib import Path


def resident_bytes() -> int:
    """Returns the resident memory of this process now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
