"""What happened: events of the coordinator, verified by the shell before they come here, and
journaled.

Signatures have been checked against the message's own text; whether the signer may speak for an
account is decided here, on the state at that moment, so that replay decides the same.
"""

from dataclasses import dataclass

from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.signed import (
    Accept,
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
from quorate_protocol.units import Address, Amount, BlockNumber, Hash32, Nonce, Round, UnixSeconds

# ----------------------------------------------------------------------------------- from providers


@dataclass(frozen=True, slots=True)
class OfferReceived:
    """`key` signed it."""

    offer: OfferEnvelope
    key: Address


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """`key` signed it."""

    heartbeat: Envelope[Heartbeat]
    key: Address


@dataclass(frozen=True, slots=True)
class AcceptReceived:
    """`key` signed it."""

    accept: Envelope[Accept]
    key: Address


@dataclass(frozen=True, slots=True)
class DeclineReceived:
    """`key` signed it."""

    decline: Envelope[Decline]
    key: Address


@dataclass(frozen=True, slots=True)
class CommitReceived:
    """`key` signed it; `is_stored`: its ciphertext lies in the staging store."""

    commit: Envelope[Commit]
    key: Address
    is_stored: bool


@dataclass(frozen=True, slots=True)
class RevealReceived:
    """`has_opened`: the stored ciphertext opened to the digest under this salt."""

    reveal: Reveal
    has_opened: bool


# ------------------------------------------------------------------------------------- from clients


@dataclass(frozen=True, slots=True)
class OrderReceived:
    """Signatures, spec and session have passed `order.validate`."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class WitnessReceived:
    """`key` signed it."""

    witness: Envelope[Witness]
    key: Address


@dataclass(frozen=True, slots=True)
class VoucherReceived:
    """`key` signed it."""

    voucher: Envelope[Voucher]
    key: Address


@dataclass(frozen=True, slots=True)
class StopReceived:
    """`key` signed it."""

    stop: Envelope[Stop]
    key: Address


# ------------------------------------------------------------------------- from beacon, chain, time


@dataclass(frozen=True, slots=True)
class RoundAppeared:
    """A verified beacon round."""

    round: Round
    signature: bytes
    randomness: bytes


@dataclass(frozen=True, slots=True)
class ProviderRegistered:
    """From `Stakes`: an owner, its registration index and its current keys."""

    owner: Address
    index: int
    operator_key: Address
    payout: Address
    network: Hash32


@dataclass(frozen=True, slots=True)
class SlotOpened:
    """From `Stakes`: entry `index` of a host class's list now belongs to `owner`, active from a
    block.
    """

    host_class: Hash32
    index: int
    owner: Address
    active_from: BlockNumber


@dataclass(frozen=True, slots=True)
class SlotClosed:
    """From `Stakes`: the entry is active no longer from a block on."""

    host_class: Hash32
    index: int
    active_until: BlockNumber


@dataclass(frozen=True, slots=True)
class AccountIndexed:
    """From `Stakes`: registration index of a client or coordinator."""

    account: Address
    index: int


@dataclass(frozen=True, slots=True)
class AllocationChanged:
    """From `Escrow`: what a client has allocated to this coordinator, charged amounts included,
    less announced releases.
    """

    client: Address
    allocation: Amount
    escrowed: Amount | None = (
        None  # all that the chain holds until a release is finished; None = `allocation`
    )
    release_at: UnixSeconds = UnixSeconds(
        0
    )  # from when on, in the chain's time, an announced release may be finished; 0 = none
    posted: Amount | None = (
        None  # what vouchers have charged on the chain; None = what is known of it
    )


@dataclass(frozen=True, slots=True)
class KeyRotated:
    """From `Stakes`: a provider's new operator key, valid from `since` on; the one before it is
    valid up to and including `since`.
    """

    owner: Address
    operator_key: Address
    since: UnixSeconds


@dataclass(frozen=True, slots=True)
class PayoutChanged:
    """From `Stakes`: where a provider's money goes."""

    owner: Address
    payout: Address


@dataclass(frozen=True, slots=True)
class ProviderSlashed:
    """From `Stakes`: all slots of the owner are closed from a block on; it is out until it opens
    new ones.
    """

    owner: Address
    amount: Amount
    out_block: BlockNumber


@dataclass(frozen=True, slots=True)
class EpochPosted:
    """From `Epochs`: our root stands on chain."""

    number: int
    root: Hash32


@dataclass(frozen=True, slots=True)
class NewestEpoch:
    """From `Epochs`, asked and not logged: our newest posting that stands; number 0 and root
    zero before the first.
    """

    number: int
    root: Hash32


@dataclass(frozen=True, slots=True)
class CaseOpened:
    """From `Court`."""

    case_id: Nonce
    accused: Address
    assignments: tuple[Hash32, ...]


@dataclass(frozen=True, slots=True)
class JuryDrawn:
    """From `Court`."""

    case_id: Nonce
    jurors: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class CaseDecided:
    """From `Court`."""

    case_id: Nonce
    is_convicted: bool
    slashed: Amount


ChainNote = (
    ProviderRegistered
    | KeyRotated
    | PayoutChanged
    | SlotOpened
    | SlotClosed
    | ProviderSlashed
    | AccountIndexed
    | AllocationChanged
    | EpochPosted
    | NewestEpoch
    | CaseOpened
    | JuryDrawn
    | CaseDecided
)


@dataclass(frozen=True, slots=True)
class ChainAdvanced:
    """A confirmed block (depth k) and what it and those since the last one changed, in log
    order.
    """

    block: BlockNumber
    block_hash: Hash32
    block_time: UnixSeconds
    notes: tuple[ChainNote, ...]


@dataclass(frozen=True, slots=True)
class ChainReorganised:
    """The chain changed its mind: blocks above `kept` are read anew. Notes say what is, not what
    changed, so repeating them is harmless.
    """

    kept: BlockNumber


@dataclass(frozen=True, slots=True)
class ChainAsked:
    """What the chain answered when it was asked, apart from its blocks: logs do not say what a
    reorganisation took away.
    """

    notes: tuple[ChainNote, ...]


@dataclass(frozen=True, slots=True)
class SessionReceived:
    """A client's session, signed by its account, before its first order: its key may upload."""

    session: Envelope[Session]


@dataclass(frozen=True, slots=True)
class TransactionRefused:
    """The chain refused a transaction for good; `purpose` is its effect's key."""

    purpose: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunsArchived:
    """These runs are in the archive, durably: nothing of them is needed here any more."""

    jobs: tuple[Hash32, ...]


@dataclass(frozen=True, slots=True)
class Restarted:
    """The process came up again; what it had closed must be told anew."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Since it came up the chain was asked, and providers had the time to say, what we have
    signed: it was known here.
    """


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes."""


Event = (
    OfferReceived
    | HeartbeatReceived
    | AcceptReceived
    | DeclineReceived
    | CommitReceived
    | RevealReceived
    | OrderReceived
    | WitnessReceived
    | VoucherReceived
    | StopReceived
    | RoundAppeared
    | ChainAdvanced
    | ChainReorganised
    | ChainAsked
    | SessionReceived
    | TransactionRefused
    | RunsArchived
    | Restarted
    | Compared
    | Tick
)
