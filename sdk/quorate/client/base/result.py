"""The result of a run."""

from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.messages.signed import Verdict
from quorate_protocol.units import (
    EXIT_MEMORY_KILL,
    EXIT_SIGNAL_BASE,
    EXIT_TIMEOUT,
    Address,
    Amount,
    ExitStatus,
    Hash32,
    Label,
    Milliseconds,
    usd,
)


@dataclass(frozen=True, slots=True)
class Result:
    """An accepted result that the client itself has checked.

    exit_status: as in PROTOCOL §3 (0-255, 256 + signal, 512 time-out, 513 memory kill). output: a
    local directory. charged: millionths of a dollar. receipt: the receipt file, which anyone can
    check with `quorate verify`.
    """

    job_id: Hash32
    exit_status: ExitStatus
    output: Path
    verdict: Verdict
    rule: Label
    providers: tuple[Address, ...]
    charged: Amount
    receipt: Path
    receipt_cid: str
    usage_ms: Milliseconds = Milliseconds(0)  # of the execution whose output this is

    def __repr__(self) -> str:
        """Returns what became of the run, with its whole id."""
        return (
            f"<Result {self.id} {describe_exit(self.exit_status)}, "
            f"{self.rule.name.lower().replace('_', '-')}, {usd(self.charged)} USD, "
            f"output={str(self.output)!r}>"
        )

    @property
    def id(self) -> str:
        """Returns the job id as 0x-hex."""
        return "0x" + self.job_id.hex()

    @property
    def is_success(self) -> bool:
        """True if the program exited with 0."""
        return self.exit_status == 0

    @property
    def is_empty(self) -> bool:
        """True if the program left no files, or its files were refused; its log says which."""
        return not any(self.output.iterdir())


def describe_exit(status: int) -> str:
    """Describes an exit status in words."""
    if status == EXIT_TIMEOUT:
        return "ran longer than max_duration"
    if status == EXIT_MEMORY_KILL:
        return "was killed because it used more memory than requested"
    if status >= EXIT_SIGNAL_BASE:
        return f"was ended by signal {status - EXIT_SIGNAL_BASE}"
    return f"exited with {status}"
