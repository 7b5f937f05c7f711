"""Tells whether a container ended by itself or because the container engine stopped.

An engine that stops ends its containers. They look like programs that were killed: exit code 137,
or what the program makes of SIGTERM. The engine's record of a container does not show the
difference (tried with a stop and a kill -9 of the engine), and times may jump. But the engine makes
a new bridge network whenever it starts, unless containers live on across its start. So the
network's id identifies one run of the engine. The executor writes it on each container as a label,
and believes an exit only in the same run. An engine without a bridge network has no such id. There
a stop of the engine still looks like an exit.
"""

from collections.abc import Mapping

import docker
import docker.errors

from quorate_node.executors.base.hardened_profile import LABEL_ENGINE_BOOT

BRIDGE = "bridge"


def engine_boot_id(api: docker.APIClient) -> str:
    """Returns the id of the engine's current run, or "" if it has none."""
    try:
        return str(api.inspect_network(BRIDGE)["Id"])
    except docker.errors.NotFound:
        return ""  # an engine without a bridge network


def is_of_boot(labels: Mapping[str, str], life: str) -> bool:
    """Returns whether a container was made in this run of the engine.

    A container of an earlier version of Quorate has no label; it counts as made in this run.
    """
    return labels.get(LABEL_ENGINE_BOOT, life) == life
