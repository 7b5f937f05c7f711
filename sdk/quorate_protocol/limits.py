"""Every bound and constant of the protocol, for mainnet, testnet and devnet.

PROTOCOL gives a devnet value in square brackets after the mainnet value. PROTOCOL §9 has the
others.
"""

from msgspec import Struct

from quorate_protocol.units import Amount, Ppm, Seconds, VerifyTier
from quorate_protocol.values import replace

HOUR = 3600
DAY = 24 * HOUR
USD = 1_000_000

EXECUTIONS_MAX = 7
# Executions that the budget of a verified order covers, and the least maxExecutions of one. With
# fewer, two honest results that differ would end the job before a third could decide.
EXECUTIONS_VERIFIED = 3
DIFFERENT_RESULTS = 3  # so many show that the program is not deterministic
DRAW_TRIES = 64
SILENT_SKIPS_MAX = 2  # of one pass of a draw; the next one ends it (decision 18)
JURORS = 7
JURORS_MIN = 3
POOLS_MAX = 16  # from which one job draws its auditors
OWNERS_MIN_ADAPTIVE = 8
OWNERS_MIN_QUORUM = 3
BEACON_AHEAD_MIN = 2  # periods between a primary's commit and its beacon round
BEACON_AHEAD_MAX = 10
TRUST_PASSED_MAX = 3000
OUTPUT_CHUNK_BYTES = 64 * 1024
TREE_ENTRIES_MAX = 100_000  # files and folders of one output, or of any other content
OFFER_BYTES_MAX = 4096
OFFER_GOSSIP_BYTES_MAX = 8192  # an offer with its attestation records
SPEC_BYTES_MAX = 64 * 1024
FRAME_BYTES_MAX = 1 << 20
HEARTBEAT_LEASES_MAX = 1024
ASSIGNMENTS_MAX = 64  # of one job, its auditors' included


class Tier(Struct, frozen=True):
    """The numbers of a verification tier (PROTOCOL §5)."""

    p_min: Ppm  # least rate of audits
    window_jobs: int  # W: count of further jobs that makes a job final
    epsilon: Ppm  # target rate of wrong results


TIERS: dict[VerifyTier, Tier] = {
    VerifyTier.LEAN: Tier(Ppm(20_000), 400, Ppm(1000)),
    VerifyTier.STANDARD: Tier(Ppm(30_000), 200, Ppm(1000)),
    VerifyTier.STRICT: Tier(Ppm(100_000), 400, Ppm(100)),
    VerifyTier.CRITICAL: Tier(Ppm(1_000_000), 0, Ppm(10)),
}


class Limits(Struct, frozen=True):
    """The times and amounts of one deployment. A field's type gives its unit."""

    name: str
    # Blocks; the newest block has depth 1. The chain may still drop blocks of less depth, so no
    # program acts on them.
    chain_depth: int
    beacon_period: Seconds
    accept_within: Seconds
    answer_within: Seconds
    decline_ahead_max: Seconds
    commit_grace: Seconds
    lease_silence: Seconds  # a lease that no heartbeat names for so long lapses
    meter_every: Seconds  # of a rental; so much is charged at least
    rental_ahead: Seconds  # that a rental reserves, and after which its silence ends it
    reveal_within: Seconds
    beacon_missing_after: Seconds
    ack_age_max: Seconds
    max_hold: Seconds
    window_jobs: int | None  # W; None = the tier's own
    lead_min: Amount  # the lead of a client that has set none, at a coordinator that it tries
    client_close: Seconds  # a client's tab ends so long after it is closed
    coordinator_close: Seconds
    pay_every: Seconds  # a coordinator's payroll; small sums wait for a week of these
    redeem_every: Seconds  # a payee redeems a voucher that waited so long
    evidence_window: Seconds  # `Jobs` takes evidence so long after the last that was shown
    escrow_evidence_age: Seconds  # and at most so long after an execution's acceptBy + maxDuration
    show_after: Seconds  # an owner shows an unpaid execution so long after its reveal
    slot_stake: Amount
    coordinator_bond: Amount
    class_owners_min_any: int
    class_owner_age: Seconds
    case_evidence_age: Seconds  # a case may use an execution so long after acceptBy + maxDuration
    strike_fees: Amount  # a fault counts if its client has paid so much in fees before
    unverifiable_for: Seconds  # an image whose program gave one provider two results
    fund_allowance: Amount  # the audit fund spends so much on one client beyond what it paid in
    jury_owners_min: int  # least count of owners from whom a jury is drawn
    jury_slot_age: Seconds
    jury_rounds_ahead: int  # beacon periods between opening and draw
    jury_beacon_missing: Seconds
    jury_window: Seconds
    jury_gas_fee: Amount
    jury_pay_min: Amount  # of one juror, beside its gas
    case_duration_max: Seconds  # the longest maxDuration that a jury repeats
    profile_delay: Seconds  # until a new network counts in a draw
    unbond_after: Seconds
    session_max: Seconds
    heartbeat_every: Seconds
    heartbeat_alive: Seconds
    # From this run time on, audited pay is checked against the auditor's time; None = no check.
    usage_check_from_ms: int | None
    offer_ttl: Seconds
    offer_refresh: Seconds  # by a provider; it varies by a fifth
    # All GPUs are challenged together, by the first beacon round of each period.
    attestation_every: Seconds
    attestation_start_within: Seconds  # of that round
    attestation_ttl: Seconds  # lifetime of a record


