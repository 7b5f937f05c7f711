"""Starts the devnet's child processes with log files, ends them together, and registers each with
the reaper.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorate_protocol.refusals import Unavailable
from quorate_runtime.process.crash_points import CRASH_VARIABLE, crash_point

POLL_SECONDS = 0.02
WATCH_SECONDS = 0.5
LEAVE_SECONDS = 0.5  # for daemons to finish what was begun; the market ends anyway
STOP_SECONDS = 6.0
REAPED_SECONDS = 30.0
LOG_TAIL_BYTES = 1500


@dataclass(slots=True)
class ChildProcess:
    """One child process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def fail_if_ended(self) -> None:
        """Raises Unavailable, with the end of its log, if it has ended."""
        if not self.is_running:
            raise Unavailable(
                f"{self.name} ended with status {self.process.returncode}:\n{self.tail()}"
            )

    def tail(self) -> str:
        try:
            return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except FileNotFoundError:
            return ""  # it never wrote a log


@dataclass(slots=True)
class ChildProcesses:
    """All children of one devnet, and the reaper that outlives them.

    The calls block for a short time; `stop` waits.
    """

    logs: Path
    children: dict[str, ChildProcess] = field(default_factory=dict)
    _reaper: "subprocess.Popen[bytes] | None" = None

    def open(self) -> None:
        """Starts the reaper. Call it before anything else."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / "reaper.log").open("wb") as log:
            self._reaper = subprocess.Popen(
                [sys.executable, "-m", "quorate_devnet.market.reaper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def start(
        self, name: str, module: str, arguments: Sequence[str], env: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Runs a module as a child in its own session, so that Ctrl-C in the terminal reaches only
        the parent.

        A crash point in the parent's environment is only for the parent. `env` sets one for the
        child.
        """
        path = self.logs / f"{name}.log"
        command = [
            sys.executable,
            "-m",
            "quorate_devnet.market.run_as_child",
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
        self.register_cleanup({"child": process.pid})
        child = ChildProcess(name, process, path)
        self.children[name] = child
        crash_point("devnet.after-child")
        return child

    def register_cleanup(self, fact: Mapping[str, str | int]) -> None:
        assert self._reaper is not None and self._reaper.stdin is not None, "open was called before"
        self._reaper.stdin.write(json.dumps(dict(fact)).encode() + b"\n")
        self._reaper.stdin.flush()

    def kill(self, name: str) -> None:
        """Kills a child with SIGKILL and waits for its end. It is no child any more."""
        process = self.children.pop(name).process
        process.kill()
        process.wait()

    async def ready(
        self,
        name: str,
        path: Path,
        seconds: float,
        is_ready: Callable[[dict[str, str]], bool] = lambda _facts: True,
    ) -> dict[str, str]:
        """Waits for a child's ready file and returns its content. Unavailable, with the end of its
        log, if it ends or is too slow.
        """
        child = self.children[name]
        loop = asyncio.get_running_loop()
        limit = loop.time() + seconds
        while loop.time() < limit:
            facts = _read_facts(path)
            if facts is not None and is_ready(facts):
                return facts
            child.fail_if_ended()
            await asyncio.sleep(POLL_SECONDS)
        raise Unavailable(
            f"{name} was not ready within {seconds:g} s; its log is {child.log}:\n{child.tail()}"
        )

    def ended(self) -> ChildProcess | None:
        return next((child for child in self.children.values() if not child.is_running), None)

    async def one_ended(self) -> ChildProcess:
        """Waits until a child ends by itself and returns it."""
        while True:
            found = self.ended()
            if found is not None:
                return found
            await asyncio.sleep(WATCH_SECONDS)

    async def stop(self) -> None:
        """Sends SIGTERM to all children, later again, which ends daemons at once, and at last
        SIGKILL; then the reaper removes what they left. Safe to repeat.
        """
        crash_point("devnet.before-stop")
        for seconds in (LEAVE_SECONDS, STOP_SECONDS):
            for child in self.children.values():
                if child.is_running:
                    child.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._wait_all, seconds)
        for child in self.children.values():
            if child.is_running:
                child.process.kill()  # its time is over
                child.process.wait()
        crash_point("devnet.after-stop")
        reaper, self._reaper = self._reaper, None
        if reaper is not None and reaper.stdin is not None:
            reaper.stdin.close()
            try:
                await asyncio.to_thread(reaper.wait, REAPED_SECONDS)
            except subprocess.TimeoutExpired:
                # The reaper continues by itself, because a hanging container engine must not block
                # the user's terminal.
                print((f"still cleaning up; see {self.logs / 'reaper.log'}"), file=sys.stderr)  # noqa: T201

    def _wait_all(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        for child in self.children.values():
            try:
                child.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # the caller tries harder


def _read_facts(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    facts: dict[str, str] = json.loads(path.read_text())
    return facts
