"""Units and identifiers: one `NewType` for each meaning, with its width on the wire.

Source: PROTOCOL "Types". Every integer is unsigned. `WIRE_TYPES` is the single table that the
EIP-712 encoder, the codec's bounds and the vectors are derived from.
"""

from enum import IntEnum
from typing import NewType

Address = NewType("Address", bytes)  # 20 bytes, an EVM account or key
Hash32 = NewType("Hash32", bytes)  # 32 bytes: a digest, a salt, a CID's sha2-256 digest, an id
Signature = NewType(
    "Signature", bytes
)  # 65 bytes r | s | v, low s, v in {27, 28}; or 64 bytes Ed25519 for peer keys

Amount = NewType("Amount", int)  # uint128, millionths of the deployment's stablecoin
Price = NewType("Price", int)  # uint128, millionths of a USD per run slot and hour
UnixSeconds = NewType("UnixSeconds", int)  # uint64, a moment
Seconds = NewType("Seconds", int)  # uint64, a duration
Milliseconds = NewType("Milliseconds", int)  # uint64, a duration
Round = NewType("Round", int)  # uint64, a beacon round
BlockNumber = NewType("BlockNumber", int)  # uint64
Sequence = NewType("Sequence", int)  # uint64, grows by one
Bps = NewType("Bps", int)  # uint16, hundredths of a percent
Ppm = NewType("Ppm", int)  # uint32, millionths
Small = NewType("Small", int)  # uint8, a count
ExitStatus = NewType("ExitStatus", int)  # uint16; PROTOCOL §3 resultDigest
Nonce = NewType("Nonce", int)  # uint256
ByteCount = NewType("ByteCount", int)  # uint64
PerSecond = NewType("PerSecond", int)  # uint64, a rate: operations or bytes per second

WIRE_TYPES: dict[str, tuple[str, int]] = {
    "Address": ("address", 20),
    "Hash32": ("bytes32", 32),
    "Amount": ("uint128", 128),
    "Price": ("uint128", 128),
    "UnixSeconds": ("uint64", 64),
    "Seconds": ("uint64", 64),
    "Milliseconds": ("uint64", 64),
    "Round": ("uint64", 64),
    "BlockNumber": ("uint64", 64),
    "Sequence": ("uint64", 64),
    "Bps": ("uint16", 16),
    "Ppm": ("uint32", 32),
    "Small": ("uint8", 8),
    "ExitStatus": ("uint16", 16),
    "Nonce": ("uint256", 256),
    "ByteCount": ("uint64", 64),
    "PerSecond": ("uint64", 64),
}
"""Solidity type and width by name of the NewType. Byte strings count bytes, integers bits."""

ZERO_HASH = Hash32(bytes(32))
ZERO_ADDRESS = Address(bytes(20))

MILLISECONDS_PER_HOUR = 3_600_000
PPM_ONE = 1_000_000
BPS_ONE = 10_000

EXIT_SIGNAL_BASE = 256  # 256 + signal number
EXIT_TIMEOUT = ExitStatus(512)
EXIT_MEMORY_KILL = ExitStatus(513)
# Exit statuses that a provider can claim without running anything. Honest machines may differ.
KILLED = (EXIT_TIMEOUT, EXIT_MEMORY_KILL)


class VerifyTier(IntEnum):
    """How surely a wrong result is caught (PROTOCOL §5). The client chooses and pays for it."""

    NONE = 0  # one execution, which nobody checks: the rule is always `unverified`
    LEAN = 1
    STANDARD = 2
    STRICT = 3
    CRITICAL = 4
    TEE = 5
    QUORUM_2 = 6  # two equal results, by the rule quorum-2 in a market of any size
    QUORUM_2_FAST = 7  # the same, and both executions of the first batch are drawn and run at once


class Comparator(IntEnum):
    """How two results are compared. Only EXACT can ever cost stake."""

    EXACT = 1
    NUMERIC = 2
    TEXT = 3
    IMAGE = 4
    PROGRAM = 5


class Label(IntEnum):
    """The rule by which a job is verified. Ack and Verdict name it (PROTOCOL §3)."""

    NONE = 0
    ADAPTIVE = 1
    QUORUM_2 = 2
    UNVERIFIED = 3


class Outcome(IntEnum):
    """How a job ended, as its Verdict says."""

    ACCEPTED = 1
    UNRESOLVED = 2
    CANNOT_VERIFY = 3
    LAPSED = 4


class Role(IntEnum):
    """Why a provider executed a job: it was matched, or the beacon drew it."""

    PRIMARY = 1
    AUDITOR = 2


class ExecutionEnd(IntEnum):
    """How one execution ended, as a Summary says."""

    AGREED = 1  # its result is the accepted one
    FAULTED = 2  # its result is outside the accepted group
    KILLED = 3  # faulted by a time-out or a memory kill; every third one is a strike
    UNDECIDED = 4  # it revealed; no result was accepted, or other determinism classes outvoted it
    UNREVEALED = 5  # it committed, and did not reveal in time
    LAPSED = 6  # no answer, or no commit in time
    DECLINED = 7
    GAVE_UP = 8  # it declined after its Accept
    RENTED = 9  # a rental, which has no result and changes nobody's record


class PriceTier(IntEnum):
    """Which of an offer's prices an order takes. Only `ON_DEMAND` is taken yet."""

    SPOT = 1
    ON_DEMAND = 2
    RESERVED = 3


class DeclineReason(IntEnum):
    """The reason why a provider does not take an assignment."""

    BUSY = 1
    PRICE = 2
    IMAGE = 3
    KIND = 4
    INPUT_UNAVAILABLE = 5
    SANDBOX = 6
    DRAINING = 7
    BAD_KEY = 8
    MISMATCH = 9
    RESOURCES = 10
    GAVE_UP = 11  # after its Accept: the machine failed, or the client stopped the job in time
    PREEMPTED = 12  # its owner needs the machine (PROTOCOL 12.37)
    UNSECURED = 13  # guarantee and trust do not cover its pay


class WorkStage(IntEnum):
    """What a provider does for a lease now, until its Commit."""

    FETCHING = 1  # image and inputs
    STARTING = 2  # the container
    RUNNING = 3
    STORING = 4  # collects, seals and uploads the output


class JobKind(IntEnum):
    """The kind of a job. Only jobs of the first three kinds have a result to verify."""

    TASK = 1
    ARRAY = 2
    TRAIN = 3
    SERVICE = 4
    DEV_ENVIRONMENT = 5

    @property
    def is_rental(self) -> bool:
        """Leased by the minute, without a result (PROTOCOL §12)."""
        return self in (JobKind.SERVICE, JobKind.DEV_ENVIRONMENT)


def pay_for(usage: Milliseconds, rate: Price, budget: Amount) -> Amount:
    """Pay of one execution: usage × signed rate, rounded down, at most the budget (PROTOCOL §4).
    The client keeps the remainder.
    """
    return Amount(min(usage * rate // MILLISECONDS_PER_HOUR, budget))


def share_bps(amount: Amount, bps: Bps) -> Amount:
    """Returns `bps` hundredths of a percent of an amount, rounded down."""
    return Amount(amount * bps // BPS_ONE)


def usd(amount: int) -> str:
    """Returns the text of an amount of millionths of a USD, in USD with at least two decimals and
    no needless zeros: 1250000 -> "1.25".
    """
    whole, rest = divmod(abs(amount), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount < 0 else ''}{whole}.{decimals}"
