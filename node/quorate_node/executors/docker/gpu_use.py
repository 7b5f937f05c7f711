"""Asks the engine whether a container still runs on a GPU."""

import docker

from quorate_node.executors.docker.hardened_profile import LABEL_GPUS, LABEL_LEASE
from quorate_protocol.ports import Task
from quorate_protocol.refusals import Unavailable

_RETRY_SECONDS = 1.0


def check_unused(api: docker.APIClient, task: Task) -> None:
    """Raises Unavailable while a container of another lease runs on a GPU of the task.

    A lease that was given up may still end its container, and another provider on this machine may
    offer the same GPUs. The caller tries again.
    """
    for item in api.containers(filters={"label": LABEL_GPUS}):
        labels = item["Labels"]
        used = set(task.gpus) & set(labels[LABEL_GPUS].split())
        if used and labels.get(LABEL_LEASE) != task.lease_id:
            raise Unavailable(
                f"GPU {', '.join(sorted(used))} is still used by container {item['Id'][:12]}",
                _RETRY_SECONDS,
            )
