"""The process that cleans up after a devnet, even one killed with SIGKILL.

It reads from standard input what to clean up, one JSON object per line. It acts when the pipe ends,
because then the devnet is gone. Until then it uses only the standard library. It has its own
session and ignores signals.

    {"child": 123}                           a process to kill
    {"processes": "DIR"}                     home of a process or bwrap executor: kills its programs
    {"containers": "LABEL", "home": "DIR"}   removes all that a docker executor of that label holds
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
class CleanupList:
    """What a devnet may leave behind.

    It keeps processes by descriptor, so that it never signals a reused process id.
    """

    children: list[int] = field(default_factory=list)
    processes: list[Path] = field(default_factory=list)
    containers: list[tuple[str, Path]] = field(default_factory=list)

    def add(self, line: str) -> None:
        tree = json.loads(line)
        if "child" in tree:
            try:
                self.children.append(os.pidfd_open(tree["child"]))
            except ProcessLookupError:
                pass  # it has already ended
        elif "processes" in tree:
            self.processes.append(Path(tree["processes"]))
        else:
            self.containers.append((tree["containers"], Path(tree["home"])))

    def clean_up(self) -> None:
        """Kills processes first, so that nothing new starts during the rest of the clean-up."""
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
            # A killed process may have just asked the engine for a container, which appears a
            # moment later.
            time.sleep(LATE_SECONDS)
            self._remove_containers()

    def _remove_programs(self) -> None:
        if not any(home.is_dir() and any(home.iterdir()) for home in self.processes):
            return
        from quorate_node.executors.sandbox.supervised_leases import reap_processes

        for home in self.processes:
            reap_processes(home)

    def _remove_containers(self) -> None:
        if not self.containers:
            return
        import docker.errors

        from quorate_node.executors.docker.lease_dirs import reap
        from quorate_node.executors.docker.lease_keeper import end_keeper

        for owner, home in self.containers:
            try:
                end_keeper(home)
                reap(owner, home)
            except (docker.errors.DockerException, OSError) as error:
                # Not re-raised: a failure with one label must not keep the others' containers
                # alive.
                sys.stderr.write(f"containers of {owner} may be left: {error}\n")


def main() -> None:
    """Collects lines until the pipe ends, then cleans up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    cleanup = CleanupList()
    while line := sys.stdin.readline(LINE_BYTES_MAX):
        cleanup.add(line)
    cleanup.clean_up()


if __name__ == "__main__":
    main()
