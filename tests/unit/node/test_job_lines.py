"""Tests that the owner sees a line for each job, and what it earned by day."""

import json
import logging
from pathlib import Path

import pytest

from quorate_contracts.account.goals import StakeSlot
from quorate_node.cli.status import status_lines
from quorate_node.core import events
from quorate_node.core.phases import Revealed
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.account_state import AccountState
from quorate_node.status.income import DayIncome, Income, read_income, with_earned
from quorate_node.status.job_lines import JobLines
from quorate_node.status.status import OwnerFacts, status_of
from quorate_protocol.codec import canonical
from quorate_protocol.units import ZERO_HASH, Amount, BlockNumber, UnixSeconds
from quorate_runtime.process.health import Problem
from support.markets.provider_world import (
    COORDINATOR,
    OPERATOR,
    PROVIDER,
    STRANGER,
    Driver,
    make_terms,
    verdict,
)
from support.virtual_clock import VirtualClock

DAY = "2023-11-14"
RENTS = OwnerFacts(rentals="on-demand, egress none")


def test_each_job_is_told_when_taken_finished_and_paid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driver = Driver(ProviderCore(make_terms()))
    lines = JobLines(driver.core, tmp_path, VirtualClock())
    lease = driver.assign()
    lines.look()
    name = f"job 0x{lease.hex()[:12]}"
    assert [text.split(":")[0] for text in caplog.messages] == [f"{name} taken"]
    assert "0.10 USD an hour, 30 s at most" in caplog.text
    driver.advance(lease, Revealed)
    lines.look()
    driver.do(verdict(lease))
    lines.look()
    lines.look()
    assert len(caplog.messages) == 3
    assert caplog.messages[1].startswith(f"{name} finished after ")
    assert caplog.messages[2].startswith(f"{name} paid: 0.0")
    lines.close()
    again = JobLines(driver.core, tmp_path, VirtualClock())
    again.look()
    assert len(caplog.messages) == 3, "a restart tells and counts nothing twice"
    [day] = again.income.days
    assert (day.day, day.paid, day.unpaid) == (DAY, 1, 0)


def test_a_job_without_pay_is_told_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driver = Driver(ProviderCore(make_terms()))
    lines = JobLines(driver.core, tmp_path, VirtualClock())
    lease = driver.assign()
    driver.do(events.TaskFailed(lease, "the coordinator refused the Accept"))
    lines.look()
    assert caplog.messages[-1].endswith("is not paid: the coordinator refused the Accept")
    assert caplog.records[-1].levelno == logging.WARNING
    assert (lines.income.days[-1].paid, lines.income.days[-1].unpaid) == (0, 1)


def test_income_counts_what_verdicts_add_and_take_back() -> None:
    income = with_earned(Income(), "2026-01-01", COORDINATOR, Amount(100))
    assert with_earned(income, "2026-01-01", COORDINATOR, Amount(100)) is income
    income = with_earned(income, "2026-01-02", COORDINATOR, Amount(90))
    assert [(day.day, day.earned, day.taken_back) for day in income.days] == [
        ("2026-01-01", 100, 0),
        ("2026-01-02", 0, 10),
    ]


def test_a_damaged_income_file_starts_again(tmp_path: Path) -> None:
    (tmp_path / "income.json").write_text("{")
    assert read_income(tmp_path) == Income()


def test_status_says_why_nothing_is_on_offer() -> None:
    driver = Driver(ProviderCore(make_terms()))
    lease = driver.assign()
    driver.do(events.TaskFailed(lease, "its container was gone"))

    def shown(*problems: Problem, facts: OwnerFacts | None = None, connected: bool = True) -> str:
        transports = {COORDINATOR: "libp2p"} if connected else {}
        state = status_of(driver.core, OPERATOR.address, "", transports, problems, facts=facts)
        assert all(slot.offered == 0 for slot in state.slots) == bool(state.not_on_offer)
        return state.not_on_offer

    away = Problem("coordinator", "not connected to one of two")
    assert shown() == "" and shown(away) == "" and shown(Problem("chain", "x")) == ""
    assert shown(away, connected=False).startswith("coordinator: ")
    assert shown(Problem("engine", "no Docker")) == "engine: no Docker"
    assert shown(facts=OwnerFacts(is_on_offer=False)).startswith("not registered")
    assert shown(facts=OwnerFacts(is_leaving=True)).startswith("leaving: ")
    state = status_of(ProviderCore(make_terms()), OPERATOR.address, "", {}, facts=RENTS)
    assert "rentals: on-demand, egress none" in status_lines(canonical.to_json(state))
    driver.do(events.DrainRequested(True))
    assert shown().startswith("paused: ")


def test_status_shows_stake_balances_and_income() -> None:
    slots = (
        StakeSlot(ZERO_HASH, 0, BlockNumber(1), UnixSeconds(0)),
        StakeSlot(ZERO_HASH, 1, BlockNumber(1), UnixSeconds(1_700_000_000)),
        StakeSlot(ZERO_HASH, 2, BlockNumber(1), UnixSeconds(1_700_000_000)),
        StakeSlot(ZERO_HASH, 3, BlockNumber(1), UnixSeconds(1_700_086_400)),
    )
    account = AccountState(
        PROVIDER,
        STRANGER.address,
        OPERATOR.address,
        tokens=Amount(2_500_000),
        payout_tokens=Amount(70_000),
        coins=10**16,
        stake=Amount(200_000_000),
        slots=slots,
        read_at=UnixSeconds(7),
        coin="ETH",
        chain="Sepolia (chain 11155111)",
        lacks=Amount(3_500_000),
    )
    day = DayIncome("2026-01-31", 3, 1, Amount(1_000_000), Amount(10_000))
    facts = OwnerFacts(account=account, income=Income((day,)))
    state = status_of(
        ProviderCore(make_terms()), OPERATOR.address, "http://127.0.0.1:1", {}, facts=facts
    )
    text = "\n".join(status_lines(json.loads(canonical.encode(state))))
    for line in (
        "on offer",
        "jobs: 0 live, 3 paid, 1 not paid · jury duties 0",
        "stake: 200.00 USD, 1 slot open, 3 closed",
        "the stake of 2 closed slots comes back from 2023-11-14 22:13 UTC on",
        "the stake of 1 closed slot comes back from 2023-11-15 22:13 UTC on",
        "3.50 USD were burned: `quorate node top-up` restores them",
        f"wallet 0x{PROVIDER.hex()}: 2.50 USD, 0.010000 ETH for gas on Sepolia (chain 11155111)",
        f"payout 0x{STRANGER.address.hex()}: 0.07 USD",
        "2026-01-31: 1.00 USD, 3 jobs, 1 not paid, 0.01 taken back",
    ):
        assert line in text
