"""Measures the memory of this process, in which the tests run parts of the daemons."""

import os
from pathlib import Path


def resident_bytes() -> int:
    """Returns the resident memory of this process now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
