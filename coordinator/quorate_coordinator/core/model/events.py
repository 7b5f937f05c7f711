"""The coordinator's events, which the actor journals.

The shell recovers the signer of each message as `key`. The core decides from the state whether that
key may act for the account, so that a replay decides the same.
"""

from msgspec import Struct

from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import (
    Accept,
    AttestationRecord,
    Commit,
    Decline,
    Heartbeat,
    Reveal,
    Session,
    Stop,
    Voucher,
    Witness,
)
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    ExitStatus,
    Hash32,
    Milliseconds,
    Round,
    Seconds,
    Sequence,
    Signature,
    UnixSeconds,
)

# ----------------------------------------------------------------------------------- from providers


class OfferReceived(Struct, frozen=True, tag=True):
    """A provider's offer. `key` signed it."""

    offer: OfferEnvelope
    key: Address


class OfferRefresh(Struct, frozen=True):
    """An offer like `base_seq`'s, but for number, expiry and signature. The shell checked it."""

    base_seq: Sequence
    seq: Sequence
    expires: UnixSeconds
    signature: Signature


class HeartbeatReceived(Struct, frozen=True, tag=True):
    """`key` signed the heartbeat. `refresh`: the newest of the offer since the last heartbeat."""

    heartbeat: Envelope[Heartbeat]
    key: Address
    refresh: OfferRefresh | None = None


class AcceptReceived(Struct, frozen=True, tag=True):
    """A provider accepts an assignment. `key` signed it."""

    accept: Envelope[Accept]
    key: Address


class DeclineReceived(Struct, frozen=True, tag=True):
    """A provider declines or postpones an assignment, or gives it up. `key` signed it."""

    decline: Envelope[Decline]
    key: Address


class CommitReceived(Struct, frozen=True, tag=True):
    """`key` signed the commitment. `is_stored`: the staging store has its ciphertext."""

    commit: Envelope[Commit]
    key: Address
    is_stored: bool


class EquivocationSeen(Struct, frozen=True, tag=True):
    """A provider signed another Commit than the one that this coordinator has. `key` signed it."""

    commit: Envelope[Commit]
    key: Address


class RevealReceived(Struct, frozen=True, tag=True):
    """`has_opened`: the stored ciphertext gives the announced digest under this salt. If
    `opens_within` is above 0, a large one is being opened, and the same Reveal comes again.
    """

    reveal: Reveal
    has_opened: bool
    opens_within: Seconds = Seconds(0)


class MeterReceived(Struct, frozen=True, tag=True):
    """How long a rental's container has run, as `provider` says. The reply may be the refusal that
    ends the rental, because that changes the state.
    """

    assignment_hash: Hash32
    usage_ms: Milliseconds
    exit_status: ExitStatus | None
    provider: Address


class CheckedGpu(Struct, frozen=True):
    """The records of one GPU. `keys` signed them, in the same order."""

    uuid: str
    records: tuple[Envelope[AttestationRecord], ...]
    keys: tuple[Address, ...]


class OutputsCompared(Struct, frozen=True, tag=True):
    """How far the outputs of two executions are apart (`effects.CompareOutputs`)."""

    job_id: Hash32
    one: Hash32
    other: Hash32
    ppb: int | None  # None: no tolerance lets them agree, or they could not be compared


class AttestationReceived(Struct, frozen=True, tag=True):
    """The attestation document that a provider's offer names. Draw, proofs and signatures have
    passed their checks.

    If another coordinator challenged the provider, `coordinator_key` is its statement key by the
    chain.
    """

    provider: Address
    record: Hash32  # digest of the document
    coordinator: Address
    coordinator_key: Address
    gpus: tuple[CheckedGpu, ...]


# ------------------------------------------------------------------------------------- from clients


class OrderReceived(Struct, frozen=True, tag=True):
    """A client's order, which has passed `orders.validate`.

    `is_escrowed`: `Jobs` holds its budget until `orders.escrow_until` at least. The answer to such
    an order may be the refusal, because that changes the state. `lacks_content`: it names content
    that the coordinator has not taken yet.
    """

    submission: Submission
    is_escrowed: bool = False
    lacks_content: bool = False


class ContentTaken(Struct, frozen=True, tag=True):
    """The coordinator's store has all that a job names by CID."""

    job_id: Hash32


class WitnessReceived(Struct, frozen=True, tag=True):
    """A witness of a primary's commit. `key` signed it."""

    witness: Envelope[Witness]
    key: Address


class VoucherReceived(Struct, frozen=True, tag=True):
    """A client's voucher. `key` signed it."""

    voucher: Envelope[Voucher]
    key: Address


class GiveBackAsked(Struct, frozen=True, tag=True):
    """A client wants so much of its tab back. The reply is the amount that it gets."""

    client: Address
    amount: Amount


class AllowanceNamed(Struct, frozen=True, tag=True):
    """A client says how much its rental may cost in all."""

    job_id: Hash32
    client: Address
    most: Amount


class LogRead(Struct, frozen=True, tag=True):
    """The client gets the first lines of an execution's log: submitted before they are sent."""

    job_id: Hash32
    assignment_hash: Hash32


class StopReceived(Struct, frozen=True, tag=True):
    """A client's stop of its job. `key` signed it."""

    stop: Envelope[Stop]
    key: Address


# ------------------------------------------------------------------------- from beacon, chain, time


class RoundAppeared(Struct, frozen=True, tag=True):
    """A verified beacon round."""

    round: Round
    signature: bytes
    randomness: bytes


class ChainProviderRegistered(Struct, frozen=True, tag=True):
    """From `Stakes`: a provider is registered with these keys."""

    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32


