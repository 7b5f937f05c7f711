"""The `quorate` script, as little of it as can be: everything else is imported inside, where
Ctrl-C is already answered.
"""

import os
import sys

BUG, INTERRUPTED = 70, 130  # as in ExitCode, known before anything is imported


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `quorate` script: never shows a trace for an error that has a sentence."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = int(run_main(words))
    # a bug, shown whole; Python's own status for it is what a job that failed ends with
    except Exception:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        code = BUG
    sys.exit(code)


def run_main(words: list[str]) -> int:
    """Exit code of one command line."""
    if (
        sys.stdout is None or sys.stderr is None
    ):  # closed by whoever started us (`>&-`): what is said goes nowhere
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    try:
        # Loading the packages takes the better part of a second, and Ctrl-C in it is as ordinary as
        # later.
        from quorate.cli.app import answer

        code = answer(words)
    except KeyboardInterrupt:  # the end of the program, with its own exit code
        code = INTERRUPTED
    if code == INTERRUPTED:
        sys.stderr.write("quorate: interrupted; submitted runs go on\n")
    return code
