"""Says in plain words how a run stands: `running`, `verified`, `failed (1)`, `out of memory`."""

import time
from fnmatch import fnmatchcase
from typing import Any

from quorate.job.quantities import format_amount, format_duration
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import RunView
from quorate_protocol.units import EXIT_MEMORY_KILL, EXIT_SIGNAL_BASE, EXIT_TIMEOUT, Label, Outcome

RUN_COLUMNS = ["RUN", "NAME", "STATE", "EXIT", "AGE", "COST"]
UNDECIDED = {
    "matching": "waiting for a provider",
    "running": "running",
    "awaiting-round": "waiting for the draw",
    "revealing": "being verified",
    "rented": "running",
    "ended": "not run",
}
ENDED = "ended"
WITHOUT_RESULT = {
    Outcome.UNRESOLVED: "results differ",
    Outcome.CANNOT_VERIFY: "too few to verify",
    Outcome.LAPSED: "not finished",
}
CAUSES = {
    "waiting for a provider": "no provider has taken it yet; `quorate plan` says what is missing",
    "not run": "no provider took it in time, or it was stopped before one did",
    "starting": "its provider fetches the image, or waits for your secrets",
    "stopped": "you stopped it",
    "results differ": "no group of owners large enough had the same output",
    "too few to verify": "too few owners could repeat it",
    "unverified": "one owner ran it, and nobody checked the result",
    "not finished": "its provider gave no result in time",
    "out of memory": "it used more memory than it asked for; ask for more with --memory",
    "timed out": "it ran longer than max_duration; ask for more with --max-duration",
}
"""State -> what it means and what to do. `failed (N)` and signals speak for themselves."""


def exit_status(view: RunView) -> int | None:
    """Returns the program's exit status in the accepted result, or None."""
    if view.verdict is None or view.verdict.message.outcome is not Outcome.ACCEPTED:
        return None
    agreed = (item.exit_status for item in view.executions if item.agreed)
    return next((status for status in agreed if status is not None), None)


def state(view: RunView) -> str:
    if view.rental is not None and view.phase == ENDED:
        return "ended"
    if _starts(view):
        return "starting"
    phases = {item.phase for item in view.executions}
    is_stopped = "stopped" in phases
    if view.waits:
        return "waiting for your other runs"
    if view.verdict is None:
        return "stopped" if is_stopped else UNDECIDED.get(view.phase, view.phase)
    outcome = view.verdict.message.outcome
    if outcome is not Outcome.ACCEPTED:
        # Nothing else ends a run as lapsed that has a result.
        is_stopped |= outcome is Outcome.LAPSED and "revealed" in phases
        return "stopped" if is_stopped else WITHOUT_RESULT[outcome]
    status = exit_status(view)
    if status == EXIT_TIMEOUT:
        return "timed out"
    if status == EXIT_MEMORY_KILL:
        return "out of memory"
    if status is not None and status >= EXIT_SIGNAL_BASE:
        return f"killed (signal {status - EXIT_SIGNAL_BASE})"
    if status:
        return f"failed ({status})"
    if view.rule is Label.UNVERIFIED:
        return "unverified"
    return "verified" if view.is_final else "done, audit open"


def _starts(view: RunView) -> bool:
    """A rental, which alone has no rule, has a provider, and its machine does not run yet."""
    return view.rule is Label.NONE and view.rental is None and view.phase == "running"


def cause(view: RunView) -> str:
    """Returns why a run stands as it does, or "" if its state says it all."""
    return view.waits or CAUSES.get(state(view), "")


def run_row(view: RunView, now: float) -> list[str]:
    status = exit_status(view)
    shown = "" if status is None or status >= EXIT_SIGNAL_BASE else str(status)
    over = view.verdict is not None or view.phase == ENDED
    cost = format_amount(view.charged) if over else f"at most {format_amount(view.budget)}"
    if view.rule is Label.NONE and not over:
        cost = "nothing yet"  # never the budget: vouchers bound a rental
    if view.rental is not None and not over:
        ran = format_duration(view.rental.usage_ms // 1000)
        cost = f"{format_amount(view.charged)} for {ran} so far"
    return [
        f"0x{view.job_id.hex()[:12]}",
        view.name,
        state(view),
        shown,
        format_duration(max(0, int(now) - view.created_at)),
        cost,
    ]


def run_json(view: RunView, now: float) -> dict[str, Any]:
    """Returns a run as JSON: the coordinator's view, with state, exit status and age."""
    tree: dict[str, Any] = canonical.to_json(view)
    return tree | {
        "state": state(view),
        "exitStatus": exit_status(view),
        "ageSeconds": max(0, int(now) - view.created_at),
    }


def chosen(
    views: tuple[RunView, ...], name: str, wanted: str, seconds: int | None, last: int | None
) -> list[RunView]:
    """Returns the runs whose name, id and state fit, newest first. `name` may hold wildcards."""
    now = time.time()
    found = [
        view
        for view in views
        if (not name or fits(view.name, view.job_id, name))
        and (not wanted or state(view).startswith(wanted.lower()))
        and (seconds is None or now - view.created_at <= seconds)
    ]
    return found if last is None else found[:last]


def fits(name: str, job_id: bytes, pattern: str) -> bool:
    """Whether a run's name, or the beginning of its id, fits a pattern such as `train-*`."""
    return fnmatchcase(name, pattern) or fnmatchcase(f"0x{job_id.hex()}", f"{pattern}*")
