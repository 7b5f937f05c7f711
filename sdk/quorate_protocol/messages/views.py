"""Answers of the coordinator's HTTP API.

The codec encodes them as JSON with names in camelCase.
"""

from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import Offer, OfferEnvelope
from quorate_protocol.messages.signed import Ack, Commit, Summary, Verdict, Voucher
from quorate_protocol.readable import Readable
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Hash32,
    Label,
    Milliseconds,
    Nonce,
    Ppm,
    Price,
    Sequence,
    Signature,
    Small,
    UnixSeconds,
    VerifyTier,
)


class BeaconView(Readable, frozen=True):
    """The beacon of this deployment."""

    url: str
    public_key: bytes  # 96-byte compressed G2 point
    period: int  # seconds between rounds
    genesis_time: int  # unix seconds; round 1 appears then


class InfoView(Readable, frozen=True):
    """The answer to GET /v1/info: what a client or provider must know of the coordinator."""

    coordinator: Address
    statement_key: Address  # the key that signs the coordinator's messages
    chain_id: int
    chain_url: str
    contracts: dict[str, Address]  # each contract of the deployment by its name
    beacon: BeaconView
    fee_bps: Bps
    limits: str  # name of the limits in use: mainnet or devnet
    version: str
    peer_id: str = ""  # of its peer key, which a libp2p connection proves
    # Multiaddrs of its libp2p host, without /p2p/...; none = it serves over WebSocket only.
    addresses: tuple[str, ...] = ()
    genesis: Hash32 = ZERO_HASH  # of the chain's first block; zero if its deployment names none


class ObservedView(Readable, frozen=True):
    """The answer to GET /v1/observed: where the asking program's request came from."""

    address: str  # an IP address as text; "" if the coordinator cannot tell


class AckView(Readable, frozen=True):
    """The answer to POST /v1/orders: the coordinator has taken the order."""

    job_id: Hash32
    ack: Envelope[Ack]


class OfferView(Readable, frozen=True):
    """One row of GET /v1/offers: an offer and the record of its provider. `signature` is the
    operator key's over `offer.signed()`, so that anybody can check the offer.
    """

    offer: Offer
    signature: Signature
    free_slots: int  # run slots that an order can get now, within the provider's window (4.40)
    strikes: int  # of the last 90 days
    audits_passed: int  # in a row, summed over the job classes
    is_alive: bool
    # Attestation level of each slot that this coordinator has checked and believes now.
    attestation_levels: tuple[Small, ...] = ()
    executions: int = 0  # the last ones that were assigned to the provider, at most 20
    answered: int = 0  # of them, those that it revealed
    quoted_seconds: int = 0  # of its last 20 executions with a Commit, by its Accepts
    took_seconds: int = 0  # of the same, from Accept to Commit
    network: Hash32 = ZERO_HASH  # as its provider registered it, and as it is seen to connect
    # Of each slot: matching multiplies the price by it, see `rules.reputation.rank`.
    rank_ppm: tuple[Ppm, ...] = ()

    def envelope(self) -> OfferEnvelope:
        return OfferEnvelope(self.offer, Envelope(self.offer.signed(), self.signature))


class ExecutionView(Readable, frozen=True):
    """One execution of a run. Role and provider are shown once the CommitSet has published them,
    and those of a rental at once.
    """

    assignment_hash: Hash32
    provider: Address
    role: str  # primary | auditor | repeat | unknown
    batch: int
    phase: str
    usage_ms: Milliseconds | None
    exit_status: int | None
    output_digest: Hash32 | None
    agreed: bool | None
    pay: Amount | None


class SealedOutput(Readable, frozen=True):
    """What the client needs to fetch and open its output."""

    ciphertext: Hash32  # digest of the CID of the ciphertext in the staging store
    salt: Hash32  # gives the key of the ciphertext
    output_digest: Hash32  # CID digest of the directory that the ciphertext must open to
    exit_status: int


class RentalView(Readable, frozen=True):
    """What a run has more if it is a rental that runs, or ran."""

    provider: Address
    price_per_hour: Price
    usage_ms: Milliseconds  # by its newest meter
    started_at: UnixSeconds  # 0 once it is over


class RunView(Readable, frozen=True):
    """The answer to GET /v1/runs/{jobId}: the state of one run.

    Only the client gets `output`, and only after the verdict (I8). While a run is not final,
    others see an empty `name`, `charged` and `budget` of 0, and no `pay`.
    """

    job_id: Hash32
    client: Address
    name: str
    phase: str
    rule: Label
    created_at: UnixSeconds
    executions: tuple[ExecutionView, ...]
    verdict: Envelope[Verdict] | None
    charged: Amount
    budget: Amount
    receipt_cid: str | None
    is_final: bool
    output: SealedOutput | None
    rental: RentalView | None = None
    waits: str = ""  # why no provider is looked for, if its client's window is full


class JobEvent(Readable, frozen=True):
    """One line of a run's history, which the API also sends as a server-sent event. A line named
    `committed` has the `commit`, so that the client can witness it.
    """

    seq: Sequence
    at: UnixSeconds
    job_id: Hash32
    # acked assigned accepted declined lapsed committed witnessed drawn closed revealed verdict
    # faulted final stopped log
    name: str
    text: str
    commit: Envelope[Commit] | None = None


class AccountView(Readable, frozen=True):
    """The answer to GET /v1/accounts/{address}: the money of a client. The client owes `charged`
    minus `vouched`. Both are cumulative.
    """

    client: Address
    locked: Amount  # its tab for this coordinator, by final blocks
    paid: Amount
    closes_at: UnixSeconds  # 0 = open
    reserved: Amount
    charged: Amount
    vouched: Amount  # what its newest voucher can take out of the tab
    voucher: Envelope[Voucher] | None  # the newest one, so that a restored client learns of it
    next_nonce: Nonce


