"""Finds processes that use a folder, from /proc."""

import os
from collections.abc import Collection
from pathlib import Path


def processes(folder: Path, known: Collection[int] = ()) -> list[str]:
    """Returns command lines of processes that name the folder, work in it or see a mount of it.

    This process and the `known` ones are left out.
    """
    ours = _link(os.getpid(), "ns/mnt")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), *known):
            pid = int(entry.name)
            words = _read(pid, "cmdline").replace("\0", " ").strip()
            # A sandbox's program names no path of the machine, but its mounts do. Processes that
            # share our mount namespace would show all of ours.
            mounts = _read(pid, "mountinfo") if _link(pid, "ns/mnt") != ours else ""
            if any(str(folder) in text for text in (words, _link(pid, "cwd"), mounts)):
                found.append(f"{pid}: {words or _read(pid, 'comm').strip()}")
    return found


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""  # it ended during the read


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""  # it ended during the read
