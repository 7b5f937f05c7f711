"""Every message of PROTOCOL §3 with all its fields. Field order is signed order; types give the
wire widths (`units`).

A message is signed as EIP-712 (`eip712.digest`) and travels in an `Envelope` (`envelope`).
Reveals are unsigned: they open a commitment.
"""

from msgspec import Struct

from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Bps,
    Comparator,
    DeclineReason,
    ExitStatus,
    Hash32,
    Label,
    Milliseconds,
    Nonce,
    Outcome,
    Ppm,
    Price,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
    VerifyTier,
)


class KeyBinding(Struct, frozen=True):
    """Signed by the operator key (EIP-712) and by the Ed25519 peer key (over the same digest); a
    newer `seq` replaces it.
    """

    account: Address
    peer_key: Hash32  # Ed25519 public key
    box_key: Hash32  # X25519 public key
    seq: Sequence


class Session(Struct, frozen=True):
    """Client account: `session_key` may sign orders and vouchers for this coordinator up to a
    cumulative debt, until `expires`.
    """

    client: Address
    session_key: Address
    coordinator: Address
    up_to: Amount
    expires: UnixSeconds


class SignedOffer(Struct, frozen=True):
    """What the operator key signs for an offer document: its digest, with the fields that order
    and expire it.
    """

    provider: Address
    seq: Sequence
    expires: UnixSeconds
    document: Hash32  # sha2-256 of the canonical offer document


class FreeSlots(Struct, frozen=True):
    """Free run slots of one host class."""

    host_class: Hash32
    free: Small


class Heartbeat(Struct, frozen=True):
    """Operator key: the provider is alive and has these run slots free."""

    provider: Address
    seq: Sequence
    free_slots: tuple[FreeSlots, ...]
    time: UnixSeconds


class Order(Struct, frozen=True):
    """Client session: what to run, for how much, how surely. `jobId` is its EIP-712 digest."""

    client: Address
    coordinator: Address
    spec_hash: Hash32  # CID digest of the job spec
    input_root: Hash32  # Merkle root over the sorted input CID digests
    max_price_per_hour: Price
    budget: Amount  # everything the client can be charged for this job, fee and audits included
    max_executions: Small  # committed executions, audits included
    audit_premium_bps: Bps
    max_fee_bps: Bps
    verify_tier: VerifyTier
    comparator: Comparator
    caseable: bool  # no seal, secrets or network; a provider declines if the spec says otherwise
    host_class: Hash32  # zero = any
    witness: Address  # a watcher's key, or zero for the client's session
    accept_unwitnessed: bool
    accept_unverified: bool
    sealed_key_hash: Hash32  # zero = inputs are not sealed
    max_recipients: Small
    expiry: UnixSeconds
    nonce: Nonce


class Ack(Struct, frozen=True):
    """Coordinator, once per job and before matching: fixes the draw's frame while nobody knows
    the beacon.
    """

    job_id: Hash32
    host_class: Hash32
    ack_time: UnixSeconds
    slot_block: BlockNumber
    eligible_root: Hash32
    state_root: Hash32
    secret_hash: Hash32  # keccak256 of x, which CommitSet opens
    rule: Label
    fee_bps: Bps
    epoch: Sequence


class Assignment(Struct, frozen=True):
    """Coordinator: run this. `assignment_id` = H(jobId, index, blind32) hides the job from
    auditors.
    """

    assignment_id: Hash32
    coordinator: Address
    provider: Address
    spec_hash: Hash32
    host_class: Hash32
    price_per_hour: Price
    max_duration: Seconds
    accept_by: UnixSeconds


class Accept(Struct, frozen=True):
    """Provider: will run it, with its quotes."""

    assignment_hash: Hash32  # digest of the whole Assignment
    quoted_fetch_seconds: Seconds
    quoted_run_seconds: Seconds
    quoted_store_seconds: Seconds
    time: UnixSeconds


class Decline(Struct, frozen=True):
    """Provider: not now (`start_by` ahead keeps its place) or not at all (`start_by` = 0); after
    its Accept: it gives up.
    """

    assignment_hash: Hash32
    reason: DeclineReason
    start_by: UnixSeconds
    time: UnixSeconds