class AllowanceRequest(Readable, frozen=True):
    """The body of POST /v1/runs/{jobId}/allowance: what a rental may cost in all. It only rises."""

    most: Amount


class GiveBackRequest(Readable, frozen=True):
    """The body of POST /v1/give-back: a client wants so much of its tab back, with its token."""

    amount: Amount


class GiveBackView(Readable, frozen=True):
    """The answer to POST /v1/give-back: how much of it the coordinator frees on chain now."""

    amount: Amount  # less than asked if vouchers or open jobs need the rest


class PlanRequest(Readable, frozen=True):
    """The body of POST /v1/plan: an order that a client considers."""

    spec: JobSpec
    max_price_per_hour: Price  # millionths of a USD per slot-hour
    verify_tier: VerifyTier
    accept_unverified: bool
    pool: Hash32 = ZERO_HASH  # as in the order: zero = any


class HostOwners(Readable, frozen=True):
    """How many owners of a pool have live offers on one kind of host."""

    host: str  # as `classes.Host` prints it
    owners: int


class SiblingHosts(Readable, frozen=True):
    """Two kinds of hosts of a pool whose results agreed, for the image and comparison of a spec."""

    one: str  # as `classes.Host` prints it
    other: str
    agreed: int  # jobs


class PlanView(Readable, frozen=True):
    """The answer to POST /v1/plan: which offers fit an order, and what it can cost."""

    pool: Hash32
    rule: Label  # the rule that would verify the job
    owners: int  # distinct owners in the pool
    offers: int  # live offers that fit
    cheapest: Price | None
    auditor_price: (
        Price  # what an auditor will probably cost: the class's median, at most the limit
    )
    executions_priced: int  # executions that the budget must cover
    worst_charge: Amount  # the most that the job can cost
    fee_bps: Bps
    nearest: str  # the nearest offer and the limit to relax, when no offer fits
    refusal: str  # code with which an order like this is refused; "" = it is taken
    # the determinism classes of the pool, by the cheapest 256 live offers; most owners first
    hosts: tuple[HostOwners, ...] = ()
    siblings: tuple[SiblingHosts, ...] = ()  # of `hosts`, by the coordinator's word; most first
    # Bytes a second of the slowest and the fastest of the cheapest 256 offers that fit; 0 = none.
    bandwidth_least: int = 0
    bandwidth_most: int = 0
    free: int | None = None  # of `offers`, those with a run slot that is free now
    cheapest_free: Price | None = None

    @property
    def price(self) -> Price | None:
        """Of the cheapest that is free now; if none is, of the cheapest that fits."""
        return self.cheapest if self.cheapest_free is None else self.cheapest_free


class ClassTrust(Readable, frozen=True):
    """A provider's trust in one job class, as `rules.trust_record.Trust`."""

    trust_class: Hash32
    passed: int  # k
    strikes: tuple[UnixSeconds, ...]  # times of the last faults, at most eight


class ReputationView(Readable, frozen=True):
    """What a coordinator's public log says of one provider. Anybody computes the same from it."""

    checked: int  # executions that an audit compared
    audits_passed: int  # of them
    executions: int  # the last ones that were assigned to it, at most 20
    answered: int  # of them, those that it revealed
    quoted_seconds: int  # of its last 20 executions with a Commit, by its Accepts
    took_seconds: int  # of the same, from Accept to Commit
    classes: tuple[ClassTrust, ...]  # sorted by job class


class ReputationHead(Readable, frozen=True):
    """The answer to GET /v1/reputation: how long the coordinator's public log is, and its root."""

    coordinator: Address
    statement_key: Address  # signs the lines
    chain_id: int
    stakes: Address
    length: int
    root: Hash32


class ReputationLog(Readable, frozen=True):
    """The answer to GET /v1/reputation/log: one page of the log, in order."""

    lines: tuple[Envelope[Summary], ...]


class ImportedReputation(Readable, frozen=True):
    """What an imported log says of one provider."""

    provider: Address
    reputation: ReputationView


class ImportedView(Readable, frozen=True):
    """Another coordinator's log, as far as the answering coordinator has checked it."""

    url: str
    head: ReputationHead | None  # None before the first lines are checked
    problem: str  # why its newest lines were refused; "" if they were not
    providers: tuple[ImportedReputation, ...]  # sorted, at most 1,000


class ImportedLogs(Readable, frozen=True):
    """The answer to GET /v1/reputation/imported."""

    logs: tuple[ImportedView, ...]


class ProviderView(Readable, frozen=True):
    """The answer to GET /v1/providers/{address}: a provider's record and pay."""

    provider: Address
    is_alive: bool
    strikes: int  # of the last 90 days
    audits_passed: int  # in a row, summed over the job classes
    final: Amount  # cumulative pay that can no longer be taken back
    held: Amount  # pay that may still be taken back
    vouched: Amount  # cumulative, as this coordinator signed it
    reputation: ReputationView


class CaseView(Readable, frozen=True):
    """One row of GET /v1/cases: a case before the jury."""

    execution: Hash32  # digest of the accused's Assignment
    case_id: Hash32 | None  # None until the chain has it
    accused: Address
    job_id: Hash32 | None  # None if this coordinator does not know the execution
    phase: str
    jurors: tuple[Address, ...]
    convicted: bool | None  # None while the case is open
    taken: Amount  # of the accused's stake
