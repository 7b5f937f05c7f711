"""The values in the coordinator's tables: providers, clients, jobs, cases, epochs. All frozen."""

from collections.abc import Iterator

from msgspec import Struct, field

from quorate_coordinator.core.effects import Evidence, PaidVoucher
from quorate_protocol.crypto.merkle import Log
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import Offer
from quorate_protocol.messages.signed import (
    Ack,
    CommitSet,
    Session,
    Stop,
    Verdict,
    Voucher,
    Witness,
)
from quorate_protocol.rules.audit import Drawn, StakeSlot
from quorate_protocol.rules.classes import HostClass
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.rules.orders import Submission
from quorate_protocol.rules.settlement import NOTHING, Split
from quorate_protocol.rules.trust import Trust
from quorate_protocol.rules.window import Window
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Nonce,
    Ppm,
    Price,
    Round,
    Seconds,
    Sequence,
    UnixSeconds,
)

# ---------------------------------------------------------------------------------------- providers


class PastKey(Struct, frozen=True):
    """An operator key that was rotated away; `until` is the last second in which it was valid,
    and its successor's first.
    """

    key: Address
    until: UnixSeconds


class Provider(Struct, frozen=True):
    """A registered owner: keys from the chain, offer and heartbeat from its daemon, money owed."""

    owner: Address
    index: int
    operator_key: Address
    payout: Address
    network: Hash32
    offer: Offer | None = None
    heartbeat_seq: Sequence = Sequence(0)
    alive_until: UnixSeconds = UnixSeconds(0)
    is_frozen: bool = False
    barred_until: UnixSeconds = UnixSeconds(0)  # frozen until then, whatever courts say
    final: Amount = Amount(0)
    held: Amount = Amount(0)
    statement_seq: Sequence = Sequence(0)
    past_keys: tuple[PastKey, ...] = ()  # oldest first
    credits: Log = (
        Log()
    )  # H(assignmentId, pay) of every credit, as they came; its root is `receiptsRoot`

    def is_alive(self, now: UnixSeconds) -> bool:
        """Heard of lately, with an unexpired offer, and not frozen."""
        return (
            self.offer is not None
            and now < self.alive_until
            and now < self.offer.expires
            and not self.is_frozen
        )

    def key_at(self, moment: UnixSeconds) -> Address:
        """The operator key that was valid at a moment; of two in the second of a rotation the
        older.
        """
        return next(
            (past.key for past in self.past_keys if moment <= past.until), self.operator_key
        )

    def has_key(self, key: Address, moment: UnixSeconds) -> bool:
        """Whether a key was valid at a moment, inclusive at both ends (PROTOCOL §2)."""
        return key in (self.key_at(moment), self.key_at(UnixSeconds(moment + 1)))


class HostList(Struct, frozen=True):
    """A host class's list of stake slots as on chain; position = index."""

    slots: tuple[StakeSlot, ...] = ()
    since: dict[Address, UnixSeconds] = field(
        default_factory=dict
    )  # owners with an open slot: when they came, as far as we heard


# ------------------------------------------------------------------------------------------ clients


class Client(Struct, frozen=True):
    """A client's money here. All amounts cumulative but `reserved`."""

    account: Address
    allocation: Amount = Amount(0)  # what orders may reach: announced releases are gone
    escrowed: Amount = Amount(0)  # all that the chain holds, until a release is finished
    release_at: UnixSeconds = UnixSeconds(
        0
    )  # from when on an announced release may be finished; 0 = none
    reserved: Amount = Amount(0)  # worst charges of jobs under way
    charged: Amount = Amount(0)
    vouched: Amount = Amount(
        0
    )  # what counts of its newest voucher: all, unless the chain no longer holds so much
    voucher: Envelope[Voucher] | None = None
    voucher_session: Envelope[Session] | None = (
        None  # under which it was taken: newer ones may be shorter or smaller
    )
    posted: Amount = Amount(0)  # voucher amount that the chain has seen
    refund: Amount = Amount(
        0
    )  # credit of its own: held pay that came back, covered by its vouchers
    refund_held: Amount = Amount(0)
    sessions: tuple[Envelope[Session], ...] = ()
    open_charges: tuple[Hash32, ...] = ()  # jobs charged and not yet covered by a voucher, in order
    under_way: int = 0  # its jobs among the live ones

    def reach(self, now: UnixSeconds, margin: Seconds) -> Amount:
        """What vouchers may reach: all that the chain holds, but near the end of an announced
        release only what stays.
        """
        return (
            self.allocation
            if self.release_at and now >= self.release_at - margin
            else self.escrowed
        )