class Commit(Struct, frozen=True):
    """Provider: bound to a result that nobody can read yet."""

    assignment_hash: Hash32
    class_id: Hash32  # determinism class
    commitment: Hash32  # H(assignmentHash, provider, salt32, resultDigest)
    encrypted_output: Hash32  # CID digest of the ciphertext
    usage_ms: Milliseconds
    beacon_round: Round  # 2 to 10 periods ahead; an auditor's is ignored


class CommitReceipt(Struct, frozen=True):
    """Coordinator: commit and ciphertext are stored."""

    commit_hash: Hash32
    time: UnixSeconds


class Witness(Struct, frozen=True):
    """Client session or watcher: the commit stood before its beacon round."""

    commit_hash: Hash32
    beacon_round: Round
    time: UnixSeconds


class CommitEntry(Struct, frozen=True):
    """One execution of a closed batch; `commit_hash` is the Commit's digest."""

    assignment_hash: Hash32
    provider: Address
    commit_hash: Hash32


class CommitSet(Struct, frozen=True):
    """Coordinator: closes a batch, opens its secret and the blinds. Only now do providers
    reveal.
    """

    job_id: Hash32
    batch: Small
    ordered: tuple[CommitEntry, ...]
    blinds: tuple[Hash32, ...]
    beacon_round: Round
    secret: Hash32  # x
    audit_ppm: Ppm
    slots: tuple[Small, ...]  # tries i at which the auditors were drawn, in order
    # hash_list over the skipped tries' assignment hashes (zero word where none was sent)
    skips_hash: Hash32
    closed_at: UnixSeconds


class Reveal(Struct, frozen=True):
    """Unsigned: opens the commitment; the salt also opens the ciphertext."""

    assignment_hash: Hash32
    provider: Address
    exit_status: ExitStatus
    output_digest: Hash32  # CID digest of the output directory
    salt: Hash32


class Verdict(Struct, frozen=True):
    """Coordinator: how the job ended. `group` and `faulted` are assignment hashes in CommitSet
    order.
    """

    job_id: Hash32
    seq: Sequence
    label: Label
    outcome: Outcome
    batches: Small
    group: tuple[Hash32, ...]
    faulted: tuple[Hash32, ...]
    evidence_hash: Hash32  # hash_list over the reveals' struct hashes, in CommitSet order
    time: UnixSeconds


class Statement(Struct, frozen=True):
    """Coordinator to provider, after every job: cumulative debt. `final` never falls."""

    provider: Address
    final: Amount
    held: Amount
    epoch: Sequence
    seq: Sequence
    receipts_root: Hash32  # of the log of H(assignmentId, pay), see `merkle.Log`


class Voucher(Struct, frozen=True):
    """Client session to coordinator: cumulative debt; orders with a nonce below the floor are
    paid by it.
    """

    client: Address
    coordinator: Address
    cumulative: Amount
    nonce_floor: Nonce


class Stop(Struct, frozen=True):
    """Client session: end the job now; elapsed time is paid."""

    job_id: Hash32
    time: UnixSeconds


class JuryVote(Struct, frozen=True):
    """Juror's operator key: ballot = H(caseId, juror, salt, digests...), digests padded to three
    with zero.
    """

    case_id: Nonce
    juror: Address
    ballot: Hash32


class JuryReveal(Struct, frozen=True):
    """Unsigned: opens the ballot; a digest of zero is `void`."""

    case_id: Nonce
    juror: Address
    digests: tuple[Hash32, ...]
    salt: Hash32


Message = (
    KeyBinding
    | Session
    | SignedOffer
    | Heartbeat
    | Order
    | Ack
    | Assignment
    | Accept
    | Decline
    | Commit
    | CommitReceipt
    | Witness
    | CommitSet
    | Reveal
    | Verdict
    | Statement
    | Voucher
    | Stop
    | JuryVote
    | JuryReveal
)

MESSAGE_TYPES: dict[str, type] = {kind.__name__: kind for kind in Message.__args__}
