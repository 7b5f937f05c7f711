"""What a devnet's coordinator and provider processes are told: one small file each, written by
the supervisor.
"""

import time
from pathlib import Path

from msgspec import Struct

from quorate_contracts.deploy import Deployment
from quorate_protocol.codec import canonical
from quorate_protocol.units import Address, Price

FILE_BYTES_MAX = 64 * 1024
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02


class CoordinatorSettings(Struct, frozen=True):
    """Input of `quorate_devnet.processes.run_coordinator`. Paths are absolute; the ready file
    tells the URL.
    """

    home: str
    password_file: str
    deployment: Deployment
    chain_url: str
    beacon_url: str
    port: int
    ready_file: str
    claims_for_all: bool = True


class ProviderSettings(Struct, frozen=True):
    """Input of `quorate_devnet.processes.run_provider`. `lie_key` empty = honest."""

    home: str
    password_file: str
    coordinator_url: str
    chain_url: str
    executor: str
    label: str
    host: str
    port: int
    slots: int
    price: Price
    payout: Address
    noop_milliseconds: int
    stop_on_exit: bool
    lie_key: bytes
    ready_file: str
    images: tuple[str, ...] = ()  # what the owner allows; empty = any
    declined_keep_seconds: int = 600


def write(path: Path, settings: CoordinatorSettings | ProviderSettings) -> None:
    """For the child; whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(canonical.encode(settings))
    part.replace(path)


def read_coordinator(path: Path) -> CoordinatorSettings:
    """In the child."""
    return canonical.decode(CoordinatorSettings, path.read_bytes(), FILE_BYTES_MAX)


def read_provider(path: Path) -> ProviderSettings:
    """In the child."""
    return canonical.decode(ProviderSettings, path.read_bytes(), FILE_BYTES_MAX)


def await_file(path: Path) -> None:
    """Until it is there; whoever should write it may have failed, so not for ever. Blocking."""
    limit = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > limit:
            raise SystemExit(f"{path} never came")
        time.sleep(POLL_SECONDS)
