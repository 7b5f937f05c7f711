"""The process that cleans up after a devnet, also when the devnet was killed with -9.

It reads what there is to clean from its standard input, one JSON object a line, and acts when
that pipe ends: whoever held the other end is gone then. Standard library only until it acts;
nothing signals it (its own session, signals ignored).

    {"child": 123}                                 a process to kill
    {"processes": "DIR"}                           a process or bwrap executor's home: its programs are killed
    {"containers": "LABEL", "home": "DIR"}         everything that a docker executor of that owner label holds
"""

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

LINE_BYTES_MAX = 64 * 1024
GONE_SECONDS = 5.0
LATE_SECONDS = 2.0


@dataclass(slots=True)
class Estate:
    """What a devnet leaves behind. Process ids are held by descriptor, so that a reused id is
    never signalled.
    """

    children: list[int] = field(default_factory=list)
    processes: list[Path] = field(default_factory=list)
    containers: list[tuple[str, Path]] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Takes one line."""
        tree = json.loads(line)
        if "child" in tree:
            try:
                self.children.append(os.pidfd_open(tree["child"]))
            except ProcessLookupError:
                pass  # it has ended already
        elif "processes" in tree:
            self.processes.append(Path(tree["processes"]))
        else:
            self.containers.append((tree["containers"], Path(tree["home"])))

    def settle(self) -> None:
        """Kills first, so that nobody starts anything while the rest is cleaned."""
        is_unclean = False
        for descriptor in self.children:
            is_unclean |= not select.select([descriptor], [], [], 0)[0]
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
        limit = time.monotonic() + GONE_SECONDS
        for descriptor in self.children:
            select.select([descriptor], [], [], max(0.0, limit - time.monotonic()))
        self._remove_programs()
        self._remove_containers()
        if is_unclean and self.containers:
            # Whoever was killed may just have asked the engine for a container, which appears a
            # moment later.
            time.sleep(LATE_SECONDS)
            self._remove_containers()

    def _remove_programs(self) -> None:
        if not any(home.is_dir() and any(home.iterdir()) for home in self.processes):
            return
        from quorate_node.executors.cleanup import reap_processes

        for home in self.processes:
            reap_processes(home)

    def _remove_containers(self) -> None:
        if not self.containers:
            return
        import docker.errors

        from quorate_node.executors.cleanup import reap

        for owner, home in self.containers:
            try:
                reap(owner, home)
            except (docker.errors.DockerException, OSError) as error:
                # Not re-raised: one label's failure must not keep the others' containers alive.
                sys.stderr.write(f"containers of {owner} may be left: {error}\n")


def main() -> None:
    """Collects until the pipe ends, then settles."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    estate = Estate()
    while line := sys.stdin.readline(LINE_BYTES_MAX):
        estate.note(line)
    estate.settle()


if __name__ == "__main__":
    main()
