"""Tests that programs and contracts use the numbers of docs/protocol.md.

The page gives MAINNET's value first and DEVNET's in brackets.
"""

import json
from pathlib import Path

import pytest

import quorate_contracts
from quorate_content.dag.content_limits import Bounds
from quorate_protocol import limits
from quorate_protocol.limits import DAY, DEVNET, HOUR, MAINNET, TESTNET, USD
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.job_spec import Resources
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import trust_record, verdict
from quorate_protocol.values import replace
from style.source import protocol
from support.messages import a_spec

PROTOCOL = " ".join(protocol().replace("`", "").split())

WRITTEN: list[tuple[str, str, int, int]] = [
    ("as of a finalised block (32 blocks deep [1])", "chain_depth", 32, 1),
    ("acceptBy (30 s [5 s] after signing)", "accept_within", 30, 5),
    ("Its block and roots are at most 10 min old", "ack_age_max", 600, 600),
    ("startBy at most 10 min [20 s] ahead", "decline_ahead_max", 600, 20),
    ("grace of 60 s [20 s]", "commit_grace", 60, 20),
    ("then every 60 s [2 s]: a frame", "meter_every", 60, 2),
    ("price and fee of 120 s [20 s]", "rental_ahead", 120, 20),
    ("revealBy = closedAt + 60 s [6 s]", "reveal_within", 60, 6),
    ("max_hold of 24 h [20 s]", "max_hold", DAY, 20),
    ("at most 7 d [90 s] older than acceptBy + maxDuration", "case_evidence_age", 7 * DAY, 90),
    ("and maxDuration at most 24 h [10 min]", "case_duration_max", DAY, 600),
    ("has paid 5 USD [0.000001 USD] of fees before", "strike_fees", 5_000_000, 1),
    ("verified for 30 d [5 min]", "unverifiable_for", 30 * DAY, 300),
    ("from ≥ 15 [3]", "jury_owners_min", 15, 3),
    ("≥ 3 periods after the opening", "jury_rounds_ahead", 3, 3),
    ("active ≥ 14 d [0] before the executions", "jury_slot_age", 14 * DAY, 0),
    ("moves a case to a new one after 24 h [30 s]", "jury_beacon_missing", DAY, 30),
    ("24 h [20 s] each, and the maxDuration", "jury_window", DAY, 20),
    ("1 USD [0.001 USD] beside", "fund_allowance", USD, USD // 1000),
    ("1 USD [100 USD], or a tenth", "lead_min", USD, 100 * USD),
    ("0.50 USD for gas", "jury_gas_fee", USD // 2, USD // 2),
    ("price) and 0.05 USD", "jury_pay_min", USD // 20, USD // 20),
    ("It ends 7 d [60 s] later if a client pays", "client_close", 7 * DAY, 60),
    ("14 d [90 s] later if a coordinator pays", "coordinator_close", 14 * DAY, 90),
    (
        "once a day, and the others once a week, from 0.05 USD on [everything every 10 s]",
        "pay_every",
        DAY,
        10,
    ),
    ("redeems a voucher after 7 d [20 s]", "redeem_every", 7 * DAY, 20),
    ("Executions are taken until 24 h [10 s] after the last", "evidence_window", DAY, 10),
    ("expiry + maxDuration + 14 d [120 s]", "escrow_evidence_age", 14 * DAY, 120),
    ("not paid 12 h [5 s] after its own reveal", "show_after", DAY // 2, 5),
    ("unbond after 21 d [180 s]", "unbond_after", 21 * DAY, 180),
    ("a fixed stake of 100 USD", "slot_stake", 100 * USD, 100 * USD),
    ("coordinator's bond is 1,000 USD", "coordinator_bond", 1000 * USD, 1000 * USD),
    (
        "≥ 8 owners that have been active for ≥ 14 d [any number of owners]",
        "class_owners_min_any",
        8,
        0,
    ),
    (
        "≥ 8 owners that have been active for ≥ 14 d [any number of owners]",
        "class_owner_age",
        14 * DAY,
        0,
    ),
    ("first beacon round of each hour [15 s]", "attestation_every", HOUR, 15),
    ("start within 60 s [10 s] of it", "attestation_start_within", 60, 10),
    ("A record lives 24 h [5 min]", "attestation_ttl", 24 * HOUR, 300),
    ("refreshes its offer every 5 min [20 s]", "offer_refresh", 300, 20),
    ("Beacon period 2 s", "beacon_period", 3, 2),
    ("session 1 d", "session_max", 30 * DAY, DAY),
    ("heartbeat every 3 s, alive for 10 s (MAINNET 20 s and 60 s)", "heartbeat_every", 20, 3),
    ("heartbeat every 3 s, alive for 10 s (MAINNET 20 s and 60 s)", "heartbeat_alive", 60, 10),
]

CONSTANTS: list[tuple[str, object, object]] = [
    ("the cap of 7 executions", limits.EXECUTIONS_MAX, 7),
    ("try i = 0…63", limits.DRAW_TRIES, 64),
    (
        "a beacon round 2 to 10 periods ahead",
        (limits.BEACON_AHEAD_MIN, limits.BEACON_AHEAD_MAX),
        (2, 10),
    ),
    ("fewer than 8 distinct owners have stake", limits.OWNERS_MIN_ADAPTIVE, 8),
    ("With fewer than 3 owners the coordinator refuses", limits.OWNERS_MIN_QUORUM, 3),
    ("More than two silent skips in a pass", limits.SILENT_SKIPS_MAX, 2),
    ("in chunks of 64 KiB", limits.OUTPUT_CHUNK_BYTES, 64 * 1024),
    ("at most 100,000 files and folders", limits.TREE_ENTRIES_MAX, 100_000),
    ("below /outputs is longer than 2,048 bytes", Bounds().path_bytes_max, 2048),
    ("has more than 64 folders", Bounds().directory_depth_max, 64),
    ("a strike for 90 d", trust_record.STRIKE_SECONDS, 90 * DAY),
    ("≤ 5e-3", verdict.RIVAL_SHARE_MAX * 1000, 5),
    ("Jury. 7 distinct owners", limits.JURORS, 7),
    ("and at least three, name one digest", limits.JURORS_MIN, 3),
    ("W = 5", DEVNET.window_jobs, 5),
]


@pytest.mark.rule(
    "0.1",
    "2.13",
    "2.14",
    "3.12",
    "4.4",
    "4.5",
    "5.6",
    "5.18",
    "5.142",
    "5.144",
    "6.67",
    "6.77",
    "6.30",
    "9.1",
)
@pytest.mark.parametrize(
    ("words", "name", "mainnet", "devnet"), WRITTEN, ids=[item[1] for item in WRITTEN]
)
def test_the_protocols_numbers_are_the_limits(
    words: str, name: str, mainnet: int, devnet: int
) -> None:
    assert words in PROTOCOL, "the number was changed there: change it here and in limits.py"
    assert (getattr(MAINNET, name), getattr(DEVNET, name)) == (mainnet, devnet)


@pytest.mark.rule("3.57", "5.16", "5.32", "5.38")
@pytest.mark.parametrize(
    ("words", "found", "expected"), CONSTANTS, ids=[item[0] for item in CONSTANTS]
)
def test_all_deployments_share_these_numbers(words: str, found: object, expected: object) -> None:
    assert words in PROTOCOL.replace("*", "")
    assert found == expected


@pytest.mark.rule("5.153")
def test_stake_unbonds_after_the_longest_case() -> None:
    """It waits for two missing rounds twice, for two votes with the job again, for reveals and
    openings.
    """
    vote = MAINNET.jury_window + MAINNET.case_duration_max
    shown = MAINNET.case_duration_max + MAINNET.case_evidence_age
    longest = shown + 2 * (vote + 2 * MAINNET.jury_beacon_missing) + 2 * MAINNET.jury_window
    assert longest == 18 * DAY < MAINNET.unbond_after


@pytest.mark.rule("6.72", "6.77", "6.81", "6.87")
@pytest.mark.parametrize("found", [MAINNET, TESTNET, DEVNET], ids=lambda limits: limits.name)
def test_a_payee_acts_before_what_is_its_own_goes_back(found: limits.Limits) -> None:
    assert found.redeem_every <= found.client_close <= found.coordinator_close
    assert found.show_after < found.evidence_window < found.escrow_evidence_age


@pytest.mark.rule("9.8")
def test_the_testnets_numbers_are_mainnets_with_the_exceptions_written() -> None:
    words = (
        "blocks 3 deep, W = 5, max_hold, payrolls, jury window and the window of evidence 10 min "
        "each, redemption and case evidence 1 h, a client's tab closes in 1 h and a coordinator's "
        "in 2 h, unbonding 3 h, juries from 3 owners, and no least age of owners and slots"
    )
    assert words in PROTOCOL
    minutes = ("max_hold", "pay_every", "jury_window", "evidence_window")
    assert {getattr(TESTNET, name) for name in minutes} == {600}
    hours = (TESTNET.redeem_every, TESTNET.case_evidence_age, TESTNET.client_close)
    assert hours == (HOUR,) * 3 and TESTNET.coordinator_close == 2 * HOUR
    assert (TESTNET.class_owner_age, TESTNET.jury_slot_age) == (0, 0)
    numbers = (TESTNET.chain_depth, TESTNET.window_jobs, TESTNET.jury_owners_min)
    assert numbers == (3, 5, 3) and TESTNET.beacon_period == MAINNET.beacon_period
    assert TESTNET.unbond_after == 3 * HOUR


@pytest.mark.rule("6.32")
def test_nothing_on_chain_can_be_paused() -> None:
    """No contract has a pause function. So no one can stop claims, cases and withdrawals."""
    folder = Path(quorate_contracts.__file__).parent / "abi"
    for path in folder.glob("*.json"):
        names = {
            item["name"].lower()
            for item in json.loads(path.read_text())["abi"]
            if item["type"] == "function"
        }
        found = {
            name
            for name in names
            for word in ("pause", "owner", "admin", "upgrade", "govern")
            if word in name
        }
        assert found <= {"owner_count", "owners_apart", "owners_min"}, path.name


@pytest.mark.rule("3.57")
def test_a_spec_asks_for_no_more_entries_than_the_store_takes() -> None:
    most = Resources(output_inodes=Bounds().entries_max)
    job_spec.validate(replace(a_spec("plain"), resources=most))
    more = replace(most, output_inodes=most.output_inodes + 1)
    with pytest.raises(Refused, match=r"resources\.outputInodes"):
        job_spec.validate(replace(a_spec("plain"), resources=more))
