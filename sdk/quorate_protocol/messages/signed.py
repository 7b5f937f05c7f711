"""Every message of PROTOCOL §3 with all its fields.

The order of the fields is the order in which they are signed. A field's type gives its unit and
its width on the wire: see `units`. Each docstring begins with the key that signs the message.

A message is signed as EIP-712 (`eip712.digest`) and travels in an `Envelope` (`envelope`).
Reveals are unsigned: they open a commitment.
"""

from quorate_protocol.readable import Readable
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Bps,
    ByteCount,
    Comparator,
    DeclineReason,
    ExecutionEnd,
    ExitStatus,
    Hash32,
    Label,
    Milliseconds,
    Nonce,
    Outcome,
    PerSecond,
    Ppm,
    Price,
    PriceTier,
    Role,
    Round,
    Seconds,
    Sequence,
    Small,
    UnixSeconds,
    VerifyTier,
    WorkStage,
)


class KeyBinding(Readable, frozen=True):
    """Operator key and peer key: these network keys belong to this account. The Ed25519 peer key
    signs the same EIP-712 digest as the operator key.
    """

    account: Address  # the provider's account
    peer_key: Hash32  # Ed25519 public key
    box_key: Hash32  # X25519 public key
    seq: Sequence  # a higher one replaces this message


class Session(Readable, frozen=True):
    """Client account: the session key may sign orders and vouchers for this coordinator."""

    client: Address
    session_key: Address
    coordinator: Address
    up_to: Amount  # cumulative debt up to which the session key may sign
    expires: UnixSeconds


class SignedOffer(Readable, frozen=True):
    """Operator key: the provider makes the offer in a document with this digest."""

    provider: Address
    seq: Sequence  # a higher one replaces this offer
    expires: UnixSeconds  # zero withdraws all earlier offers
    document: Hash32  # sha2-256 of the canonical offer document


class FreeSlots(Readable, frozen=True):
    """Free run slots of one pool."""

    pool: Hash32  # id of the class
    free: Small  # count of free slots
    preemptible: Small  # count of slots whose lease may be ended for another; zero yet


class LeaseProgress(Readable, frozen=True):
    """A lease on which the provider works now."""

    assignment_hash: Hash32
    stage: WorkStage


class Heartbeat(Readable, frozen=True):
    """Operator key: the provider is alive, has these run slots free, and works on these leases."""

    provider: Address
    seq: Sequence  # a higher one replaces this message
    free_slots: tuple[FreeSlots, ...]
    leases: tuple[LeaseProgress, ...]  # of this coordinator, each until its Commit
    time: UnixSeconds  # when the provider signed


class Order(Readable, frozen=True):
    """Client session: what to run, for how much, how surely. The EIP-712 digest of an order is the
    id of its job (`jobId`).
    """

    client: Address
    coordinator: Address
    spec_hash: Hash32  # CID digest of the job spec
    input_root: Hash32  # Merkle root over the sorted input CID digests
    terms_hash: Hash32  # CID digest of `OrderTerms`, which no provider gets
    price_tier: PriceTier
    max_price_per_hour: Price
    budget: Amount  # the most this job may cost the client, with fee and audits
    max_duration: Seconds  # of one execution; the spec and each Assignment have the same
    max_executions: Small  # committed executions, audits included
    audit_premium_bps: Bps  # share of the first pay that goes into the audit fund
    max_fee_bps: Bps  # the highest fee that the client accepts, as a share of all pay
    verify_tier: VerifyTier
    comparator: Comparator
    caseable: bool  # no seal, secrets or network; a provider declines if the spec says otherwise
    pool: Hash32  # zero = any
    witness: Address  # a watcher's key, or zero for the client's session
    accept_unwitnessed: bool  # the job may go without audit when no Witness comes
    accept_unverified: bool  # the job may run where too few owners could verify it
    sealed_key_hash: Hash32  # zero = inputs are not sealed
    max_recipients: Small  # for sealed inputs; not used yet
    expiry: UnixSeconds  # the coordinator starts no first execution from then on
    nonce: Nonce  # a client uses each once