# --------------------------------------------------------------------------------------------- jobs


class BatchPlace(Struct, frozen=True):
    """One execution wanted in a batch. `lease` is the live or committed one; `retry_at` > 0
    while a busy provider keeps its place.
    """

    slot: StakeSlot
    attempt: int  # try of the draw; -1 for the primary, which is matched
    since: UnixSeconds  # when it was drawn or matched
    lease: Hash32 | None
    retry_at: UnixSeconds = UnixSeconds(0)


class Batch(Struct, frozen=True):
    """Executions that commit together, then reveal together."""

    number: int
    members: tuple[Hash32, ...]  # lease hashes in CommitSet order
    slots: tuple[StakeSlot, ...]  # likewise, of their places
    commit_set: Envelope[CommitSet]
    closings: int = 1  # how often it was signed


class BeaconUsed(Struct, frozen=True):
    """A round that decided a draw, kept for the receipt."""

    round: Round
    signature: bytes
    randomness: bytes


class Matching(Struct, frozen=True, tag=True):
    """The primary is still to be placed."""

    not_before: UnixSeconds


class Running(Struct, frozen=True, tag=True):
    """Executions of a batch are placed or run. `wanted` places in all; `next_attempt` of the
    draw's tries.
    """

    batch: int
    wanted: int
    places: tuple[BatchPlace, ...]
    next_attempt: int
    beacon: BeaconUsed | None
    skipped: tuple[Hash32, ...]
    audit_ppm: Ppm = Ppm(0)  # as it was at the draw
    is_again: bool = False  # the draw had found nobody when it was gone through first


class AwaitingRound(Struct, frozen=True, tag=True):
    """A draw waits for its beacon round."""

    batch: int
    wanted: int
    round: Round
    committed: tuple[BatchPlace, ...]  # the primary, in batch 0
    is_again: bool = False  # only to wait for it: drawn is by the round of before, once more


class Revealing(Struct, frozen=True, tag=True):
    """A batch is closed; its members reveal."""

    batch: Batch


class Decided(Struct, frozen=True, tag=True):
    """A verdict stands; provisional until `is_final`."""

    verdict: Envelope[Verdict]
    is_final: bool
    hold_until: UnixSeconds


class Ended(Struct, frozen=True, tag=True):
    """Over without a verdict on results: stopped, or nobody could be matched before the order's
    expiry.
    """

    reason: str


JobPhase = Matching | Running | AwaitingRound | Revealing | Decided | Ended


class SlotList(Struct, frozen=True):
    """A host class's list as it was when frames were made of it."""

    host_class: Hash32
    slots: tuple[StakeSlot, ...]
    snapshots: int  # that are made of it


class EligibleSnapshot(Struct, frozen=True):
    """Which slots were alive with audit capacity at some Ack: what jobs draw from. Most jobs
    share one with their neighbours.
    """

    list_number: int  # of the `SlotList` that it is made of
    alive: bytes  # bit `index & 7` of byte `index >> 3`
    jobs: int  # that draw from it

    def slots_in(self, slots: tuple[StakeSlot, ...]) -> Iterator[StakeSlot]:
        """The slots themselves."""
        return (slot for slot in slots if self.alive[slot.index >> 3] >> (slot.index & 7) & 1)


