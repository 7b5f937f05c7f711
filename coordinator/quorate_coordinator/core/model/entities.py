"""The values in the coordinator's tables: providers, clients, jobs, money. All frozen."""

from collections.abc import Iterator

from msgspec import Struct, field

from quorate_protocol.codec.merkle import Log
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.eligible_list import place_in
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import Offer
from quorate_protocol.messages.receipt import WithdrawalEvidence
from quorate_protocol.messages.signed import (
    Ack,
    CommitSet,
    Order,
    Session,
    Stop,
    Verdict,
    Voucher,
    Witness,
)
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.rules import orders
from quorate_protocol.rules.hold_window import Window
from quorate_protocol.rules.orders import Submission
from quorate_protocol.rules.settlement import NOTHING, Split
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Comparator,
    Hash32,
    Milliseconds,
    Ppm,
    Price,
    Round,
    Sequence,
    Signature,
    UnixSeconds,
)

# ---------------------------------------------------------------------------------------- providers


class PastKey(Struct, frozen=True):
    """A replaced operator key. In its last second, `until`, the next key is valid too."""

    key: Address
    until: UnixSeconds


class SlotsElsewhere(Struct, frozen=True):
    """Run slots of one pool that other coordinators and juries use."""

    pool: Hash32
    count: int


class Provider(Struct, frozen=True):
    """A registered provider: its keys, newest offer and heartbeat. Its money is in `payees`."""

    owner: Address
    index: int  # in the order of registration
    operator_key: Address
    payout: Address
    network: Hash32
    offer: Offer | None = None
    heartbeat_seq: Sequence = Sequence(0)
    alive_until: UnixSeconds = UnixSeconds(0)
    past_keys: tuple[PastKey, ...] = ()  # oldest first
    offer_signature: Signature | None = None  # the operator key's, over `offer.signed()`
    reported_at: UnixSeconds = UnixSeconds(0)  # the time in its last heartbeat
    elsewhere: tuple[SlotsElsewhere, ...] = ()  # by its last heartbeat; only counts above 0
    # not matched until then, because it declined as `unsecured`; 0 = matched
    unsecured_until: UnixSeconds = UnixSeconds(0)
    # it never had a stake slot, and has not earned the stake of one
    is_on_probation: bool = False
    # the latest acceptBy of the Assignments that this coordinator signed for it
    assigned_until: UnixSeconds = UnixSeconds(0)

    def taken_elsewhere(self, pool: Hash32) -> int:
        for item in self.elsewhere:
            if item.pool == pool:
                return item.count
        return 0

    def is_alive(self, now: UnixSeconds) -> bool:
        return self.offer is not None and now < self.alive_until and now < self.offer.expires

    def key_at(self, moment: UnixSeconds) -> Address:
        """In the second of a rotation two keys are valid; this returns the older one."""
        return next(
            (past.key for past in self.past_keys if moment <= past.until), self.operator_key
        )

    def has_key(self, key: Address, moment: UnixSeconds) -> bool:
        """Inclusive at both ends (PROTOCOL §2)."""
        return key in (self.key_at(moment), self.key_at(UnixSeconds(moment + 1)))


class WorkWindow(Struct, frozen=True):
    """The most run slots of one class that a provider may hold at once (PROTOCOL §4, Windows)."""

    pool: Hash32
    slots: int


class Attestation(Struct, frozen=True):
    """What one challenge's verifiers say of GPUs of one model, or of a CPU.

    It counts before `expires`. Disputed: another provider's live records name one of its GPUs.
    """

    record: Hash32  # digest of the attestation document
    model: Hash32  # as records name it
    gpus: tuple[Hash32, ...]  # hashes of their UUIDs
    vram_bytes: int  # that the proofs cover, of the GPU with the least
    peer_key: Hash32
    beacon_round: Round
    expires: UnixSeconds
    is_disputed: bool = False


class PoolSlots(Struct, frozen=True):
    """A pool's list of stake slots, as on chain. `StakeSlot.index` is the position."""

    slots: tuple[StakeSlot, ...] = ()
    # owner with an open slot -> time of the block that opened its first one
    since: dict[Address, UnixSeconds] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------ clients


