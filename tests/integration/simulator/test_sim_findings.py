"""Tests the smallest case of each bug that the simulator found and that a mutant would show too
rarely.
"""

from collections import Counter
from dataclasses import replace

import pytest

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.entities import Client, Payee, Sending
from quorate_coordinator.core.model.events import (
    ChainTabChanged,
    GiveBackAsked,
    TransactionConfirmed,
    TransactionRefused,
)
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import transactions
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages.receipt import document
from quorate_protocol.rules.receipts.receipt_checks import verify
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.rules.verdict import Accepted, Execution, More, decide
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Hash32,
    Label,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace as replace_row
from quorate_runtime.keys.crypto import recover
from sim.account_checks import AccountChecks
from sim.conduct_checks import ConductChecks
from sim.coordinator import new_core, rules_of
from sim.coverage import Coverage
from sim.exposure_checks import is_funded
from sim.forgery import forgeries
from sim.parties import DOMAIN, is_beacon_signature, key
from sim.plan import Behaviour, Market, draw
from sim.world import World
from support.markets.scripted_market import CPUS, Party
from support.markets.scripted_market import Market as ScriptedMarket


def test_a_repeated_refusal_does_not_touch_the_next_attempt() -> None:
    """If a crash comes before a refusal is marked done, the refusal is repeated. By then the
    payroll was built again.
    """
    state = State()
    context = StepContext(state, rules_of(draw(1)), UnixSeconds(3_000), ZERO_HASH)
    first, second = (Sending(f"payroll-{number}-2990", Amount(5)) for number in (1, 2))
    refused = TransactionRefused(first.key, "reverted")
    state.sending["payroll"] = first
    transactions.on_refused(context, refused)
    assert state.sending["payroll"].retry_at
    state.sending["payroll"] = second
    transactions.on_refused(context, refused)
    assert state.sending["payroll"] == second


@pytest.mark.rule("6.69", "6.89")
def test_a_client_gets_back_no_more_than_the_limit_of_the_day_leaves() -> None:
    """The coordinator once promised more, and the chain refused it again and again. Its clock may
    stand still, so two give-backs of one second need two keys.
    """
    core, client = new_core(draw(1)), key("client").address
    rules, own = core.rules, core.rules.coordinator
    with core.state.transaction():
        context = StepContext(core.state, rules, UnixSeconds(3_000), ZERO_HASH)
        core.state.clients[client] = Client(client, tab=Tab(locked=Amount(900)))
        context.change_own(locks_left=Amount(500))
        asked = GiveBackAsked(client, Amount(900))
        assert transactions.on_give_back(context, asked) == 500
        one = context.effects[-1]
        confirmed = TransactionConfirmed(one.key, ())
        transactions.on_confirmed(context, confirmed)
        note = ChainTabChanged(client, own, Amount(400), Amount(0))
        transactions.on_tab(context, note)
        assert transactions.on_give_back(context, GiveBackAsked(client, Amount(400))) == 400
        assert context.effects[-1].key != one.key


@pytest.mark.rule("I9", "2.22", "3.12", "3.18", "3.20", "3.38", "4.15", "5.16", "7.1")
def test_receipts_that_a_coordinator_could_sign_are_refused() -> None:
    """`quorate verify` once accepted an auditor of the coordinator's choice, one owner twice, or
    other terms than the order's.
    """
    seed = next(
        seed
        for seed in range(1, 100)
        if draw(seed).market is Market.SMALL and set(draw(seed).behaviours) == {Behaviour.HONEST}
    )
    world = World(draw(seed))
    world.run()
    seen = Counter[str]()
    for body in world.checks.accounts.ledger.receipts.values():
        assert verify(document(body), recover, is_beacon_signature).valid
        for wrong, forged in forgeries(body, world.checks.accounts.lists[body.ack.message.job_id]):
            assert not verify(document(forged), recover, is_beacon_signature).valid, wrong
            seen[wrong] += 1
    assert len(seen) >= 20, seen


@pytest.mark.rule("5.27", "5.32")
def test_an_auditor_that_never_reveals_does_not_count_as_an_audit() -> None:
    """A trusted primary with such an auditor once was accepted as audited. Two of them could
    pass any result without holding.
    """
    trusted = Execution(
        Hash32(b"\x01" * 32), Address(b"\x01" * 20), Hash32(b"\x0a" * 32), suspicion_ppm=1_000
    )
    silent = Execution(Hash32(b"\x02" * 32), Address(b"\x02" * 20), None)
    second = Execution(
        Hash32(b"\x03" * 32), Address(b"\x03" * 20), trusted.result, suspicion_ppm=1_000
    )
    assert decide(
        Label.ADAPTIVE, VerifyTier.STANDARD, [trusted, silent], 7, is_exhausted=False
    ) == More(1)
    assert decide(
        Label.ADAPTIVE, VerifyTier.STANDARD, [trusted, silent, second], 7, is_exhausted=False
    ) == Accepted((0, 2), (1,))
    assert decide(
        Label.ADAPTIVE, VerifyTier.STANDARD, [trusted], 7, is_exhausted=False
    ) == Accepted((0,), ())