class Job(Struct, frozen=True):
    """One order and everything signed for it."""

    id: Hash32
    submission: Submission
    created_at: UnixSeconds
    ack: Envelope[Ack]
    secret: Hash32
    host: HostClass
    class_id: Hash32
    list_length: int
    reserved: Amount
    phase: JobPhase
    leases: tuple[Hash32, ...] = ()
    batches: tuple[Batch, ...] = ()
    beacons: tuple[BeaconUsed, ...] = ()
    witness: Envelope[Witness] | None = None
    refused_by: tuple[Address, ...] = ()
    commits: tuple[Hash32, ...] = ()  # digests of its primaries' Commits
    stop: Envelope[Stop] | None = (
        # its client wants no more of it: never matched again; what was cut short is not compared
        None
    )
    split: Split = NOTHING
    charged_up_to: Amount = Amount(0)  # the client's cumulative charge after this job
    held_verdict: Envelope[Verdict] | None = (
        None  # the first verdict of a job that is executed again
    )
    is_covered: bool = False
    is_released: bool = False
    receipt_cid: str | None = None


# --------------------------------------------------------------------------------- cases and epochs


class Fault(Struct, frozen=True):
    """One execution outside the accepted group."""

    lease: Hash32
    job_id: Hash32
    client: Address
    at: UnixSeconds
    is_case_used: bool = False
    checked: int = (
        0  # how many of its provider's executions had been checked by then, this one included
    )
    # the court hears no two with it: a client had allocated too shortly before (PROTOCOL §5)
    is_for_three: bool = False


class Case(Struct, frozen=True):
    """A case that this coordinator opened; `case_id` is known once the chain has it."""

    key: str
    accused: Address
    jobs: tuple[Hash32, ...]
    executions: tuple[Evidence, ...]
    case_id: Nonce | None = None
    jurors: tuple[Address, ...] = ()
    is_convicted: bool | None = None
    slashed: Amount = Amount(0)
    phase: str = "opening"


class EpochRecord(Struct, frozen=True):
    """One posting: its leaves stay until nobody can need a proof any more."""

    number: int
    leaves: tuple[Leaf, ...]
    root: Hash32
    vouchers: tuple[PaidVoucher, ...]
    built_at: UnixSeconds
    is_posted: bool = False


class OwnRecord(Struct, frozen=True):
    """The coordinator's own money and counters."""

    fee: Amount = Amount(0)  # covered by vouchers
    fee_held: Amount = Amount(0)
    fund: Amount = Amount(0)
    fund_held: Amount = Amount(0)
    block: BlockNumber = BlockNumber(0)
    block_time: UnixSeconds = UnixSeconds(0)
    verdict_seq: Sequence = Sequence(0)
    epoch: int = 0  # last built
    last_epoch_at: UnixSeconds = UnixSeconds(0)
    is_dirty: bool = False  # finals or vouchers changed since the last epoch
    next_index: int = 0
    is_compared: bool = False  # since it came up others could tell what we have signed
    epoch_at_start: int | None = None  # as `epoch`, until then


class Trusts(Struct, frozen=True):
    """Trust of one provider by job class."""

    by_class: dict[Hash32, Trust] = field(default_factory=dict)
    kills: tuple[
        UnixSeconds, ...
    ] = ()  # its outvoted time-outs and memory kills since the last strike for them
    checked: int = 0  # its executions that an audit confirmed or did not


class Windows(Struct, frozen=True):
    """How far one provider has come, by job class."""

    by_class: dict[Hash32, Window] = field(default_factory=dict)


class JobHold(Struct, frozen=True):
    """Of a provisional job: final at its phase's moment, or once its provider's progress in the
    class is `ends_at` (ppm of jobs).
    """

    owner: Address
    trust_class: Hash32
    ends_at: int


class MedianPrice(Struct, frozen=True):
    """A host class's median price, taken for so long as it is."""

    price: Price
    until: UnixSeconds


def drawn_place(drawn: Drawn, at: UnixSeconds) -> BatchPlace:
    """A place for a drawn auditor, not yet assigned."""
    return BatchPlace(drawn.slot, drawn.attempt, at, None)
