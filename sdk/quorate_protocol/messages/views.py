"""What the coordinator's HTTP API answers: read-only views, encoded by the codec (camelCase
JSON).
"""

from msgspec import Struct

from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.offer import Offer
from quorate_protocol.messages.signed import Ack, Commit, Verdict
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Hash32,
    Label,
    Milliseconds,
    Nonce,
    Price,
    Sequence,
    UnixSeconds,
    VerifyTier,
)


class BeaconView(Struct, frozen=True):
    """The beacon everybody uses here."""

    url: str
    public_key: bytes
    period: int
    genesis_time: int


class InfoView(Struct, frozen=True):
    """GET /v1/info"""

    coordinator: Address
    statement_key: Address
    chain_id: int
    chain_url: str
    contracts: dict[str, Address]  # Stakes, Escrow, Epochs, Court, Beacon, TestToken
    beacon: BeaconView
    fee_bps: Bps
    limits: str
    version: str


class AckView(Struct, frozen=True):
    """POST /v1/orders"""

    job_id: Hash32
    ack: Envelope[Ack]


class OfferView(Struct, frozen=True):
    """One row of GET /v1/offers"""

    offer: Offer
    free_slots: int
    strikes: int
    audits_passed: int
    is_alive: bool


class ExecutionView(Struct, frozen=True):
    """One execution of a run. Role and provider are shown once the CommitSet has published them."""

    assignment_hash: Hash32
    provider: Address
    role: str  # primary | auditor | unknown
    batch: int
    phase: str
    usage_ms: Milliseconds | None
    exit_status: int | None
    output_digest: Hash32 | None
    agreed: bool | None
    pay: Amount | None


class SealedOutput(Struct, frozen=True):
    """How the client opens its output: ciphertext CID digest in the staging store, salt and what
    it must open to.
    """

    ciphertext: Hash32
    salt: Hash32
    output_digest: Hash32
    exit_status: int


class RunView(Struct, frozen=True):
    """GET /v1/runs/{jobId}; `output` only for the client and only after the verdict (I8).

    To others a run that is not final has no name ("") and no money (`charged`, `budget` 0, no
    `pay`).
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


class JobEvent(Struct, frozen=True):
    """One line of a run's history, also sent as SSE. `commit` is there for `committed`, so that
    the client can witness it.
    """

    seq: Sequence
    at: UnixSeconds
    job_id: Hash32
    # acked assigned accepted declined lapsed committed witnessed drawn closed revealed verdict
    # faulted final stopped log
    name: str
    text: str
    commit: Envelope[Commit] | None = None


class AccountView(Struct, frozen=True):
    """GET /v1/accounts/{address} (of a client): what it may still order. Owed = charged since
    the last voucher.
    """

    client: Address
    allocation: Amount
    reserved: Amount
    charged: Amount
    vouched: Amount
    nonce_floor: Nonce
    next_nonce: Nonce


class PlanRequest(Struct, frozen=True):
    """Body of POST /v1/plan. Price in micro-USD per slot-hour."""

    spec: JobSpec
    max_price_per_hour: Price
    verify_tier: VerifyTier
    accept_unverified: bool
    host_class: Hash32 = ZERO_HASH  # as in the order: zero = any


class PlanView(Struct, frozen=True):
    """POST /v1/plan: what an order would meet."""

    host_class: Hash32
    rule: Label
    owners: int
    offers: int
    cheapest: Price | None
    executions_priced: int
    worst_charge: Amount
    fee_bps: Bps
    nearest: str  # the nearest offer and the limit to relax, when none fits


class ProviderView(Struct, frozen=True):
    """GET /v1/providers/{address}"""

    provider: Address
    is_alive: bool
    strikes: int
    audits_passed: int
    final: Amount
    held: Amount
    is_frozen: bool


class CaseView(Struct, frozen=True):
    """One row of GET /v1/cases"""

    case_id: int
    accused: Address
    jobs: tuple[Hash32, ...]
    phase: str
    jurors: tuple[Address, ...]
    convicted: bool | None
    slashed: Amount
