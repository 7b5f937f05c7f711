"""The settings files of a devnet's coordinator and provider processes, written by the parent."""

import time
from pathlib import Path

from msgspec import Struct

from quorate_contracts.deploy import Deployment
from quorate_node.base.config import AttestationChoice
from quorate_protocol.codec import canonical
from quorate_protocol.units import Address, Price
from quorate_runtime.files import write_atomic

FILE_BYTES_MAX = 64 * 1024
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02


class CoordinatorSettings(Struct, frozen=True):
    """Input of `quorate_devnet.market.run_coordinator`. Paths are absolute. The ready file
    receives the URL.
    """

    home: str
    password_file: str
    deployment: Deployment
    chain_url: str
    beacon_url: str
    port: int
    ready_file: str
    p2p_listen: str = ""  # multiaddr; empty = no libp2p
    ipfs_gateways: tuple[str, ...] = ()


class ProviderSettings(Struct, frozen=True):
    """Input of `quorate_devnet.market.run_provider`. An empty `lie_key` means honest."""

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
    images: tuple[str, ...] = ()  # images that the owner allows; empty means any
    declined_keep_seconds: int = 600
    ipfs_gateways: tuple[str, ...] = ()
    attestation: AttestationChoice = AttestationChoice.NONE


def write(path: Path, settings: CoordinatorSettings | ProviderSettings) -> None:
    """Writes the settings for the child, whole or not at all."""
    write_atomic(path, canonical.encode(settings))


def read_coordinator(path: Path) -> CoordinatorSettings:
    """Reads the settings in the child."""
    return canonical.decode(CoordinatorSettings, path.read_bytes(), FILE_BYTES_MAX)


def read_provider(path: Path) -> ProviderSettings:
    """Reads the settings in the child."""
    return canonical.decode(ProviderSettings, path.read_bytes(), FILE_BYTES_MAX)


def await_file(path: Path) -> None:
    """Waits until a file exists, but not for ever, because its writer may have failed. Blocks."""
    limit = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > limit:
            raise SystemExit(f"{path} was not written in time; the parent may have failed")
        time.sleep(POLL_SECONDS)
