"""Reads the engine's record of a container (its answer to "inspect")."""

from collections.abc import Mapping
from datetime import datetime

from quorate_protocol.messages.ports import TaskState

Inspection = Mapping[str, "Mapping[str, object]"]
_COULD_NOT_START = (126, 127)


def container_state(found: Inspection | None) -> TaskState:
    """ABSENT if there is no container or it never started."""
    if found is None:
        return TaskState.ABSENT
    match found["State"]["Status"]:
        case "running" | "paused" | "restarting":
            return TaskState.RUNNING
        case "exited" | "dead":
            return TaskState.EXITED
        case "created" if found["State"]["ExitCode"] in _COULD_NOT_START:
            return TaskState.EXITED
        case _:
            # It is being removed, or a crash came between create and start.
            return TaskState.ABSENT


def exit_code(found: Inspection) -> int:
    code = found["State"]["ExitCode"]
    assert isinstance(code, int), "the engine gives the exit code as a number"
    return code


def process_id(found: Inspection) -> int:
    """Returns 0 if it has ended."""
    pid = found["State"]["Pid"]
    assert isinstance(pid, int), "the engine gives the process id as a number"
    return pid


def labels(found: Inspection) -> Mapping[str, str]:
    value = found["Config"]["Labels"]
    assert isinstance(value, dict), "every container that the executor makes has labels"
    return value


def unix_seconds(text: object) -> float:
    """Returns the engine's RFC 3339 time with nanoseconds as Unix seconds; 0 for its zero time."""
    value = str(text)
    return 0.0 if value.startswith("0001-") else datetime.fromisoformat(value).timestamp()
