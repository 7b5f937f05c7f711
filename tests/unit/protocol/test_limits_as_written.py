"""Tests that programs and contracts use the numbers of docs/protocol.md.

The page gives MAINNET's value first and DEVNET's in brackets.
"""

import json
from pathlib import Path

import pytest

import quorate_contracts
from quorate_content.content_limits import Bounds
from quorate_protocol import limits
from quorate_protocol.limits import DAY, DEVNET, HOUR, MAINNET, TESTNET, USD
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.job_spec import Resources
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import trust_record, verdict
from quorate_protocol.values import replace
from support.markets.scripted_market import a_spec

PROTOCOL = " ".join(
    (Path(__file__).parents[3] / "docs" / "protocol.md")
    .read_text(encoding="utf-8")
    .replace("`", "")
    .split()
)

WRITTEN: list[tuple[str, str, int, int]] = [
    ("as of a finalised block (32 blocks deep [1])", "chain_depth", 32, 1),
    ("acceptBy (30 s [5 s] after signing)", "accept_within", 30, 5),
    ("Its block and roots are at most 10 min old", "ack_age_max", 600, 600),
    ("startBy at most 10 min [20 s] ahead", "decline_ahead_max", 600, 20),
    ("grace of 60 s [20 s]", "commit_grace", 60, 20),
    ("revealBy = closedAt + 60 s [6 s]", "reveal_within", 60, 6),
    ("is released 9 d [60 s] after its announcement", "allocation_release", 9 * DAY, 60),
    ("Vouchers can until 72 h [30 s] before", "voucher_margin", 72 * HOUR, 30),
    ("max_hold of 72 h [20 s]", "max_hold", 72 * HOUR, 20),
    ("within 7 d [90 s] of Assignment.acceptBy + maxDuration", "case_evidence_age", 7 * DAY, 90),
    ("(allocated for ≥ 7 d [0])", "case_allocation_age", 7 * DAY, 0),
    ("cover at least 50 times [once] what the job cost it", "case_spent_multiple", 50, 1),
    ("verified for 30 d [5 min]", "unverifiable_for", 30 * DAY, 300),
    ("The first bar lasts 7 d [90 s]", "bar_first", 7 * DAY, 90),
    ("from ≥ 15 [3]", "jury_owners_min", 15, 3),
    ("≥ 3 periods after the opening", "jury_rounds_ahead", 3, 3),
    (
        "no round comes within 24 h [30 s] of its time, the bond is burned",
        "jury_beacon_missing",
        24 * HOUR,
        30,
    ),
    ("active ≥ 14 d [0] before the executions", "jury_slot_age", 14 * DAY, 0),
    ("24 h [20 s] each, plus the maxDurations", "jury_window", 24 * HOUR, 20),
    ("1 USD [0.001 USD] beside", "fund_allowance", USD, USD // 1000),
    ("1 USD [100 USD], or a tenth", "lead_min", USD, 100 * USD),
    ("0.50 USD for gas", "jury_gas_fee", USD // 2, USD // 2),
    ("is final 24 h [10 s] after its posting", "challenge_window", 24 * HOUR, 10),
    (
        "posted at 24 h or when the coordinator is idle with debt [every 10 s",
        "epoch_every",
        24 * HOUR,
        10,
    ),
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
    ("withdrawal of unallocated deposits 40 s (MAINNET 48 h)", "withdrawal_delay", 48 * HOUR, 40),
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
    ("S = min(stake, 16 × pay)", limits.HELD_PRICE_MULTIPLE, 16),
    ("max(8 × the sum of the pays named, all pays of", limits.SLASH_MULTIPLE, 8),
    ("within its last 300 checked executions", limits.FAULT_WINDOW_EXECUTIONS, 300),
    ("or three of at least two clients", limits.FAULTS_FOR_CASE, 3),
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
    "5.67",
    "5.73",
    "6.16",
    "6.18",
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


@pytest.mark.rule("4.27")
@pytest.mark.parametrize("found", [MAINNET, TESTNET, DEVNET], ids=lambda limits: limits.name)
def test_a_release_takes_longer_than_any_holding_time(found: limits.Limits) -> None:
    """It also takes longer than a voucher's way into an epoch and its challenge. Otherwise a
    client could get its deposit back before its jobs are final.
    """
    assert found.allocation_release > found.max_hold + found.epoch_every + found.challenge_window
    assert found.allocation_release > found.voucher_margin >= 3 * found.epoch_every
    assert found.unbond_after > found.case_evidence_age + 2 * found.jury_window


@pytest.mark.rule("9.8")
def test_the_testnets_numbers_are_mainnets_with_the_exceptions_written() -> None:
    words = (
        "blocks 3 deep, W = 5, max_hold, epochs, challenge window, withdrawal and jury window "
        "10 min each, release and case evidence 1 h, vouchers until 30 min before, unbonding 3 h, "
        "juries from 3 owners, and no least age of owners, slots and allocations"
    )
    assert words in PROTOCOL
    minutes = ("max_hold", "epoch_every", "challenge_window", "withdrawal_delay", "jury_window")
    assert {getattr(TESTNET, name) for name in minutes} == {600}
    assert TESTNET.allocation_release == TESTNET.case_evidence_age == HOUR
    ages = (TESTNET.class_owner_age, TESTNET.jury_slot_age, TESTNET.case_allocation_age)
    assert ages == (0, 0, 0) and TESTNET.beacon_period == MAINNET.beacon_period
    numbers = (TESTNET.chain_depth, TESTNET.window_jobs, TESTNET.jury_owners_min)
    assert numbers == (3, 5, 3) and TESTNET.voucher_margin == 1800
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
        assert found <= {"owner_count", "owners_min"}, path.name


@pytest.mark.rule("3.57")
def test_a_spec_asks_for_no_more_entries_than_the_store_takes() -> None:
    most = Resources(output_inodes=Bounds().entries_max)
    job_spec.validate(replace(a_spec("plain"), resources=most))
    more = replace(most, output_inodes=most.output_inodes + 1)
    with pytest.raises(Refused, match=r"resources\.outputInodes"):
        job_spec.validate(replace(a_spec("plain"), resources=more))
