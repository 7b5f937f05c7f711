"""Ports: the interfaces that shells implement and cores never import.

Only signatures live here: no asyncio, no IO. Every adapter and every fake is held to the same
tests. Errors: `Refused` when the request breaks a rule, `Unavailable` when the world fails and a
retry may help.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, BlockNumber, Milliseconds, Round, Seconds, Signature


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> float:
        """Unix seconds, UTC."""

    async def sleep(self, seconds: float) -> None:
        """Waits; a virtual clock advances instead."""


# ------------------------------------------------------------------------------------------- beacon


class BeaconRound(Struct, frozen=True):
    """One drand-format round: `randomness` = sha256(signature), signature = BLS over
    sha256(round as 8 bytes big-endian).
    """

    round: Round
    signature: bytes  # 48-byte compressed G1 point (quicknet scheme bls-unchained-g1-rfc9380)
    randomness: bytes  # 32 bytes


class BeaconInfo(Struct, frozen=True):
    """What everybody must agree on about a beacon."""

    public_key: bytes  # 96-byte compressed G2 point
    period: Seconds
    genesis_time: int  # round r appears at genesis_time + (r - 1) * period


class Beacon(Protocol):
    """Public randomness; every round handed out has been verified against the public key."""

    info: BeaconInfo

    async def round(self, number: Round) -> BeaconRound | None:
        """A verified round, or None while it has not appeared."""


# ----------------------------------------------------------------------------------------- executor


class Sandbox(StrEnum):
    """What stands between a job and the owner's machine; a field of the offer."""

    DOCKER_RUNC = "docker-runc"
    DOCKER_RUNSC = "docker-runsc"
    BWRAP = "bwrap"
    PROCESS = "process"  # devnet only: no protection
    NOOP = "noop"  # tests only: nothing runs


class Mount(Struct, frozen=True):
    """A read-only input: a verified file or directory of the content store."""

    source: Path
    target: str  # absolute path inside, below /inputs unless the job says otherwise


class Task(Struct, frozen=True):
    """Everything an executor may know about one lease. `lease_id` (hex) names the container, so
    start is idempotent.
    """

    lease_id: str
    image: Path | str  # docker archive in the content store, or name@sha256:digest
    argv: tuple[str, ...]  # replaces entry point and command of the image; empty = the image's own
    env: Mapping[str, str]
    working_dir: str
    mounts: tuple[Mount, ...]
    cpu_millis: int  # thousandths of a core
    memory_bytes: int
    shm_bytes: int
    scratch_bytes: int
    output_bytes: int
    output_inodes: int
    pids: int
    max_duration: Seconds
    gpus: tuple[str, ...] = ()  # GPU UUIDs


class TaskState(StrEnum):
    """Observed state of one lease's container."""

    ABSENT = "absent"
    RUNNING = "running"
    EXITED = "exited"


class Usage(Struct, frozen=True):
    """Measured use of one execution; `wall_ms` from container start to exit is what is paid."""

    wall_ms: Milliseconds
    cpu_ms: int = 0
    peak_memory_bytes: int = 0
    gpu_ms: int = 0


class Exit(Struct, frozen=True):
    """How it ended: `status` as PROTOCOL §3 (0-255, 256 + signal, 512 time-out, 513 memory
    kill).
    """

    status: int
    usage: Usage


class EngineRefuses(Refused):
    """From `Executor.start`: the engine answers and has said no for long. The job's doing or
    this machine's: nobody can tell them apart.
    """


class Executor(Protocol):
    """Runs tasks. Every call is idempotent by lease id and safe to repeat after a restart of the
    daemon.
    """

    sandbox: Sandbox

    async def check(self) -> None:
        """Raises Unavailable with the remedy when the engine cannot be used."""

    async def fetch_image(self, lease_id: str, name: str, deadline_seconds: float) -> None:
        """Brings a registry's image to where `start` finds it, unless it is there. `stop` ends
        it. Refused(UNKNOWN | OVERSIZE | MALFORMED | UNSUPPORTED) when it can never be had here;
        Unavailable, also at the deadline.
        """

    async def start(self, task: Task) -> None:
        """Starts the task unless its container already runs or has exited. Refused(UNSUPPORTED)
        names the field; an image that does not exist is Refused(UNKNOWN); EngineRefuses is one,
        too.
        """

    async def state(self, lease_id: str) -> TaskState:
        """What is observed now."""

    async def wait(self, lease_id: str) -> Exit:
        """Waits for the exit, enforcing max_duration (also across a restart of the daemon)."""

    def logs(self, lease_id: str, follow: bool) -> AsyncIterator[bytes]:
        """Standard output and error as written, capped at 1 MiB a lease; never part of the
        result.
        """

    async def collect(self, lease_id: str, destination: Path) -> None:
        """Copies the outputs of an exited task into a new directory: regular files and
        directories only, capped. Refused(OVERSIZE | MALFORMED) names the path; the caller then
        commits the empty directory.
        """

    async def stop(self, lease_id: str) -> None:
        """Ends it now (SIGTERM, then SIGKILL after 5 s)."""

    async def remove(self, lease_id: str) -> None:
        """Forgets container, mounts and logs; no error if there is nothing."""

    async def leases(self) -> Sequence[str]:
        """Ids of all leases this executor still holds anything of."""

    async def close(self) -> None:
        """Releases engine connections; running tasks keep running."""


# -------------------------------------------------------------------------------------------- peers

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(sender's account as 0x-hex or "" when unknown, frame) -> answer frame. Raising Refused answers with the code."""


class Peers(Protocol):
    """Signed request/response between two named peers (docs/lifecycle.md).
    At-least-once; handlers deduplicate.
    """

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        """Sends one frame (at most 1 MiB) and waits for the answer. Unavailable when the peer is
        not connected or silent; Refused as the peer answered.
        """

    def connected(self) -> frozenset[Address]:
        """Peers that can be reached now."""

    async def close(self) -> None:
        """Ends all connections."""


# ------------------------------------------------------------------------------------------- signer


class Signer(Protocol):
    """One secp256k1 key."""

    address: Address

    def sign(self, digest: bytes) -> Signature:
        """Deterministic (RFC 6979) low-s signature of a 32-byte digest: r | s | v."""


# -------------------------------------------------------------------------------------------- chain


class ChainEvent(Struct, frozen=True):
    """One decoded contract event at depth k or more."""

    block: BlockNumber
    block_time: int
    transaction: bytes
    log_index: int
    contract: str
    name: str
    args: Mapping[str, object]
