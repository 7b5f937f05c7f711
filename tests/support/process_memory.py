"""What this process holds in memory, which stands for the daemon whose parts run in it."""

import os
from pathlib import Path


def resident_bytes() -> int:
    """Of this process, at the moment."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
