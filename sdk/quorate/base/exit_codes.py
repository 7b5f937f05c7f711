"""The exit codes of every `quorate` command. Scripts rely on them, so a number never changes its
meaning.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a `quorate` process."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNAVAILABLE = 4
    INVALID_EVIDENCE = 5
    NOT_VERIFIED = 6
    NO_PROFILE = 7
    CANCELLED = 8
    PARTLY_FAILED = 9
    BUG = 70
    INTERRUPTED = 130


MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "done; for a job: its program exited 0 and the result was accepted",
    ExitCode.JOB_FAILED: (
        "the result was accepted, and the program itself failed, ran out of time or of memory"
    ),
    ExitCode.USAGE: "the command line or job file is wrong; nothing was sent",
    ExitCode.REFUSED: (
        "the coordinator or the chain refused; the message says which limit to relax"
    ),
    ExitCode.UNAVAILABLE: (
        "coordinator, chain or store cannot be reached or took too long; try again"
    ),
    ExitCode.INVALID_EVIDENCE: "a receipt, verdict, charge or output does not verify",
    ExitCode.NOT_VERIFIED: (
        "the job ended without an accepted result (unresolved, cannot verify, lapsed)"
    ),
    ExitCode.NO_PROFILE: "no usable profile or wrong passphrase; run `quorate init`",
    ExitCode.CANCELLED: "you answered no, or stopped the run",
    ExitCode.PARTLY_FAILED: (
        "some runs of a sweep succeeded, others did not; the table says which"
    ),
    ExitCode.BUG: "a bug in quorate itself",
    ExitCode.INTERRUPTED: "interrupted from the keyboard; a submitted run goes on",
}
"""Code -> meaning, for the documentation and for `quorate exit-codes`."""
