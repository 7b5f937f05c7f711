"""Which life of the container engine a container belongs to.

An engine that stops ends its containers, and they look exactly like programs that were killed:
exit code 137, or whatever a program makes of SIGTERM. Nothing in a container's own record tells
the two apart (tried with a stop and a kill -9 of the engine), and times could be compared only
as long as no clock jumps. But the engine makes its bridge network anew whenever it starts,
unless containers live on across its start, so the network's id names the engine's life: a
container is labelled with it, and an ending counts only in the same life. An engine without a
bridge network has one life for ever; there a stop of the engine still looks like an exit.
"""

from collections.abc import Mapping

import docker
import docker.errors

from quorate_node.executors.docker.hardened_profile import LABEL_LIFE

BRIDGE = "bridge"


def engine_life(api: docker.APIClient) -> str:
    """Id of the engine's life; "" where it cannot be told."""
    try:
        return str(api.inspect_network(BRIDGE)["Id"])
    except docker.errors.NotFound:
        return ""  # an engine without a bridge: see above


def is_of_life(labels: Mapping[str, str], life: str) -> bool:
    """Whether a container was made in this life. One that an earlier version made has no label,
    and nothing is held against it.
    """
    return labels.get(LABEL_LIFE, life) == life
