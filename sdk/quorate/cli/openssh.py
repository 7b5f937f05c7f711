"""Runs OpenSSH's programs against rentals, with the profile's own configuration."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from quorate.base.errors import EvidenceError, UnavailableError, UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli.context import Context
from quorate.client.market import Market
from quorate.client.rental import Rental
from quorate.rentals.ssh_files import NO_SSH, Host, SshFiles

SSH_FAILED = 255
WRONG_KEY = "host key verification failed"


def need(program: str) -> None:
    """Raises UsageError if it is not installed."""
    if shutil.which(program) is None:
        raise UsageError(NO_SSH.format(program))


def write_config(context: Context, market: Market) -> list[Host]:
    """Writes the configuration for all open rentals of the profile. Of a name the newest counts."""
    entries = {entry.name: entry for entry in reversed(market.open_rentals())}
    hosts = [Host(entry.name, entry.job_id) for entry in entries.values()]
    SshFiles(context.home_in_use()).write_config(hosts, stream_words(context))
    return hosts


def stream_words(context: Context) -> list[str]:
    """The words of `quorate stream`, as any shell may run them from anywhere."""
    program = shutil.which(sys.argv[0]) or shutil.which("quorate") or sys.argv[0]
    return [str(Path(program).absolute()), "stream", *context.profile_flags()]


def words_of(rental: Rental, program: str, *words: str) -> list[str]:
    return [program, "-F", str(rental.files.config), *words]


def call(rental: Rental, words: Sequence[str]) -> int:
    """Runs a program of OpenSSH in the foreground. Returns its exit status, which of `ssh` is that
    of the command. If it failed by itself, raises an error that says why.
    """
    process = subprocess.Popen(words)
    # The terminal sends an interrupt to both.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = signal.signal(signal.SIGTERM, lambda _number, _frame: process.terminate())
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, end)
    if status == SSH_FAILED:
        output(rental, "true")
    return status if status >= 0 else ExitCode.INTERRUPTED


def output(rental: Rental, command: str, data: bytes = b"", target: int = subprocess.PIPE) -> bytes:
    """Runs a command of the machine's shell, which reads `data`. Returns what it prints, unless
    `target` gets it.

    Raises EvidenceError for a wrong host key, UnavailableError without a connection, and UsageError
    if the command fails.
    """
    words = words_of(rental, "ssh", "-T", "-o", "BatchMode=yes", rental.host.alias, command)
    try:
        done = subprocess.run(words, input=data, stdout=target, stderr=subprocess.PIPE, check=False)
    except OSError as error:
        raise UsageError(NO_SSH.format("ssh")) from error
    told = done.stderr.decode(errors="replace").strip()
    name = rental.run.name
    if done.returncode == SSH_FAILED and WRONG_KEY in told.lower():
        raise EvidenceError(
            f"rental {name}: the machine shows another SSH host key than its provider's signed "
            f"offer, so somebody is in between; end it: quorate stop {name}"
        )
    if done.returncode == SSH_FAILED:
        last = told.splitlines()[-1:] or ["ssh says nothing"]
        raise UnavailableError(f"rental {name}: no connection: {_own(told) or last[0]}")
    if done.returncode:
        raise UsageError(f"rental {name}: a command failed ({done.returncode}): {told[-300:]}")
    return done.stdout or b""


def _own(told: str) -> str:
    """What `quorate stream` said."""
    lines = [line.removeprefix("quorate: ") for line in told.splitlines() if "quorate: " in line]
    return lines[0] if lines else ""
