"""What `unlock` and `lock` of `quorate node` and `quorate coordinator` have in common."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from quorate_protocol.refusals import Code, Refused
from quorate_runtime.keys import key_agent

SPAN = re.compile(r"([1-9][0-9]{0,5})(m|min|h|d)")
UNIT_SECONDS = {"m": 60, "min": 60, "h": 3_600, "d": 86_400}


def span_seconds(text: str) -> int:
    found = SPAN.fullmatch(text)
    seconds = int(found[1]) * UNIT_SECONDS[found[2]] if found else 0
    if not 0 < seconds <= key_agent.SECONDS_MAX:
        raise Refused(Code.MALFORMED, f"--for {text[:40]!r}: at most 7d, such as 30m or 8h")
    return seconds


def unlock(
    keys: Path, names: Sequence[str], ask: Callable[[], str], span: str, as_json: bool
) -> str:
    """Starts the agent that holds the named keys of a folder. Returns what to print. Raises Refused
    for a wrong span, and KeystoreError if the keys cannot be opened.
    """
    seconds = span_seconds(span)
    agent = key_agent.start(keys, names, ask(), seconds)
    if as_json:
        return json.dumps({"home": str(keys.parent), "unlockedUntil": int(agent.until)})
    until = datetime.fromtimestamp(agent.until).astimezone()
    return f"unlocked until {until:%Y-%m-%d %H:%M}; `lock` in place of `unlock` ends it"


def lock(keys: Path, as_json: bool) -> str:
    was_open = key_agent.lock(keys)
    if as_json:
        return json.dumps({"wasUnlocked": was_open})
    return "locked" if was_open else "it was locked already"
