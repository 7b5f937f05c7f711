"""One frozen `Config` of the provider daemon, built once in `cli.py` from flags, environment,
file and defaults.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from quorate_protocol.units import Amount, JobKind, Price

GIB = 1 << 30
STORE_GIB = 20  # of the content store: inputs, and outputs for two weeks after they were paid


class ExecutorKind(StrEnum):
    """Which adapter runs jobs, and in which sandbox.

    `auto`: the strongest there is, that is docker, else bwrap, else process on a devnet, else an
    error. `docker`: gVisor (runsc) where the engine knows it, else runc. The other two insist on
    one of them, and are an error where the engine has it not.
    """

    AUTO = "auto"
    DOCKER = "docker"
    DOCKER_RUNC = "docker-runc"
    DOCKER_RUNSC = "docker-runsc"
    BWRAP = "bwrap"
    PROCESS = "process"
    NOOP = "noop"


FEE_CAP_GWEI = 500


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the daemon is told. Bytes; prices in micro-USD per slot-hour."""

    home: Path
    coordinators: tuple[str, ...]  # base URLs
    executor: ExecutorKind = ExecutorKind.AUTO
    is_devnet: bool = False  # allows the process executor
    slots: int = 1  # run slots, each with its stake slot
    price: Price = Price(100_000)
    price_floor: Price = Price(0)
    images: tuple[str, ...] = ()  # allowed images; empty = any
    kinds: tuple[JobKind, ...] = (JobKind.TASK,)
    region: str = ""
    listen_host: str = "127.0.0.1"
    listen_port: int = 7710
    public_url: str = ""  # how others reach the gateway; empty = http://host:port as bound
    store_quota_bytes: int = STORE_GIB * GIB
    stop_on_exit: bool = False
    drain_seconds: int = (
        0  # at the end, how long to wait for what runs; 0 = jobs go on without the daemon
    )
    claim_least: Amount = Amount(1)  # smaller credits wait for a later epoch
    chain_url: str = ""  # empty = what the first coordinator names
    fee_cap_gwei: int = FEE_CAP_GWEI  # the most that a transaction pays per gas
    declined_keep_seconds: int = 600  # how long an assignment is remembered that was declined
    noop_milliseconds: int = 0  # noop executor only: how long a task takes
    engine_url: str = ""  # docker only; empty = the environment's
    cpu_millis: int = 0  # per run slot; 0 = the machine divided by the slots
    memory_bytes: int = 0  # likewise
    scratch_bytes: int = 8 * GIB
    output_bytes: int = 4 * GIB
    input_bytes: int = 16 * GIB  # also the most that an image of a registry may have
    engine_image_bytes: int = (
        64 * GIB
    )  # of images that jobs brought into the container engine; the longest unused go

    def path(self, name: str) -> Path:
        """A file or folder of this daemon."""
        return self.home / name
