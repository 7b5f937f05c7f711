"""The devnet's child processes: started with their log, ended together, and known to the reaper
from their first moment.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorate_protocol.refusals import Unavailable
from quorate_runtime.process.crash_points import CRASH_VARIABLE, crash_point

POLL_SECONDS = 0.02
WATCH_SECONDS = 0.5
STOP_SECONDS = 6.0
REAPED_SECONDS = 30.0
LOG_TAIL_BYTES = 1500


@dataclass(slots=True)
class Child:
    """One process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def tail(self) -> str:
        """The end of its log, for messages."""
        try:
            return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except FileNotFoundError:
            return ""  # it never wrote anything


@dataclass(slots=True)
class Family:
    """All children of one devnet and the reaper that outlives it. Blocking calls are short;
    `stop` waits.
    """

    logs: Path
    children: dict[str, Child] = field(default_factory=dict)
    _reaper: "subprocess.Popen[bytes] | None" = None

    def open(self) -> None:
        """Starts the reaper; before anything else."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / "reaper.log").open("wb") as log:
            self._reaper = subprocess.Popen(
                [sys.executable, "-m", "quorate_devnet.processes.reaper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def start(
        self, name: str, module: str, arguments: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Child:
        """Runs a module as a child of its own session, so that a Ctrl-C in the terminal reaches
        only the parent.

        A crash point that the parent was armed with is the parent's: a child is armed by `env`
        alone.
        """
        path = self.logs / f"{name}.log"
        command = [
            sys.executable,
            "-m",
            "quorate_devnet.processes.child",
            str(os.getpid()),
            module,
            *arguments,
        ]
        inherited = {key: value for key, value in os.environ.items() if key != CRASH_VARIABLE}
        crash_point("devnet.before-child")
        with path.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**inherited, **(env or {})},
            )
        self.tell({"child": process.pid})
        child = Child(name, process, path)
        self.children[name] = child
        crash_point("devnet.after-child")
        return child

    def tell(self, fact: Mapping[str, str | int]) -> None:
        """Lets the reaper know of something to clean up."""
        assert self._reaper is not None and self._reaper.stdin is not None, "open comes first"
        self._reaper.stdin.write(json.dumps(dict(fact)).encode() + b"\n")
        self._reaper.stdin.flush()

    def kill(self, name: str) -> None:
        """Ends a child with -9 and waits for it."""
        process = self.children[name].process
        process.kill()
        process.wait()

    async def ready(self, name: str, path: Path, seconds: float) -> dict[str, str]:
        """What a child wrote to its ready file. Unavailable with the end of its log when it ends
        or takes too long.
        """
        child = self.children[name]
        loop = asyncio.get_running_loop()
        limit = loop.time() + seconds
        while loop.time() < limit:
            facts = _read_facts(path)
            if facts is not None:
                return facts
            if not child.is_running:
                raise Unavailable(
                    f"{name} ended with status {child.process.returncode}:\n{child.tail()}"
                )
            await asyncio.sleep(POLL_SECONDS)
        raise Unavailable(
            f"{name} was not ready within {seconds:g} s; its log is {child.log}:\n{child.tail()}"
        )

    def ended(self) -> Child | None:
        """A child that ended although nobody asked it to."""
        return next((child for child in self.children.values() if not child.is_running), None)

    async def one_ended(self) -> Child:
        """Waits until a child ends although nobody asked it to."""
        while True:
            found = self.ended()
            if found is not None:
                return found
            await asyncio.sleep(WATCH_SECONDS)

    async def stop(self) -> None:
        """SIGTERM to all, SIGKILL after a while; then the reaper removes what they left. Safe to
        repeat.
        """
        crash_point("devnet.before-stop")
        for child in self.children.values():
            if child.is_running:
                child.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._wait_all)
        crash_point("devnet.after-stop")
        reaper, self._reaper = self._reaper, None
        if reaper is not None and reaper.stdin is not None:
            reaper.stdin.close()
            try:
                await asyncio.to_thread(reaper.wait, REAPED_SECONDS)
            except subprocess.TimeoutExpired:
                # It goes on by itself: a container engine that hangs must not hang the person at
                # the terminal.
                print((f"still cleaning up; see {self.logs / 'reaper.log'}"), file=sys.stderr)  # noqa: T201

    def _wait_all(self) -> None:
        limit = time.monotonic() + STOP_SECONDS
        for child in self.children.values():
            try:
                child.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()  # it had its time
                child.process.wait()


def _read_facts(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    facts: dict[str, str] = json.loads(path.read_text())
    return facts