class Ack(Readable, frozen=True):
    """Coordinator: it accepts the order, and fixes who can be drawn as an auditor.

    The coordinator signs one Ack for each job, before it matches the job. At that time the beacon
    round of the draw is still unknown to everybody.
    """

    job_id: Hash32
    pool: Hash32
    ack_time: UnixSeconds
    slot_block: BlockNumber  # block whose stake slots count
    eligible_root: Hash32  # root of the eligible list, see `rules.eligible_list`
    # root over the trust of all providers, see `fold.trust_root`; it follows from the log
    state_root: Hash32
    log_root: Hash32  # root of the coordinator's log of Summaries, see `merkle.Log`
    log_length: Sequence  # count of Summaries under that root
    secret_hash: Hash32  # keccak256 of the secret x, which CommitSet shows
    rule: Label  # the rule by which the job will be verified
    fee_bps: Bps  # the coordinator's fee, as a share of all pay
    escrowed: bool  # the order has an escrow of its own, which settles it; see `Jobs`


class Assignment(Readable, frozen=True):
    """Coordinator: it gives one execution to one provider. `assignment_id` hides the job, so an
    auditor cannot tell which execution it repeats.
    """

    assignment_id: Hash32  # H(jobId, index, blind32)
    coordinator: Address
    provider: Address
    spec_hash: Hash32
    pool: Hash32
    price_tier: PriceTier  # as in the Order
    price_per_hour: Price
    max_duration: Seconds  # the execution is killed after it
    accept_by: UnixSeconds  # the provider must have answered by then


class Accept(Readable, frozen=True):
    """Provider: it will run the assignment, and quotes how long each part takes."""

    assignment_hash: Hash32  # digest of the whole Assignment
    host: Hash32  # digest of the machine's `classes.Host`, on which it will run
    quoted_fetch_seconds: Seconds
    quoted_run_seconds: Seconds
    quoted_store_seconds: Seconds
    time: UnixSeconds


class Decline(Readable, frozen=True):
    """Provider: it does not run the assignment, or not yet. After its Accept, a Decline means that
    the provider gives up.
    """

    assignment_hash: Hash32
    reason: DeclineReason
    start_by: UnixSeconds  # it keeps its place and starts by then; zero = it will not run it
    time: UnixSeconds


class Commit(Readable, frozen=True):
    """Provider: it commits to a result, which stays hidden until its Reveal."""

    assignment_hash: Hash32
    class_id: Hash32  # determinism class, of the host in the Accept
    commitment: Hash32  # H(assignmentHash, provider, salt32, resultDigest)
    encrypted_output: Hash32  # CID digest of the ciphertext
    usage_ms: Milliseconds  # measured run time, which is paid
    beacon_round: Round  # draws the auditors; 2 to 10 periods ahead; an auditor's is ignored


class CommitReceipt(Readable, frozen=True):
    """Coordinator: it has stored the commit and the ciphertext."""

    commit_hash: Hash32  # digest of the Commit
    time: UnixSeconds


class Witness(Readable, frozen=True):
    """Client session or watcher: it saw the primary's commit before the beacon round appeared. It
    names the Ack that it knows, so the coordinator cannot show another one later.
    """

    commit_hash: Hash32  # digest of the Commit
    ack_hash: Hash32  # digest of the job's Ack
    beacon_round: Round  # the round that the Commit names
    time: UnixSeconds


class CommitEntry(Readable, frozen=True):
    """One execution in a CommitSet."""

    assignment_hash: Hash32
    provider: Address
    commit_hash: Hash32  # digest of the Commit


class CommitSet(Readable, frozen=True):
    """Coordinator: it closes a batch of executions, and publishes its secret x and each execution's
    blind.

    The blinds show which assignments belong to this job, and the secret shows how the auditors were
    drawn. A provider reveals its result only after it has the CommitSet. So no provider can copy
    another's result.
    """

    job_id: Hash32
    batch: Small  # number of the batch, from 0
    ordered: tuple[CommitEntry, ...]  # the executions; in batch 0 the primary comes first
    blinds: tuple[
        Hash32, ...
    ]  # one for each entry, in the same order: opens `Assignment.assignment_id`
    beacon_round: Round  # the round of the draw; zero for a stopped job without a draw
    secret: Hash32  # x; `Ack.secret_hash` is its hash
    audit_ppm: Ppm  # probability that the job is audited, in ppm
    slots: tuple[Small, ...]  # numbers of the draw's tries that gave the auditors, in order
    # hash_list over the tries, in order, that gave a provider which did not run it: H(assignment
    # hash, digest of its Decline), with zero for a silent one
    skips_hash: Hash32
    # digest of the Witness of batch 0; zero if nobody witnessed, and in later batches
    witness_hash: Hash32
    closed_at: UnixSeconds


class Reveal(Readable, frozen=True):
    """Unsigned: it opens the provider's commitment."""

    assignment_hash: Hash32
    provider: Address
    exit_status: ExitStatus
    output_digest: Hash32  # CID digest of the output directory
    salt: Hash32  # also gives the key of the ciphertext


