"""The coordinator's events. The shell verifies them, and the actor journals them.

The shell recovers the signer of each message and passes its address as `key`. The core decides from
the state whether that key may act for the account, so that a replay decides the same.
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
    Hash32,
    Nonce,
    Round,
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
    """An offer like the one with `base_seq`, but for sequence number, expiry and signature. The
    shell has checked all of it.
    """

    base_seq: Sequence
    seq: Sequence
    expires: UnixSeconds
    signature: Signature


class HeartbeatReceived(Struct, frozen=True, tag=True):
    """`key` signed the heartbeat. `refresh`: the newest refresh of the offer since the last
    heartbeat.
    """

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
    """A provider's commitment to a result. `key` signed it. `is_stored`: the staging store has the
    ciphertext that it names.
    """

    commit: Envelope[Commit]
    key: Address
    is_stored: bool


class EquivocationSeen(Struct, frozen=True, tag=True):
    """A provider signed another Commit than the one that this coordinator has. `key` signed it."""

    commit: Envelope[Commit]
    key: Address


class RevealReceived(Struct, frozen=True, tag=True):
    """A provider opens its commitment. `has_opened`: the stored ciphertext gives the announced
    digest under this salt.
    """

    reveal: Reveal
    has_opened: bool


class CheckedGpu(Struct, frozen=True):
    """The records of one GPU. `keys` signed them, in the same order."""

    uuid: str
    records: tuple[Envelope[AttestationRecord], ...]
    keys: tuple[Address, ...]


class AttestationReceived(Struct, frozen=True, tag=True):
    """The attestation document that a provider's offer names. Draw, proofs and signatures have
    passed their checks.

    `coordinator` challenged the provider. If it is another coordinator, `coordinator_key` is its
    statement key by the chain.
    """

    provider: Address
    record: Hash32  # digest of the document
    coordinator: Address
    coordinator_key: Address
    gpus: tuple[CheckedGpu, ...]


# ------------------------------------------------------------------------------------- from clients


class OrderReceived(Struct, frozen=True, tag=True):
    """A client's order. Its signatures, spec and session have passed `orders.validate`."""

    submission: Submission


class WitnessReceived(Struct, frozen=True, tag=True):
    """A witness of a primary's commit. `key` signed it."""

    witness: Envelope[Witness]
    key: Address


class VoucherReceived(Struct, frozen=True, tag=True):
    """A client's voucher. `key` signed it."""

    voucher: Envelope[Voucher]
    key: Address


class LogRead(Struct, frozen=True, tag=True):
    """The client gets the first lines of an execution's log. It is submitted before they are
    sent.
    """

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
    """From `Stakes`: a provider is registered, with this registration index and these keys."""

    owner: Address
    index: int
    operator_key: Address
    payout: Address
    network: Hash32


class ChainSlotOpened(Struct, frozen=True, tag=True):
    """From `Stakes`: slot `index` of a host class's list belongs to `owner`, active from a block
    on.
    """

    host_class: Hash32
    index: int
    owner: Address
    active_from: BlockNumber


class ChainSlotClosed(Struct, frozen=True, tag=True):
    """From `Stakes`: slot `index` is no longer active from a block on."""

    host_class: Hash32
    index: int
    active_until: BlockNumber


class ChainAccountIndexed(Struct, frozen=True, tag=True):
    """From `Stakes`: the registration index of a client or coordinator."""

    account: Address
    index: int


class ChainAllocationChanged(Struct, frozen=True, tag=True):
    """From `Escrow`: what a client has allocated to this coordinator. It includes what was charged,
    and excludes announced releases.
    """

    client: Address
    allocation: Amount
    escrowed: Amount | None = (
        None  # all that the chain holds until a release is finished; None = `allocation`
    )
    release_at: UnixSeconds = UnixSeconds(
        0
    )  # from when on, in the chain's time, an announced release may be finished; 0 = none
    posted: Amount | None = None  # what vouchers have charged on the chain; None = unchanged


