"""Runs the peers' programs in an environment of their own, and ends everything they started."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import loopback

HERE = Path(__file__).parent
VENV = HERE.parents[2] / ".venv-peers"
INSTALL_SECONDS = 300
RUN_SECONDS = 120
MARK = "QUORATE_PEERS_RUN"
"""A variable in the environment of every process that a peer starts; it finds processes that are
left.
"""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONWARNINGS": "ignore",
    "DO_NOT_TRACK": "1",
}


class Missing(Exception):
    """A peer that cannot be installed or did not run; the text says why."""


def install(name: str) -> None:
    """Installs the line of requirements.txt that starts with `name`, unless it is installed.

    Missing with pip's last line.
    """
    group = next(
        line
        for line in (HERE / "requirements.txt").read_text().splitlines()
        if line.startswith(name)
    ).split()
    stamp = VENV / f"installed-{name}"
    if stamp.exists() and stamp.read_text().split() == group:
        return
    try:
        if not (VENV / "bin" / "pip").exists():
            _silently(sys.executable, "-m", "venv", str(VENV))
        print(f"peers: installing {' '.join(group)}", file=sys.stderr)
        words = [
            "--quiet",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--no-input",
            "--prefer-binary",
        ]
        _silently(str(VENV / "bin" / "pip"), "install", *words, *group)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise Missing(
            f"{name} could not be installed: {said[-1][:200] if said else error}"
        ) from error
    stamp.write_text("\n".join(group))


def _silently(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)


def run(program: str, folder: Path, count: int, calm: int, *more: str) -> dict[str, float]:
    """The output of `work_*.py`. Missing when it cannot run here."""
    folder.mkdir(parents=True)
    mark = uuid.uuid4().hex
    words = ["--count", str(count), "--calm", str(calm), "--folder", str(folder), *more]
    try:
        command = [*loopback.entering(), str(VENV / "bin" / "python"), str(HERE / program), *words]
        done = subprocess.run(
            command,
            env=os.environ | QUIET | {MARK: mark},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{program} did not run: {str(error)[:200]}") from error
    finally:
        end_all(mark)
    if done.returncode:
        raise Missing(
            f"{program} ended with status {done.returncode}: "
            f"{(done.stderr.strip().splitlines() or ['no word'])[-1][:200]}"
        )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def end_all(mark: str) -> int:
    """Kills processes that still carry the mark; returns how many there were."""
    deadline, killed = time.monotonic() + 10, set()
    while (left := _marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended by itself
                continue
            killed.add(pid)
        time.sleep(0.05)
    return len(killed)


def _marked(mark: str) -> list[int]:
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found
