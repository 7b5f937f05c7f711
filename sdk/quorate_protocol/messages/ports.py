"""Ports: the interfaces that shells implement and cores never import.

This module declares signatures only: no asyncio, no IO. Every adapter and every fake must pass the
same tests. Errors: `Refused` when the request breaks a rule; `Unavailable` when something outside
fails and a retry may help.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct

from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Milliseconds, Round, Seconds, Signature


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


# ------------------------------------------------------------------------------------------- beacon


class BeaconRound(Struct, frozen=True):
    """One beacon round in the format of drand. `randomness` is sha256(signature). The BLS signature
    is over sha256(round as 8 big-endian bytes).
    """

    round: Round
    signature: bytes  # 48-byte compressed G1 point (quicknet scheme bls-unchained-g1-rfc9380)
    randomness: bytes  # 32 bytes


class BeaconInfo(Struct, frozen=True):
    """The parameters of a beacon, which all programs of a deployment share."""

    public_key: bytes  # 96-byte compressed G2 point
    period: Seconds
    genesis_time: int  # round r appears at genesis_time + (r - 1) * period


class Beacon(Protocol):
    """A source of public randomness. It verifies each round against the public key."""

    info: BeaconInfo

    async def round(self, number: Round) -> BeaconRound | None:
        """The verified round of a number, or None while it has not appeared."""


# ----------------------------------------------------------------------------------------- executor


class Sandbox(StrEnum):
    """The isolation between a job and the owner's machine, which the offer names."""

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
    """Everything that an executor may know of one lease."""

    lease_id: str  # hex; it names the container, so that `start` is idempotent
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
    hook: Path | None = None  # a folder whose sitecustomize.py each Python of the job runs
    disk_scratch_bytes: int = 0  # `scratch_bytes` if /scratch and /tmp lie on disk; else 0
    secrets: Path | None = None  # files in memory that the job alone reads at /run/secrets
    is_rental: bool = False  # it has terminals, and a writable /home beside /scratch and /tmp


class RegistryLogin(Struct, frozen=True):
    """What a registry asks for one image. It is sent to this registry only."""

    host: str  # as in the image's name
    user: str
    password: str

    def __repr__(self) -> str:
        return "RegistryLogin(...)"  # an error that prints it must not tell it to a log


class TaskState(StrEnum):
    """Observed state of one lease's container."""

    ABSENT = "absent"
    RUNNING = "running"
    EXITED = "exited"


class Usage(Struct, frozen=True):
    """The measured usage of one execution."""

    wall_ms: Milliseconds  # from the start of the container to its exit; this time is paid
    cpu_ms: int = 0
    peak_memory_bytes: int = 0
    gpu_ms: int = 0


class Exit(Struct, frozen=True):
    """How an execution ended."""

    # PROTOCOL §3: 0-255 exit, 256 + signal, 512 time-out, 513 memory kill
    status: int
    usage: Usage
    full: tuple[str, ...] = ()  # volumes on disk without room at the exit: outputs, scratch


class EngineRefuses(Refused):
    """`Executor.start` raises it when a working engine refuses a task for a long time. The cause
    may be the job or this machine; the executor cannot tell which.
    """


class LogPiece(NamedTuple):
    """Text that a task wrote, and its position in all that the task wrote, in bytes."""

    at: int
    text: bytes


