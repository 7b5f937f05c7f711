"""The limits of a bounded HTTP listener. Config files read them without loading aiohttp."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one address, and all addresses together, may hold open, and how slow they may be."""

    connections_max: int = 8_192
    address_connections_max: int = 256
    head_and_idle_seconds: float = 30.0  # until a connection's next request head is whole
    # over which a reader's speed is measured, and in which a stream's reader must take its bytes
    write_seconds: float = 30.0
    read_bytes_per_second: float = 4.0 * 1024  # of a client whose answer is waiting