class ChainSlotOpened(Struct, frozen=True, tag=True):
    """From `Stakes`: slot `index` of a class's list belongs to `owner`, from a block on."""

    pool: Hash32
    index: int
    owner: Address
    active_from: BlockNumber


class ChainSlotClosed(Struct, frozen=True, tag=True):
    """From `Stakes`: slot `index` is no longer active from a block on."""

    pool: Hash32
    index: int
    active_until: BlockNumber


class ChainTabChanged(Struct, frozen=True, tag=True):
    """From `Escrow`: a tab as it is now. This coordinator is its payee or its payer."""

    payer: Address
    payee: Address
    locked: Amount
    paid: Amount
    closes_at: UnixSeconds = UnixSeconds(0)  # 0 = open


class ChainBalanceChanged(Struct, frozen=True, tag=True):
    """From `Escrow`: the own balance, and what the day's limits leave to the posting key."""

    amount: Amount
    payroll_left: Amount
    locks_left: Amount


class ChainKeyRotated(Struct, frozen=True, tag=True):
    """From `Stakes`: a new operator key. In the second `since` the old one is valid too."""

    owner: Address
    operator_key: Address
    since: UnixSeconds


class ChainPayoutChanged(Struct, frozen=True, tag=True):
    """From `Stakes`: the address to which a provider's money now goes."""

    owner: Address
    payout: Address


class ChainNetworkChanged(Struct, frozen=True, tag=True):
    """From `Stakes`: the network in which a provider is reached now."""

    owner: Address
    network: Hash32


class ChainSlotsClosed(Struct, frozen=True, tag=True):
    """From `Stakes`: an owner left, or lost more than half of its stake."""

    owner: Address
    out_block: BlockNumber


class ChainSlotFreed(Struct, frozen=True, tag=True):
    """From `Stakes`: the stake of slot `index` was paid back, so it stands for nobody."""

    pool: Hash32
    index: int


class ChainCaseOpened(Struct, frozen=True, tag=True):
    """From `Court`. `execution` and `contradiction` are the digests of both Assignments."""

    execution: Hash32
    contradiction: Hash32
    accused: Address
    case_id: Hash32  # of its Filing


class ChainJuryDrawn(Struct, frozen=True, tag=True):
    """From `Court`: all jurors that were drawn so far for the case over an execution."""

    execution: Hash32
    jurors: tuple[Address, ...]


class ChainCaseDecided(Struct, frozen=True, tag=True):
    """From `Court`. `taken` is the stake that the accused lost."""

    execution: Hash32
    is_convicted: bool
    taken: Amount


ChainNote = (
    ChainProviderRegistered
    | ChainKeyRotated
    | ChainPayoutChanged
    | ChainSlotOpened
    | ChainNetworkChanged
    | ChainSlotClosed
    | ChainSlotsClosed
    | ChainSlotFreed
    | ChainTabChanged
    | ChainBalanceChanged
    | ChainCaseOpened
    | ChainJuryDrawn
    | ChainCaseDecided
)


class ChainAdvanced(Struct, frozen=True, tag=True):
    """A confirmed block (depth k), and what changed since the block before it, in log order."""

    block: BlockNumber
    block_hash: Hash32
    block_time: UnixSeconds
    notes: tuple[ChainNote, ...]


class ChainReorganised(Struct, frozen=True, tag=True):
    """The chain replaced its blocks above `kept`, and the shell reads those again. Notes give
    values and not differences, so a repeated note is harmless.
    """

    kept: BlockNumber


class ChainStateQueried(Struct, frozen=True, tag=True):
    """The chain's current state. Logs do not report events that a reorganisation removed, so logs
    alone would not correct them.
    """

    notes: tuple[ChainNote, ...]


class SessionReceived(Struct, frozen=True, tag=True):
    """A client's session, signed by its account. Its key may then upload."""

    session: Envelope[Session]


class TransactionConfirmed(Struct, frozen=True, tag=True):
    """It is deep enough in the chain. `purpose` is the key of the effect that ordered it. The notes
    are what it may have changed, as the chain has it now.
    """

    purpose: str
    notes: tuple[ChainNote, ...]


class TransactionRefused(Struct, frozen=True, tag=True):
    """The chain will never take it. `purpose` is the key of the effect that ordered it."""

    purpose: str
    reason: str


class RunsArchived(Struct, frozen=True, tag=True):
    """The archive has stored these runs durably, so the state may delete them."""

    jobs: tuple[Hash32, ...]


class Restarted(Struct, frozen=True, tag=True):
    """The process has started again. The core then sends open CommitSets again."""


class Compared(Struct, frozen=True, tag=True):
    """Since the start, chain and providers had time to show what this coordinator has signed."""


class Tick(Struct, frozen=True, tag=True):
    """Time has passed. The core applies the deadlines that are over."""


Event = (
    OfferReceived
    | ContentTaken
    | HeartbeatReceived
    | AcceptReceived
    | DeclineReceived
    | CommitReceived
    | EquivocationSeen
    | RevealReceived
    | MeterReceived
    | OutputsCompared
    | AttestationReceived
    | OrderReceived
    | WitnessReceived
    | VoucherReceived
    | StopReceived
    | GiveBackAsked
    | AllowanceNamed
    | LogRead
    | RoundAppeared
    | ChainAdvanced
    | ChainReorganised
    | ChainStateQueried
    | SessionReceived
    | TransactionConfirmed
    | TransactionRefused
    | RunsArchived
    | Restarted
    | Compared
    | Tick
)
