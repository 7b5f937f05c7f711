"""The configuration of the provider daemon: one frozen `Config`, built from flags, file and
defaults.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from quorate_content.store.disk_share import disk_bytes, half_of_disk
from quorate_node.core.terms import MAX_HELD_DEFAULT
from quorate_protocol.rules.tabs import TRUST_DEFAULT
from quorate_protocol.units import Amount, JobKind, Price

GIB = 1 << 30
STORE_BYTES_MIN = 20 * GIB  # of the content store, if the owner sets no size
STORE_SPARE_BYTES_MAX = 2 * GIB  # of disk that the content store leaves free for everything else


class ExecutorKind(StrEnum):
    """Which executor runs jobs, and in which sandbox.

    `auto` takes the strongest that is there: docker, else bwrap, else process on a devnet, else it
    is an error. `docker` uses gVisor (runsc) if the engine has it, else runc. `docker-runc` and
    `docker-runsc` insist on one of them, and are an error if the engine does not have it.
    """

    AUTO = "auto"
    DOCKER = "docker"
    DOCKER_RUNC = "docker-runc"
    DOCKER_RUNSC = "docker-runsc"
    BWRAP = "bwrap"
    PROCESS = "process"
    NOOP = "noop"


class AttestationChoice(StrEnum):
    """Up to which level the provider has its slots attested: not at all, or by challenges."""

    NONE = "none"
    L1 = "L1"


class TransportChoice(StrEnum):
    """How the provider connects to coordinators.

    `auto` uses libp2p where it is installed and the coordinator shows an address, with WebSocket as
    stand-in. The others insist on one of them.
    """

    AUTO = "auto"
    LIBP2P = "libp2p"
    WEBSOCKET = "websocket"


FEE_CAP_GWEI = 500


class GpuLayout(Struct, frozen=True):
    """Which GPU slots to make: `count` slots with `size` GPUs each."""

    model: str = ""  # as people call it; "" = GPUs of any model
    size: int = 1  # GPUs of one slot
    count: int = 0  # 0 = as many slots as there are GPUs for


class GpuPrice(Struct, frozen=True):
    """The price of one GPU and hour, in micro-USD; a slot of two GPUs costs twice."""

    price: Price
    model: str = ""  # "" = every model that has no price of its own


EVERY_GPU = (GpuLayout(),)
"""Each GPU is a slot of its own."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one daemon. Sizes are in bytes; prices in micro-USD per slot-hour."""

    home: Path
    coordinators: tuple[str, ...]  # base URLs
    executor: ExecutorKind = ExecutorKind.AUTO
    is_devnet: bool = False  # allows the process executor
    slots: int = 1  # CPU run slots, each with its stake slot
    gpu_slots: tuple[GpuLayout, ...] = EVERY_GPU
    gpu_prices: tuple[GpuPrice, ...] = ()  # GPUs without a price are not offered
    price: Price = Price(100_000)
    price_floor: Price = Price(0)
    jury_price: Price = Price(0)  # of a slot-hour that a jury takes
    jury_slots: int = 1  # the most that take part in juries at once
    jury_cases: int = 24  # the most in 24 hours
    probation: bool = False  # without stake, offers one run slot, and stakes what it earns
    images: tuple[str, ...] = ()  # allowed images; empty = any
    kinds: tuple[JobKind, ...] = (JobKind.TASK,)
    region: str = ""
    transport: TransportChoice = TransportChoice.AUTO
    listen_host: str = "127.0.0.1"
    listen_port: int = 7710
    public_url: str = ""  # where others reach the gateway; empty = http://host:port as it listens
    # Of the content store: inputs, and outputs until two weeks after their pay.
    store_quota_bytes: int = STORE_BYTES_MIN
    ipfs_gateways: tuple[str, ...] = ()  # asked for content before the coordinators' stores
    ipfs_kubo: str = ""  # RPC URL of a Kubo, whose gateway is asked too
    attestation: AttestationChoice = AttestationChoice.NONE
    stop_on_exit: bool = False
    # At exit, how long to wait for running jobs; 0 = jobs go on without the daemon.
    drain_seconds: int = 0
    trust: Amount = TRUST_DEFAULT  # what the owner works for beyond a coordinator's guarantee
    max_held: Amount = MAX_HELD_DEFAULT  # of pay that one coordinator holds without a voucher
    chain_url: str = ""  # empty = the node that the first coordinator names
    second_chain_url: str = ""  # if named, only what both nodes say counts
    fee_cap_gwei: int = FEE_CAP_GWEI  # the most that a transaction may pay per gas
    declined_keep_seconds: int = 600  # how long the core remembers a declined Assignment
    noop_milliseconds: int = 0  # noop executor only: how long a task takes
    engine_url: str = ""  # docker only; empty = as the environment says
    cpu_millis: int = 0  # per run slot; 0 = the machine divided by the slots
    memory_bytes: int = 0  # per run slot; 0 = the machine divided by the slots
    scratch_bytes: int = 8 * GIB
    output_bytes: int = 4 * GIB
    input_bytes: int = 0  # of one job; 0 = as much as the content store may hold
    registry_image_bytes: int = 16 * GIB  # the largest image of a registry
    # Room for job images in the container engine. The longest unused image is removed first.
    engine_image_bytes: int = 64 * GIB
    # The first of the host's users that jobs run as, one for each run slot; 0 = derived from home.
    job_user: int = 0

    @property
    def job_input_bytes(self) -> int:
        """Returns the most bytes of inputs that one job may have."""
        return self.input_bytes or self.store_quota_bytes

    def chain_urls(self, named: str) -> list[str]:
        """Returns the chain nodes to use: the owner's, else the one that a coordinator names."""
        return [url for url in (self.chain_url or named, self.second_chain_url) if url]

    def path(self, name: str) -> Path:
        """Returns the path of a file or folder in this daemon's home."""
        return self.home / name


def store_bytes(given: int, home: Path) -> int:
    """Returns the content store's quota. 0 means half of the disk that `home` is on, and at least
    20 GiB.
    """
    return given or half_of_disk(home, STORE_BYTES_MIN)


def store_spare_bytes(home: Path) -> int:
    """Returns how much of the disk the content store leaves free, whatever its quota is."""
    return min(STORE_SPARE_BYTES_MAX, disk_bytes(home) // 20)
