"""What happened: events of the coordinator, verified by the shell before they come here, and
journaled.

Signatures have been checked against the message's own text; whether the signer may speak for an
account is decided here, on the state at that moment, so that replay decides the same.
"""

from msgspec import Struct

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


class OfferReceived(Struct, frozen=True, tag=True):
    """`key` signed it."""

    offer: OfferEnvelope
    key: Address


class HeartbeatReceived(Struct, frozen=True, tag=True):
    """`key` signed it."""

    heartbeat: Envelope[Heartbeat]
    key: Address


class AcceptReceived(Struct, frozen=True, tag=True):
    """`key` signed it."""

    accept: Envelope[Accept]
    key: Address


class DeclineReceived(Struct, frozen=True, tag=True):
    """`key` signed it."""

    decline: Envelope[Decline]
    key: Address


class CommitReceived(Struct, frozen=True, tag=True):
    """`key` signed it; `is_stored`: its ciphertext lies in the staging store."""

    commit: Envelope[Commit]
    key: Address
    is_stored: bool


class RevealReceived(Struct, frozen=True, tag=True):
    """`has_opened`: the stored ciphertext opened to the digest under this salt."""

    reveal: Reveal
    has_opened: bool


# ------------------------------------------------------------------------------------- from clients


class OrderReceived(Struct, frozen=True, tag=True):
    """Signatures, spec and session have passed `order.validate`."""

    submission: Submission


class WitnessReceived(Struct, frozen=True, tag=True):
    """`key` signed it."""

    witness: Envelope[Witness]
    key: Address


class VoucherReceived(Struct, frozen=True, tag=True):
    """`key` signed it."""

    voucher: Envelope[Voucher]
    key: Address


class StopReceived(Struct, frozen=True, tag=True):
    """`key` signed it."""

    stop: Envelope[Stop]
    key: Address


# ------------------------------------------------------------------------- from beacon, chain, time


class RoundAppeared(Struct, frozen=True, tag=True):
    """A verified beacon round."""

    round: Round
    signature: bytes
    randomness: bytes


class ChainProviderRegistered(Struct, frozen=True, tag=True):
    """From `Stakes`: an owner, its registration index and its current keys."""

    owner: Address
    index: int
    operator_key: Address
    payout: Address
    network: Hash32


class ChainSlotOpened(Struct, frozen=True, tag=True):
    """From `Stakes`: entry `index` of a host class's list now belongs to `owner`, active from a
    block.
    """

    host_class: Hash32
    index: int
    owner: Address
    active_from: BlockNumber


class ChainSlotClosed(Struct, frozen=True, tag=True):
    """From `Stakes`: the entry is active no longer from a block on."""

    host_class: Hash32
    index: int
    active_until: BlockNumber


class ChainAccountIndexed(Struct, frozen=True, tag=True):
    """From `Stakes`: registration index of a client or coordinator."""

    account: Address
    index: int


class ChainAllocationChanged(Struct, frozen=True, tag=True):
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


class ChainKeyRotated(Struct, frozen=True, tag=True):
    """From `Stakes`: a provider's new operator key, valid from `since` on; the one before it is
    valid up to and including `since`.
    """

    owner: Address
    operator_key: Address
    since: UnixSeconds


class ChainPayoutChanged(Struct, frozen=True, tag=True):
    """From `Stakes`: where a provider's money goes."""

    owner: Address
    payout: Address


class ChainProviderSlashed(Struct, frozen=True, tag=True):
    """From `Stakes`: all slots of the owner are closed from a block on; it is out until it opens
    new ones.
    """

    owner: Address
    amount: Amount
    out_block: BlockNumber


class ChainEpochPosted(Struct, frozen=True, tag=True):
    """From `Epochs`: our root stands on chain."""

    number: int
    root: Hash32


class ChainNewestEpoch(Struct, frozen=True, tag=True):
    """From `Epochs`, asked and not logged: our newest posting that stands; number 0 and root
    zero before the first.
    """

    number: int
    root: Hash32


class ChainCaseOpened(Struct, frozen=True, tag=True):
    """From `Court`."""

    case_id: Nonce
    accused: Address
    assignments: tuple[Hash32, ...]


class ChainJuryDrawn(Struct, frozen=True, tag=True):
    """From `Court`."""

    case_id: Nonce
    jurors: tuple[Address, ...]


class ChainCaseDecided(Struct, frozen=True, tag=True):
    """From `Court`."""

    case_id: Nonce
    is_convicted: bool
    slashed: Amount


ChainNote = (
    ChainProviderRegistered
    | ChainKeyRotated
    | ChainPayoutChanged
    | ChainSlotOpened
    | ChainSlotClosed
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
    """A confirmed block (depth k) and what it and those since the last one changed, in log
    order.
    """

    block: BlockNumber
    block_hash: Hash32
    block_time: UnixSeconds
    notes: tuple[ChainNote, ...]


class ChainReorganised(Struct, frozen=True, tag=True):
    """The chain changed its mind: blocks above `kept` are read anew. Notes say what is, not what
    changed, so repeating them is harmless.
    """

    kept: BlockNumber


class ChainAsked(Struct, frozen=True, tag=True):
    """What the chain answered when it was asked, apart from its blocks: logs do not say what a
    reorganisation took away.
    """

    notes: tuple[ChainNote, ...]


class SessionReceived(Struct, frozen=True, tag=True):
    """A client's session, signed by its account, before its first order: its key may upload."""

    session: Envelope[Session]


class TransactionRefused(Struct, frozen=True, tag=True):
    """The chain refused a transaction for good; `purpose` is its effect's key."""

    purpose: str
    reason: str


class RunsArchived(Struct, frozen=True, tag=True):
    """These runs are in the archive, durably: nothing of them is needed here any more."""

    jobs: tuple[Hash32, ...]


class Restarted(Struct, frozen=True, tag=True):
    """The process came up again; what it had closed must be told anew."""


class Compared(Struct, frozen=True, tag=True):
    """Since it came up the chain was asked, and providers had the time to say, what we have
    signed: it was known here.
    """


class Tick(Struct, frozen=True, tag=True):
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
