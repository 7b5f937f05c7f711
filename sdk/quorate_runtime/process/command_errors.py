"""Says why a command of `quorate node`, `coordinator` or `chain` failed, in one way for all three.

The sentence goes to standard error. With --json one object goes to standard output too:
{"error": CODE, "detail": SENTENCE, "exitCode": STATUS}.
"""

import json
import sys
from contextvars import ContextVar

EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_UNAVAILABLE = 1, 2, 3, 4
CODES = {
    EXIT_FAILED: "failed",
    EXIT_USAGE: "usage",
    EXIT_REFUSED: "refused",
    EXIT_UNAVAILABLE: "unavailable",
}
"""What `error` says for a failure that has no code of the protocol."""

_is_json: ContextVar[bool] = ContextVar("is_json", default=False)


def remember_json(is_json: bool) -> bool:
    """Keeps whether the command was given --json. It is the callback of that option."""
    _is_json.set(is_json)
    return is_json


def say_error(program: str, text: str, status: int, code: str = "") -> None:
    """Says what is wrong. `code` is the protocol's word for it; "" = by the exit status."""
    if _is_json.get():
        facts = {"error": code or CODES[status], "detail": text, "exitCode": status}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    sys.stderr.write(f"{program}: {text}\n")
    sys.stderr.flush()