class Client(Struct, frozen=True):
    """A client's money here. All amounts but `reserved` are cumulative."""

    account: Address
    tab: Tab = Tab()  # for this coordinator, by final blocks
    reserved: Amount = Amount(0)  # the most that its jobs under way may be charged
    charged: Amount = Amount(0)
    vouched: Amount = Amount(0)  # its newest voucher, as far as the tab has it locked
    voucher: Envelope[Voucher] | None = None
    voucher_session: Envelope[Session] | None = (
        None  # the session of that voucher; newer ones may be shorter or smaller
    )
    gave_back_at: UnixSeconds = UnixSeconds(0)  # when it last got a part of its tab back
    unpaid_since: UnixSeconds = UnixSeconds(0)  # when its voucher first passed what its tab paid
    redeem_after: UnixSeconds = UnixSeconds(0)  # the chain refused its voucher; 0 = it did not
    fees_paid: Amount = Amount(0)  # the coordinator's fees in its final charges: its credit
    fund_paid: Amount = Amount(0)  # what its jobs paid into the audit fund
    fund_spent: Amount = Amount(0)  # what the fund paid for its jobs
    sessions: tuple[Envelope[Session], ...] = ()
    open_charges: tuple[Hash32, ...] = ()  # jobs charged and not yet covered by a voucher, in order
    under_way: int = 0  # its jobs among the live ones
    live_bytes: int = 0  # of memory, that they take

    @property
    def is_prepaid(self) -> bool:
        """Whether its vouchers cover all that its jobs are charged, and may still be."""
        return self.vouched >= self.charged + self.reserved


# --------------------------------------------------------------------------------------------- jobs


class BatchPlace(Struct, frozen=True):
    """One execution that a batch wants, by the owner of `slot`.

    `assignment_hash` names its lease, if there is one. `retry_at` > 0: the provider was busy and
    keeps the place until it is assigned again.
    """

    slot: StakeSlot
    attempt: int  # try of the draw; -1 for the primary, which is matched
    since: UnixSeconds  # when it was drawn or matched
    assignment_hash: Hash32 | None
    retry_at: UnixSeconds = UnixSeconds(0)


class SkippedPlace(Struct, frozen=True):
    """A try of a draw whose provider did not run the execution. Its lease has the Assignment."""

    attempt: int
    slot: StakeSlot
    assignment_hash: Hash32


class Batch(Struct, frozen=True):
    """A closed batch: executions that have committed together and then reveal together."""

    number: int
    members: tuple[Hash32, ...]  # lease hashes in CommitSet order
    slots: tuple[StakeSlot, ...]  # their stake slots, in the same order
    commit_set: Envelope[CommitSet]
    skips: tuple[SkippedPlace, ...]  # in order of their tries
    stored_at: tuple[UnixSeconds, ...]  # the times in the members' CommitReceipts, in order
    closings: int = 1  # how often the CommitSet was signed

    @property
    def is_repeat(self) -> bool:
        return self.number > 0 and self.commit_set.message.beacon_round == 0


class Comparison(Struct, frozen=True):
    """The distance of the outputs of two executions, once it is known."""

    one: Hash32  # assignment hashes
    other: Hash32
    is_known: bool = False
    ppb: int | None = None  # None: no tolerance lets them agree


class EmptyDraw(Struct, frozen=True):
    """The draw of a further batch that found nobody in both passes, or whose round is missing."""

    batch: int
    round: Round
    skips: tuple[SkippedPlace, ...]


class BeaconUsed(Struct, frozen=True):
    """A beacon round that decided a draw. The receipt contains it."""

    round: Round
    signature: bytes
    randomness: bytes


class Matching(Struct, frozen=True, tag=True):
    """The job waits for a provider to match."""

    not_before: UnixSeconds


class Running(Struct, frozen=True, tag=True):
    """A batch's executions are being assigned or run. It wants `wanted` places, and has `places`.
    `next_attempt` numbers the next try of its draw.
    """

    batch: int
    wanted: int
    places: tuple[BatchPlace, ...]
    next_attempt: int
    beacon: BeaconUsed | None
    skipped: tuple[SkippedPlace, ...]
    audit_ppm: Ppm = Ppm(0)  # the audit rate at the draw
    is_again: bool = False  # the draw found no provider the first time
    is_repeat: bool = False  # members of the accepted group repeat the job, to confirm a fault


class AwaitingRound(Struct, frozen=True, tag=True):
    """The job waits for a beacon round, which draws the places (executions) of its next batch."""

    batch: int
    wanted: int
    round: Round
    committed: tuple[BatchPlace, ...]  # the primary, in batch 0
    is_again: bool = False  # retries an empty draw; it uses the previous round's randomness
    skipped: tuple[SkippedPlace, ...] = ()  # by the first pass of that draw


class Revealing(Struct, frozen=True, tag=True):
    """The batch is closed, and its providers reveal."""

    batch: Batch


class Decided(Struct, frozen=True, tag=True):
    """The job has a verdict. It is provisional, and its pay is held, until `is_final`."""

    verdict: Envelope[Verdict]
    is_final: bool
    hold_until: UnixSeconds


