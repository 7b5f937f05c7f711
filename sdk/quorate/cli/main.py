"""The `quorate` script. It imports everything else inside `run_main`, where Ctrl-C is already
handled.
"""

import os
import signal
import sys

BUG, INTERRUPTED = 70, 130  # as in ExitCode, which is not imported yet


def main(arguments: list[str] | None = None) -> None:
    """Runs the `quorate` script. Errors with a message never show a stack trace."""
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None:  # so that SIGTERM too leaves no files behind
        signal.signal(signal.SIGTERM, _end)
    try:
        code = int(run_main(words))
    # A bug is shown whole. Python's own exit code 1 would mean a job that failed.
    except Exception:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        code = BUG
    sys.exit(code)


def _end(_number: int, _frame: object) -> None:
    """As Ctrl-C would, which a shell lets its background jobs ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def run_main(words: list[str]) -> int:
    """Runs one command line and returns its exit code."""
    # The parent closed them (`>&-`), so output goes nowhere.
    if sys.stdout is None or sys.stderr is None:
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    try:
        if words[:1] == ["stream"]:
            from quorate.cli import stream

            if (carried := stream.run(words)) is not None:
                return carried
        # Loading the packages takes most of a second, and a user may press Ctrl-C during it.
        from quorate.cli.app import answer

        code = answer(words)
    except KeyboardInterrupt:  # the program ends with its own exit code
        code = INTERRUPTED
    if code == INTERRUPTED:
        is_clients = not words or words[0] not in ("node", "coordinator", "devnet")
        sys.stderr.write(f"quorate: interrupted{'; ordered runs go on' * is_clients}\n")
    return code
