"""Processes that have to do with a folder, as the machine's own list of them tells."""

import os
from collections.abc import Collection
from pathlib import Path


def processes(folder: Path, known: Collection[int] = ()) -> list[str]:
    """Command lines of everything that names the folder, works in it or sees a mount of it;
    without this process and `known` ones.
    """
    ours = _link(os.getpid(), "ns/mnt")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), *known):
            pid = int(entry.name)
            words = _read(pid, "cmdline").replace("\0", " ").strip()
            # A sandbox's own program names no place of the machine, but its mounts do. Whoever
            # shares our mounts would show all of ours.
            mounts = _read(pid, "mountinfo") if _link(pid, "ns/mnt") != ours else ""
            if any(str(folder) in text for text in (words, _link(pid, "cwd"), mounts)):
                found.append(f"{pid}: {words or _read(pid, 'comm').strip()}")
    return found


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""  # it ended while we looked


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""  # likewise