class Rented(Struct, frozen=True, tag=True):
    """The container of a rental runs, by the meters of this lease (PROTOCOL §12).

    `heard_at`: when one was taken last, or this coordinator was away. `stop_by` > 0: its client
    stopped it, and the last meter is taken until then.
    """

    assignment_hash: Hash32
    started_at: UnixSeconds
    heard_at: UnixSeconds
    stop_by: UnixSeconds = UnixSeconds(0)
    logged: Amount = Amount(0)  # pay in the public log so far
    logged_ms: Milliseconds = Milliseconds(0)


class Ended(Struct, frozen=True, tag=True):
    """The job ended without a verdict: stopped, not matched in time, or a rental that ran."""

    reason: str


JobPhase = Matching | Running | AwaitingRound | Revealing | Rented | Decided | Ended


class SlotList(Struct, frozen=True):
    """A pool's list of stake slots at the time when snapshots of it were made."""

    pool: Hash32
    slots: tuple[StakeSlot, ...]
    snapshots: int  # how many snapshots are made of it


class EligibleSnapshot(Struct, frozen=True):
    """The slots of lists that were eligible at some Ack, from which jobs draw their auditors. Most
    jobs acknowledged at about the same time share one.
    """

    list_numbers: tuple[int, ...]  # of the `SlotList`s that it is made of, in order of their pools
    block: BlockNumber  # at which its slots are active
    withdrawals: tuple[WithdrawalEvidence, ...]  # why owners of active slots are not in it
    jobs: int  # how many jobs draw from it

    def slots_in(self, slots: tuple[StakeSlot, ...]) -> Iterator[StakeSlot]:
        gone = {item.offer.message.provider for item in self.withdrawals}
        return (slot for slot in slots if slot.is_active(self.block) and slot.owner not in gone)

    def withdrawals_at(
        self, block: BlockNumber, slots: tuple[StakeSlot, ...]
    ) -> tuple[WithdrawalEvidence, ...]:
        owners = {slot.owner for slot in slots if slot.is_active(block)}
        return tuple(item for item in self.withdrawals if item.offer.message.provider in owners)