@pytest.mark.rule("5.7")
def test_two_jobs_judged_in_one_step_make_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust records were once compared after each receipt. Two reveals that expired in one tick
    then looked like a wrong record.

    Few batches have two members that can expire together, so this test compares two verdicts at
    once.
    """
    compare = ConductChecks.compare_records
    monkeypatch.setattr(
        ConductChecks,
        "compare_records",
        lambda conduct, core: None if conduct.fresh == 1 else compare(conduct, core),
    )
    world = World(replace(draw(3), crash_chance=0.0))
    world.run()
    assert world.coverage.facts["jobs judged in one step"]


def test_keys_are_rotated_and_clients_leave_while_jobs_run() -> None:
    """Simulated markets once did neither. An accepted job is paid under the old key, and signed
    money stays until it is redeemed.
    """
    seen = Counter[str]()
    for number in range(1, 1000):
        plan = draw(number)
        if len(plan.rotations) > 1 and plan.leavings and len(plan.jobs) > 6:
            world = World(plan)
            world.run()
            seen.update(world.coverage.facts)
        if seen["paid under a key rotated away"] and seen["clients that left with jobs under way"]:
            return
    raise AssertionError(seen)


@pytest.mark.rule("I6", "I10")
def test_offers_are_ranked_by_the_same_records_after_a_restore() -> None:
    """Until a restart, the rows kept the record that a provider had before its last executions."""
    market = ScriptedMarket(Party(0), Party(1))
    market.core.state.market.bucket(CPUS.id())
    with market.core.state.transaction():
        for owner in market.parties:
            known = market.core.state.trust.get(owner) or Trusts()
            market.core.state.trust[owner] = known  # from now on each change is a change of a row
    market.core.state.market.bucket(CPUS.id())
    with market.core.state.transaction():
        for owner in market.parties:
            known = market.core.state.trust[owner]
            market.core.state.trust[owner] = replace_row(known, audits_passed=50)
    fresh = CoordinatorCore(market.core.rules)
    fresh.restore(market.core.snapshot())
    found = [
        {owner: _record_of(core, owner) for owner in market.parties}
        for core in (market.core, fresh)
    ]
    assert found[0] == found[1] and any(found[0].values())


def _record_of(core: CoordinatorCore, owner: Address) -> int:
    bucket = core.state.market.bucket(CPUS.id())
    assert bucket is not None
    return int(bucket._record[bucket._places[bucket._locals[owner]]])


@pytest.mark.rule("6.83")
def test_an_execution_is_no_exposure_once_final_blocks_show_its_escrow() -> None:
    """The check of I3 once counted it as a debt of the coordinator. An escrow below the order's
    budget, and one that no final block shows, is none.
    """
    seed = next(seed for seed in range(1, 100) if draw(seed).funded_job)
    world = World(draw(seed))
    world.run()
    found = [(item, lease) for item in world.providers for lease in item.money.kept]
    assert found and all(is_funded(*item) for item in found)
    for provider, lease in found:
        kept = provider.money.kept[lease]
        place = kept.order.client, digest(DOMAIN, kept.order)
        jobs = provider.chain.final_money().jobs.jobs
        jobs[place] = replace(jobs[place], budget=kept.order.budget - 1)
    assert not any(is_funded(*item) for item in found)
    for provider, _ in found:
        provider.chain.final_money().jobs.jobs.clear()
    assert not any(is_funded(*item) for item in found)


@pytest.mark.rule("5.99")
def test_the_fund_may_owe_what_it_lacked_before_the_first_charge_of_a_client() -> None:
    """One step decided a job of a client that was never charged, for which the fund pays nothing,
    and then charged it for another job. The check of I3 once looked at the charge after the step.
    """
    plan = draw(1)
    core, coverage, owner = new_core(plan), Coverage(), key("owner").address
    clients = [key("client", number).address for number in range(2)]
    checks = AccountChecks(coverage, ConductChecks(plan.limits, coverage, ZERO_HASH))

    def charge(account: Address, pay: int, fund: int) -> None:
        checks.ledger.charged[account] = pay + fund
        checks.ledger.earned[owner] = checks.ledger.earned.get(owner, 0) + pay
        checks.ledger.premiums += fund
        with core.state.transaction():
            final = Amount(checks.ledger.earned[owner])
            core.state.payees[owner] = Payee(owner, final=final)
            core.state.clients[account] = Client(
                account, charged=Amount(pay + fund), fund_paid=Amount(fund)
            )
            own = StepContext(core.state, core.rules, UnixSeconds(3_000), ZERO_HASH)
            own.change_own(fund=Amount(core.state.own.fund + fund))

    charge(clients[0], 1_000, 1)
    checks.compare_accounts(core)
    charge(clients[1], 31, 0)
    checks.ledger.from_fund[owner] = 135
    checks.compare_accounts(core)
    assert coverage.facts["a client had used up its part"] == 1
    checks.ledger.from_fund[owner] += 1
    with pytest.raises(AssertionError, match="I3: 1 unpaid, the fund has 1"):
        checks.compare_accounts(core)