class ChainKeyRotated(Struct, frozen=True, tag=True):
    """From `Stakes`: a provider's new operator key, valid from `since` on. The old key is valid up
    to and including `since`.
    """

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
    """From `Stakes`: an owner has left, or a fine took more than half of its stake. Its slots are
    closed from `out_block` on.
    """

    owner: Address
    out_block: BlockNumber


class ChainSlotFreed(Struct, frozen=True, tag=True):
    """From `Stakes`: the stake of slot `index` was paid back, so it stands for nobody."""

    host_class: Hash32
    index: int


class ChainProviderSlashed(Struct, frozen=True, tag=True):
    """From `Stakes`: a court took stake from an owner, and all its slots are closed from
    `out_block` on. It gets no work until it opens new ones.
    """

    owner: Address
    amount: Amount
    out_block: BlockNumber


class ChainEpochPosted(Struct, frozen=True, tag=True):
    """From `Epochs`: the chain has a root that our posting key posted."""

    number: int
    root: Hash32


class ChainNewestEpoch(Struct, frozen=True, tag=True):
    """From `Epochs`, by a query: our newest posting. Number 0 and root zero mean that there is
    none.
    """

    number: int
    root: Hash32


class ChainCaseOpened(Struct, frozen=True, tag=True):
    """From `Court`: a case against `accused` is open, which names these executions, and for each of
    them another one that contradicts it.
    """

    case_id: Nonce
    accused: Address
    assignments: tuple[Hash32, ...]
    contradictions: tuple[Hash32, ...]


class ChainJuryDrawn(Struct, frozen=True, tag=True):
    """From `Court`: the jury of a case is drawn."""

    case_id: Nonce
    jurors: tuple[Address, ...]


class ChainCaseDecided(Struct, frozen=True, tag=True):
    """From `Court`: the jury convicted the accused or not; `slashed` is the stake that it lost."""

    case_id: Nonce
    is_convicted: bool
    slashed: Amount


ChainNote = (
    ChainProviderRegistered
    | ChainKeyRotated
    | ChainPayoutChanged
    | ChainSlotOpened
    | ChainNetworkChanged
    | ChainSlotClosed
    | ChainSlotsClosed
    | ChainSlotFreed
    | ChainProviderSlashed
    | ChainAccountIndexed
    | ChainAllocationChanged
    | ChainEpochPosted
    | ChainNewestEpoch
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
    """The chain replaced its blocks above `kept`, and the shell reads those blocks again. Notes
    give values and not differences, so a repeated note is harmless.
    """

    kept: BlockNumber


class ChainStateQueried(Struct, frozen=True, tag=True):
    """The chain's current state, which the shell queried. Logs do not report events that a
    reorganisation removed, so logs alone would not correct them.
    """

    notes: tuple[ChainNote, ...]


class SessionReceived(Struct, frozen=True, tag=True):
    """A client's session, signed by its account, before its first order. The session key may then
    upload.
    """

    session: Envelope[Session]


class TransactionRefused(Struct, frozen=True, tag=True):
    """The chain will never take a transaction. `purpose` is the key of the effect that
    ordered it.
    """

    purpose: str
    reason: str


class RunsArchived(Struct, frozen=True, tag=True):
    """The archive has stored these runs durably, so the state may delete them."""

    jobs: tuple[Hash32, ...]


class Restarted(Struct, frozen=True, tag=True):
    """The process has started again. The core then sends open CommitSets again."""


class Compared(Struct, frozen=True, tag=True):
    """Since the start, chain and providers had time to show what this coordinator has signed. The
    state knows all of it.
    """


class Tick(Struct, frozen=True, tag=True):
    """Time has passed. The core applies the deadlines that are over."""


Event = (
    OfferReceived
    | HeartbeatReceived
    | AcceptReceived
    | DeclineReceived
    | CommitReceived
    | EquivocationSeen
    | RevealReceived
    | AttestationReceived
    | OrderReceived
    | WitnessReceived
    | VoucherReceived
    | StopReceived
    | LogRead
    | RoundAppeared
    | ChainAdvanced
    | ChainReorganised
    | ChainStateQueried
    | SessionReceived
    | TransactionRefused
    | RunsArchived
    | Restarted
    | Compared
    | Tick
)