class Job(Struct, frozen=True):
    """One order, and everything that anybody signed for it."""

    id: Hash32
    submission: Submission
    created_at: UnixSeconds
    ack: Envelope[Ack]
    secret: Hash32
    pool: Pool  # of the primary
    pools: tuple[Pool, ...]  # from which auditors are drawn, in order of their ids
    list_lengths: tuple[int, ...]  # of the pools' lists of stake slots
    slot_block_hash: Hash32  # of the block that the Ack names
    reserved: Amount
    phase: JobPhase
    leases: tuple[Hash32, ...] = ()
    batches: tuple[Batch, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # none under the comparator `exact`
    beacons: tuple[BeaconUsed, ...] = ()
    empty_draw: EmptyDraw | None = None  # the newest one
    agreed: tuple[Hash32, ...] = ()  # members whom a repeat asks, or may ask, in this order
    asked: int = 0  # so many of them were asked
    witness: Envelope[Witness] | None = None
    refused_by: tuple[Address, ...] = ()
    # What a Witness names of it: digests of its primaries' Commits, or of a fast job's Ack.
    commits: tuple[Hash32, ...] = ()
    # the client stopped it: nobody runs it again, and its partial result is not compared
    stop: Envelope[Stop] | None = None
    split: Split = NOTHING
    charged_up_to: Amount = Amount(0)  # the client's cumulative charge after this job
    held_verdict: Envelope[Verdict] | None = (
        None  # the first verdict, while a job waits for or runs a re-execution
    )
    read: tuple[Hash32, ...] = ()  # executions of which the client has read log lines
    is_started: bool = False  # a provider has said that its program runs, or has committed
    is_covered: bool = False  # a voucher reaches its charge
    is_pay_final: bool = False  # its providers' pay can no longer be taken back
    is_released: bool = False  # all its money is final
    receipt_cid: str | None = None
    live_bytes: int = 0  # of memory, that it takes while it is live
    allowed: Amount | None = None  # of a rental: what its client lets it cost; None = its budget

    @property
    def order(self) -> Order:
        return self.submission.order.message

    @property
    def list_length(self) -> int:
        """Of the joined lists, by which each draw divides."""
        return sum(self.list_lengths)

    def place_of(self, slot: StakeSlot) -> tuple[Hash32, int]:
        """(pool, place in its list) of a slot; -1 for the primary, which has no slot of a list."""
        if slot.index < 0:
            return self.pool.id(), slot.index
        number, place = place_in(self.list_lengths, slot.index)
        return self.pools[number].id(), place

    @property
    def is_rental(self) -> bool:
        return self.submission.spec.kind.is_rental

    @property
    def is_exact(self) -> bool:
        """Only equal results agree, and another one is a fault."""
        return self.order.comparator is Comparator.EXACT

    @property
    def is_fast(self) -> bool:
        """No primary is matched: the beacon draws both executions of its first batch."""
        return orders.is_fast(self.order, self.ack.message.rule)

    @property
    def is_drawing_first(self) -> bool:
        """It is fast, and its first batch waits for its round or runs."""
        is_first = isinstance(self.phase, AwaitingRound | Running) and not self.phase.batch
        return is_first and self.is_fast

    @property
    def is_escrowed(self) -> bool:
        """Its escrow pays it: no tab is charged."""
        return self.ack.message.escrowed

    @property
    def repeats(self) -> tuple[Hash32, ...]:
        found = (batch.members for batch in self.batches if batch.is_repeat)
        return tuple(name for members in found for name in members)

    @property
    def is_readable(self) -> bool:
        """Whether its client may read output and log (PROTOCOL §4 Outputs and pay)."""
        return self.is_paid_for and self.is_covered

    @property
    def is_paid_for(self) -> bool:
        return bool(self.split.credits or self.split.charged) and not self.split.refund

    @property
    def lacks_content(self) -> bool:
        return not self.leases and self.phase == Matching(self.waits_until)

    @property
    def waits_until(self) -> UnixSeconds:
        """Its order's expiry, or `startWithin` after the Ack while it has not started."""
        expiry = self.order.expiry
        if self.is_started:
            return expiry
        return UnixSeconds(min(expiry, self.created_at + self.submission.spec.start_within))


def open_leases(job: Job) -> tuple[Hash32, ...]:
    match job.phase:
        case Running(places=places):
            return tuple(place.assignment_hash for place in places if place.assignment_hash)
        case Revealing(batch):
            return batch.members
        case _:
            return ()


# -------------------------------------------------------------------------------------------- money


class Payee(Struct, frozen=True):
    """What this coordinator owes a provider, or a client that leaves. Amounts are cumulative."""

    account: Address
    final: Amount = Amount(0)
    held: Amount = Amount(0)  # may still be taken back; no voucher covers it
    vouched: Amount = Amount(0)  # as this coordinator signed it
    tab: Tab = Tab()  # from this coordinator, by final blocks
    paid_at: UnixSeconds = UnixSeconds(0)  # its last payroll, or its first pay
    day: int = 0  # of the newest pay, since 1970
    earned: Amount = Amount(0)  # on that day
    daily: Amount = Amount(0)  # average of the days before

    @property
    def unpaid(self) -> Amount:
        return Amount(max(0, self.vouched - self.tab.paid))


class Sending(Struct, frozen=True):
    """The newest transaction of one kind; another follows once it ends, or after `retry_at`."""

    key: str
    amount: Amount  # that it takes from the balance
    accounts: tuple[Address, ...] = ()  # that it pays, or whose vouchers it redeems
    retry_at: UnixSeconds = UnixSeconds(0)  # 0 = under way


class AgreedHosts(Struct, frozen=True):
    """Two hosts of a pool whose results agreed, in so many jobs."""

    one: Hash32  # digests, in order
    other: Hash32
    agreed: int


class OwnRecord(Struct, frozen=True):
    """The coordinator's own money and counters."""

    fee: Amount = Amount(0)  # covered by vouchers
    fee_held: Amount = Amount(0)
    fund: Amount = Amount(0)  # the audit fund
    fund_held: Amount = Amount(0)
    block: BlockNumber = BlockNumber(0)
    block_time: UnixSeconds = UnixSeconds(0)
    verdict_seq: Sequence = Sequence(0)
    log: Log = Log()  # of the digests of all its Summaries
    balance: Amount = Amount(0)  # in `Escrow`
    payroll_left: Amount = Amount(0)  # what the day's limits leave to the posting key
    locks_left: Amount = Amount(0)
    money_at: UnixSeconds = UnixSeconds(0)  # when a transaction may be due; 0 = none is
    looked_at: UnixSeconds = UnixSeconds(0)  # when the core looked for one
    is_compared: bool = False  # after the start, chain and providers have shown what we had signed
    restarted_at: UnixSeconds = UnixSeconds(0)
    is_leaving: bool = False  # the chain says that it has retired


class Windows(Struct, frozen=True):
    """One provider's progress through its hold windows, by job class (PROTOCOL §5 Holding)."""

    by_class: dict[Hash32, Window] = field(default_factory=dict)


class JobHold(Struct, frozen=True):
    """The hold of a job with a provisional verdict: its pay waits.

    It ends at `Decided.hold_until`, or when `owner`'s progress in the class reaches `ends_at`
    (counted jobs, in ppm of one job).
    """

    owner: Address
    trust_class: Hash32
    ends_at: int


class MedianPrice(Struct, frozen=True):
    """A pool's median price, which the coordinator uses until `until`."""

    price: Price
    until: UnixSeconds