class Verdict(Readable, frozen=True):
    """Coordinator: how the job ended."""

    job_id: Hash32
    seq: Sequence  # a higher one replaces this verdict
    label: Label  # the rule that decided, as in the Ack
    outcome: Outcome
    batches: Small  # count of batches that the verdict is based on
    group: tuple[Hash32, ...]  # assignment hashes of the agreeing executions, in CommitSet order
    faulted: tuple[Hash32, ...]  # assignment hashes of the faulted ones, in CommitSet order
    # assignment hashes of executions whose log lines the client read before, in CommitSet order
    read: tuple[Hash32, ...]
    evidence_hash: Hash32  # sha2-256 of the receipt's canonical body without this Verdict
    time: UnixSeconds


class ExecutionSummary(Readable, frozen=True):
    """One execution in a Summary."""

    provider: Address
    role: Role
    end: ExecutionEnd
    is_counted: bool  # an audit compared its result, so it changes the provider's trust
    pay: Amount  # what this verdict credited to the provider
    usage_ms: Milliseconds  # as committed; zero without a Commit
    quoted_seconds: Seconds  # fetch, run and store as its Accept quoted; zero without a Commit
    took_seconds: Seconds  # from the time in its Accept to its Commit; zero without a Commit


class Summary(Readable, frozen=True):
    """Coordinator: one line of its public log, for one verdict or one end without a verdict.

    It names neither the client nor the spec. `rules.reputation.fold` computes every provider's
    reputation from these lines alone.
    """

    coordinator: Address  # its account
    seq: Sequence  # place in the log, from 0
    previous_root: Hash32  # root of the log before this line, see `merkle.Log`; zero for the first
    job_hash: Hash32  # H("summary", jobId): only who knows the job can link the line to it
    trust_class: Hash32  # job class, in which trust is earned
    pool: Hash32
    label: Label  # as in the Verdict; as in the Ack if there is none
    outcome: Outcome  # as in the Verdict; lapsed if there is none
    is_again: bool  # a line before has an earlier verdict on this job
    executions: tuple[ExecutionSummary, ...]  # in the order of their Assignments
    evidence_hash: Hash32  # as in the Verdict; zero if there is none
    receipt: Hash32  # CID digest of the receipt; zero if there is none
    time: UnixSeconds  # as in the Verdict


class Voucher(Readable, frozen=True):
    """Client session, or coordinator: what the payer owes the payee in total. A client pays a
    coordinator, and a coordinator pays a provider, with its statement key.
    """

    payer: Address  # the client's or the coordinator's account
    payee: Address  # the coordinator's or the provider's account
    cumulative: Amount  # total since the first job; a larger one replaces this message


class Stop(Readable, frozen=True):
    """Client session: end the job now. The client pays for the time that has passed."""

    job_id: Hash32
    time: UnixSeconds


class JuryVote(Readable, frozen=True):
    """Juror's operator key: it commits to its result, which its opened ballot shows later."""

    case_id: Hash32  # hash of the Filing
    juror: Address
    ballot: Hash32  # H(execution, juror, salt, digest); the digest is zero without a result


class AttestationRecord(Readable, frozen=True):
    """Verifier: it challenged a GPU, checked the proof, and measured these rates.

    The coordinator signs with its statement key, a drawn provider with its operator key. Rates and
    elapsed time are the verifier's word; the proof can be checked again (PROTOCOL §10).
    """

    verifier: Address  # its account
    provider: Address
    peer_key: Hash32  # Ed25519 public key that the GPU was challenged behind
    gpu: Hash32  # hash of the GPU's UUID
    model: Hash32  # hash of the model's name in the catalogue
    beacon_round: Round  # of the challenge; a record of a later round replaces this one
    verifiers: Small  # count of verifiers of the challenge, this one included
    challenge: Hash32  # CID digest of ChallengeOpened: verifiers, their draw, GPUs, sizes
    gpus: Small  # GPUs of the provider that were challenged together
    int8_operations: PerSecond
    memory_bytes: PerSecond
    vram_bytes: ByteCount  # memory that the proof covers
    ratio: Ppm  # of int8_operations to the catalogue's measured figure; 0 = not measured yet
    elapsed_ms: Milliseconds  # of all stages
    proof: Hash32  # CID digest of the proof document
    issued: UnixSeconds
    expires: UnixSeconds


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
    | Summary
    | Voucher
    | Stop
    | JuryVote
    | AttestationRecord
)

MESSAGE_TYPES: dict[str, type] = {kind.__name__: kind for kind in Message.__args__}
