"""The coordinator's events. The shell verifies them, and the actor journals them.

The shell has checked each signature against its message and names the signer as `key`. The core
decides whether that key may act for an account, from the state at that moment, so that a replay
decides the same.
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
    """`key` signed it. `is_stored`: the staging store has its ciphertext."""

    commit: Envelope[Commit]
    key: Address
    is_stored: bool


class RevealReceived(Struct, frozen=True, tag=True):
    """`has_opened`: the stored ciphertext opens to the digest under this salt."""

    reveal: Reveal
    has_opened: bool


# ------------------------------------------------------------------------------------- from clients


class OrderReceived(Struct, frozen=True, tag=True):
    """An order. Its signatures, spec and session have passed `orders.validate`."""

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
    """From `Stakes`: the entry is not active from a block on."""

    host_class: Hash32
    index: int
    active_until: BlockNumber


class ChainAccountIndexed(Struct, frozen=True, tag=True):
    """From `Stakes`: registration index of a client or coordinator."""

    account: Address
    index: int


class ChainAllocationChanged(Struct, frozen=True, tag=True):
    """From `Escrow`: what a client has allocated to this coordinator, including what was charged,
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
    """From `Stakes`: all slots of the owner are closed from a block on. It gets no work until it
    opens new ones.
    """

    owner: Address
    amount: Amount
    out_block: BlockNumber


class ChainEpochPosted(Struct, frozen=True, tag=True):
    """From `Epochs`: the chain has a root of ours."""

    number: int
    root: Hash32


class ChainNewestEpoch(Struct, frozen=True, tag=True):
    """From `Epochs`, by a query: our newest posting. Number 0 and root zero mean that there is
    none.
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
    """A confirmed block (depth k), and what changed since the block before, in log order."""

    block: BlockNumber
    block_hash: Hash32
    block_time: UnixSeconds
    notes: tuple[ChainNote, ...]


class ChainReorganised(Struct, frozen=True, tag=True):
    """The chain replaced its blocks above `kept`, which are read again. Notes state values and not
    differences, so a repeated note is harmless.
    """

    kept: BlockNumber


class ChainAsked(Struct, frozen=True, tag=True):
    """The chain's answer to a query, apart from its blocks. Logs do not report events that a
    reorganisation removed.
    """

    notes: tuple[ChainNote, ...]


class SessionReceived(Struct, frozen=True, tag=True):
    """A client's session, signed by its account, before its first order. Its key may then
    upload.
    """

    session: Envelope[Session]


class TransactionRefused(Struct, frozen=True, tag=True):
    """The chain will never take a transaction. `purpose` is the key of its effect."""

    purpose: str
    reason: str


class RunsArchived(Struct, frozen=True, tag=True):
    """The archive has stored these runs durably, so the state may forget them."""

    jobs: tuple[Hash32, ...]


class Restarted(Struct, frozen=True, tag=True):
    """The process has started again. Open CommitSets must be sent again."""


class Compared(Struct, frozen=True, tag=True):
    """Since the start, chain and providers had the time to show what we have signed, and the
    state knows all of it.
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
