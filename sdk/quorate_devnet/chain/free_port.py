"""A free port, for programs that cannot choose and report their own."""

import contextlib
import random
import socket

# Below the ports that the kernel gives to outgoing connections: between the choice and its use,
# one of those could take the port.
LOWEST = 10_240
HIGHEST = 32_767
ATTEMPTS = 100


def free_port(host: str) -> int:
    """Returns a port on which nobody listens now. It is chosen in advance, because a part that is
    started again must use the same port.
    """
    chance = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = chance.randint(LOWEST, HIGHEST)
        with socket.socket() as probe, contextlib.suppress(OSError):  # taken: the next one
            probe.bind((host, port))
            return port
    raise OSError(f"no free port between {LOWEST} and {HIGHEST} on {host}")