class Executor(Protocol):
    """Runs tasks in a sandbox. Every call is idempotent by lease id, and safe to repeat after a
    restart of the daemon.
    """

    sandbox: Sandbox
    has_volumes: bool  # whether it can keep /scratch and /tmp on disk, within a size

    async def check(self) -> None:
        """Raises Unavailable, with what to do, when the engine cannot be used."""

    async def fetch_image(
        self,
        lease_id: str,
        name: str,
        deadline_seconds: float,
        needs_gpu: bool = False,
        login: RegistryLogin | None = None,
    ) -> None:
        """Pulls an image from a registry, unless it is already there. `stop` ends the pull.

        Raises Refused(UNKNOWN | OVERSIZE | MALFORMED | UNSUPPORTED) when this machine can never get
        the image. With `needs_gpu` that includes an image that needs a newer GPU driver; it is
        refused before its layers are fetched. Raises Unavailable when it cannot get it now, also at
        the deadline.
        """

    def image_requirement(self, name: str) -> str:
        """What a registry's image asks of the GPU driver; "" if nothing, or if the executor has not
        read its configuration since it was started.
        """

    async def start(self, task: Task) -> None:
        """Starts the task unless its container already runs or has exited.

        Raises Refused(UNSUPPORTED) with the name of a field that the sandbox does not support,
        Refused(UNKNOWN) for an image that does not exist, and EngineRefuses, which is a Refused.
        """

    async def state(self, lease_id: str) -> TaskState: ...

    async def wait(self, lease_id: str) -> Exit:
        """Waits for the exit. Enforces max_duration, also across a restart of the daemon."""

    def logs(self, lease_id: str, follow: bool, at: int = 0) -> AsyncIterator[LogPiece]:
        """Standard output and error from position `at` on: the first MiB and the last 64 KiB. They
        are not part of the result.
        """

    async def collect(self, lease_id: str, destination: Path) -> None:
        """Copies the outputs of an exited task into a new directory, up to the task's limits.

        Outputs are regular files and directories. For others or too many, it raises
        Refused(OVERSIZE | MALFORMED) with the path, and the caller commits the empty directory.
        """

    async def stop(self, lease_id: str) -> None:
        """Ends the task now: sends SIGTERM, then SIGKILL after 5 s."""

    async def remove(self, lease_id: str) -> None:
        """Deletes container, mounts and logs of a lease. It is no error if there are none."""

    async def leases(self) -> Sequence[str]:
        """Ids of all leases of which this executor still has a container, mounts or logs."""

    async def close(self) -> None:
        """Closes the connections to the engine. Running tasks go on."""


# --------------------------------------------------------------------------------------------- GPUs


class GpuProbe(Protocol):
    """Reads the machine's GPUs. Its caller runs it in a thread, because drivers can be slow."""

    def inventory(self) -> GpuInventory:
        """The GPUs that the driver reports; none if the machine has no driver. Raises Unavailable
        if a driver is there and does not work.
        """


# -------------------------------------------------------------------------------------------- peers

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""Gives the answer to a frame. Its arguments are the sender's account and the frame.

The account is 0x-hex, or "" if it is unknown. If it raises Refused, the sender gets the code.
"""


class Peers(Protocol):
    """Signed requests and answers between two peers (docs/lifecycle.md). A frame may arrive more
    than once, so handlers must be idempotent.
    """

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        """Sends one frame of at most 1 MiB and waits for the answer. Raises Unavailable when the
        peer is not connected or does not answer, and Refused when the peer refuses.
        """

    def connected(self) -> frozenset[Address]: ...

    async def close(self) -> None: ...


class PeerServer(Peers, Protocol):
    """The peers that dialed in, over one transport or several."""

    def network_of(self, peer: Address) -> str: ...

    def connection_number(self, peer: Address) -> int:
        """Counts the connections of the program. A newer one has a higher number; 0 is none."""


# ------------------------------------------------------------------------------------------- gossip

GOSSIP_BYTES_MAX = 8192  # of one message


class Verdict(StrEnum):
    """What becomes of a gossiped message."""

    ACCEPT = "accept"  # taken, and passed on to other peers
    IGNORE = "ignore"  # neither taken nor passed on; nobody is to blame
    REJECT = "reject"  # invalid: the peer that passed it on is blamed, and cut off if it goes on


Validate = Callable[[bytes, str], Verdict]
"""Judges a message. Its arguments are the message and the name of the peer that passed it on.

It is called in the thread of the network, so it must be thread-safe, and quick (about 1 ms): all
other messages wait meanwhile. Rates are its business: it charges a message to the owner that signed
it, never to the peer that passed it on. If it raises, the message is ignored and the bug is logged.
"""


class Gossip(Protocol):
    """Messages to everybody who listens to one topic, at most GOSSIP_BYTES_MAX bytes each.

    Messages may be lost, repeated after minutes, and arrive in any order. A member neither judges
    nor receives its own messages.
    """

    async def publish(self, data: bytes) -> None:
        """Sends a message to the topic. Refused(OVERSIZE) for more than GOSSIP_BYTES_MAX bytes.
        Unavailable if no neighbour listens.
        """

    def subscribe(self, validate: Validate) -> AsyncIterator[bytes]:
        """The messages that `validate` accepts, from now on. One subscription for each member.

        The iterator holds a bounded number of messages. If its reader falls behind, it drops the
        oldest ones.
        """

    async def close(self) -> None: ...


# ------------------------------------------------------------------------------------------- signer


class Signer(Protocol):
    """One secp256k1 key."""

    address: Address

    def sign(self, digest: bytes) -> Signature:
        """Deterministic (RFC 6979) low-s signature of a 32-byte digest: r | s | v."""


# -------------------------------------------------------------------------------------------- chain