MAINNET = Limits(
    name="mainnet",
    chain_depth=32,
    beacon_period=Seconds(3),
    accept_within=Seconds(30),
    answer_within=Seconds(30),
    decline_ahead_max=Seconds(600),
    commit_grace=Seconds(60),
    lease_silence=Seconds(600),
    meter_every=Seconds(60),
    rental_ahead=Seconds(120),
    reveal_within=Seconds(60),
    beacon_missing_after=Seconds(600),
    ack_age_max=Seconds(600),
    max_hold=Seconds(24 * HOUR),
    window_jobs=None,
    lead_min=Amount(USD),
    client_close=Seconds(7 * DAY),
    coordinator_close=Seconds(14 * DAY),
    pay_every=Seconds(DAY),
    redeem_every=Seconds(7 * DAY),
    evidence_window=Seconds(DAY),
    escrow_evidence_age=Seconds(14 * DAY),
    show_after=Seconds(12 * HOUR),
    slot_stake=Amount(100 * USD),
    coordinator_bond=Amount(1000 * USD),
    class_owners_min_any=8,
    class_owner_age=Seconds(14 * DAY),
    case_evidence_age=Seconds(7 * DAY),
    strike_fees=Amount(5 * USD),
    unverifiable_for=Seconds(30 * DAY),
    fund_allowance=Amount(USD),
    jury_owners_min=15,
    jury_slot_age=Seconds(14 * DAY),
    jury_rounds_ahead=3,
    jury_beacon_missing=Seconds(24 * HOUR),
    jury_window=Seconds(24 * HOUR),
    jury_gas_fee=Amount(USD // 2),
    jury_pay_min=Amount(USD // 20),
    case_duration_max=Seconds(24 * HOUR),
    profile_delay=Seconds(10 * DAY),
    unbond_after=Seconds(21 * DAY),
    session_max=Seconds(30 * DAY),
    heartbeat_every=Seconds(20),
    heartbeat_alive=Seconds(60),
    usage_check_from_ms=60_000,
    offer_ttl=Seconds(15 * 60),
    offer_refresh=Seconds(5 * 60),
    attestation_every=Seconds(HOUR),
    attestation_start_within=Seconds(60),
    attestation_ttl=Seconds(24 * HOUR),
)

TESTNET = replace(
    MAINNET,
    name="testnet",
    chain_depth=3,
    max_hold=Seconds(600),
    window_jobs=5,
    client_close=Seconds(HOUR),
    coordinator_close=Seconds(2 * HOUR),
    pay_every=Seconds(600),
    redeem_every=Seconds(HOUR),
    evidence_window=Seconds(600),
    escrow_evidence_age=Seconds(3 * HOUR),
    show_after=Seconds(300),
    class_owners_min_any=0,
    class_owner_age=Seconds(0),
    case_evidence_age=Seconds(HOUR),
    strike_fees=Amount(USD // 100),
    jury_owners_min=3,
    jury_slot_age=Seconds(0),
    jury_beacon_missing=Seconds(HOUR),
    jury_window=Seconds(600),
    case_duration_max=Seconds(HOUR),
    profile_delay=Seconds(4 * HOUR),
    unbond_after=Seconds(3 * HOUR),
    session_max=Seconds(DAY),
)
"""MAINNET's rules on a public test chain: the same beacon, but small markets and waits of minutes,
so that the first paid job takes a day at most."""

DEVNET = Limits(
    name="devnet",
    chain_depth=1,
    beacon_period=Seconds(2),
    accept_within=Seconds(5),
    answer_within=Seconds(5),
    decline_ahead_max=Seconds(20),
    commit_grace=Seconds(20),
    lease_silence=Seconds(20),
    meter_every=Seconds(2),
    rental_ahead=Seconds(20),
    reveal_within=Seconds(6),
    beacon_missing_after=Seconds(30),
    ack_age_max=Seconds(600),
    max_hold=Seconds(20),
    window_jobs=5,
    lead_min=Amount(100 * USD),
    client_close=Seconds(60),
    coordinator_close=Seconds(90),
    pay_every=Seconds(10),
    redeem_every=Seconds(20),
    evidence_window=Seconds(10),
    escrow_evidence_age=Seconds(120),
    show_after=Seconds(5),
    slot_stake=Amount(100 * USD),
    coordinator_bond=Amount(1000 * USD),
    class_owners_min_any=0,
    class_owner_age=Seconds(0),
    case_evidence_age=Seconds(90),
    strike_fees=Amount(1),
    unverifiable_for=Seconds(300),
    fund_allowance=Amount(USD // 1000),
    jury_owners_min=3,
    jury_slot_age=Seconds(0),
    jury_rounds_ahead=3,
    jury_beacon_missing=Seconds(30),
    jury_window=Seconds(20),
    jury_gas_fee=Amount(USD // 2),
    jury_pay_min=Amount(USD // 20),
    case_duration_max=Seconds(600),
    profile_delay=Seconds(240),
    unbond_after=Seconds(180),
    session_max=Seconds(DAY),
    heartbeat_every=Seconds(3),
    heartbeat_alive=Seconds(10),
    usage_check_from_ms=None,
    offer_ttl=Seconds(15 * 60),
    offer_refresh=Seconds(20),
    attestation_every=Seconds(15),
    attestation_start_within=Seconds(10),
    attestation_ttl=Seconds(300),
)

BY_NAME: dict[str, Limits] = {limits.name: limits for limits in (MAINNET, TESTNET, DEVNET)}
