"""Reads bubblewrap's status pipe, which has one JSON object a line with process ids and an exit
code.
"""

import json

STATUS_BYTES_MAX = 1 << 16
PIDS_MAX = 1 << 22  # the kernel's own bound (PID_MAX_LIMIT)


def status_number(status: bytes, name: str) -> int | None:
    """None while no whole line has it. Skips what is no JSON object with a valid process id,
    because the supervisor sends SIGKILL to it.
    """
    for line in status.rpartition(b"\n")[0].splitlines():
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError):
            continue  # bubblewrap did not write this line
        value = tree.get(name) if isinstance(tree, dict) else None
        if type(value) is int and 0 <= value <= PIDS_MAX:
            return value
    return None
