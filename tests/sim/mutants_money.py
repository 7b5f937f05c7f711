"""Broken rules of money: pay, fees, credits, holds, refunds, vouchers, payrolls."""

import dataclasses

from quorate_coordinator.core.audit import draw, verdicts
from quorate_coordinator.core.jobs import log_reads
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.money import held_pay, ledger, payees, transactions
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import credit, settlement
from quorate_protocol.units import Amount, Price
from quorate_protocol.values import replace
from sim.mutants import Mutant, Patch, changed, only
from sim.plan import CALM, Behaviour, Market, Plan

LARGE = only(lambda plan: plan.market is Market.LARGE)
SMALL = only(lambda plan: plan.market is Market.SMALL)
INTRUDED = only(lambda plan: plan.has_intruder)
NEVER_VOUCHES = changed(never_vouches=True)
POOR = changed(capital=0)


def _pay_is_rounded_up(patch: Patch) -> None:
    def rounded(usage, rate, budget):  # type: ignore[no-untyped-def]
        return Amount(min(-(-usage * rate // 3_600_000), budget))

    patch.setattr(settlement, "pay_for", rounded)


def _fees_are_charged_twice(patch: Patch) -> None:
    split = settlement.split

    def doubled(*arguments):  # type: ignore[no-untyped-def]
        found = split(*arguments)
        return replace(found, charged=Amount(found.charged + found.fee), fee=Amount(2 * found.fee))

    patch.setattr(settlement, "split", doubled)


def _the_fund_pays_for_the_absent(patch: Patch) -> None:
    patch.setattr(ledger, "is_audit_billed", lambda job: False)


def _credits_count_twice(patch: Patch) -> None:
    hold = ledger.hold

    def twice(context, lease, amount):  # type: ignore[no-untyped-def]
        hold(context, lease, amount)
        hold(context, lease, amount)

    patch.setattr(ledger, "hold", twice)


def _silence_is_paid(patch: Patch) -> None:
    patch.setattr(settlement, "_honest", lambda verdict, ran: list(ran))


def _two_results_are_the_clients_doing(patch: Patch) -> None:
    patch.setattr(settlement, "is_clients_limit", lambda *given: True)


def _a_clients_own_limit_costs_nothing(patch: Patch) -> None:
    patch.setattr("sim.workload.KINDS", ("random", "random", "pure"))
    patch.setattr(settlement, "is_clients_limit", lambda *given: False)


def _the_end_of_a_budget_is_not_seen(patch: Patch) -> None:
    # Needs a program that answers differently each time.
    patch.setattr("sim.workload.KINDS", ("random", "random", "times-out"))
    patch.setattr(settlement, "further_affordable", lambda order, fee, ran: 7)


def _logs_are_read_for_nothing(patch: Patch) -> None:
    patch.setattr(log_reads, "on_log_read", lambda context, event: None)


def _read_executions_are_not_charged(patch: Patch) -> None:
    billed = settlement._billed

    def free(order, ack, verdict, *more):  # type: ignore[no-untyped-def]
        return billed(order, ack, replace(verdict, read=()), *more)

    patch.setattr(settlement, "_billed", free)


def _the_fund_gets_no_part_of_fees(patch: Patch) -> None:
    patch.setattr(settlement, "FUND_SHARE_OF_FEE", 2**60)


def _the_fund_keeps_what_it_owes(patch: Patch) -> None:
    patch.setattr(ledger, "pay_from_fund", lambda context, job, owed: None)


def _pay_beyond_the_budget(patch: Patch) -> None:
    _the_end_of_a_budget_is_not_seen(patch)
    split = settlement.split
    patch.setattr(
        settlement,
        "split",
        lambda order, *more: split(replace(order, budget=Amount(2 * order.budget)), *more),
    )


def _auditors_ask_what_they_like(patch: Patch) -> None:
    patch.setattr(draw, "Price", lambda amount: Price(amount + 100_000))


def _held_pay_is_final_early(patch: Patch) -> None:
    queue = "quorate_coordinator.core.jobs.job_queue.JobQueue.releasable"
    patch.setattr(queue, lambda jobs, at: [jobs._state.jobs[job_id] for job_id in jobs._state.held])
    patch.setattr(held_pay, "draw_at_hold_end", _release_at_once)


def _release_at_once(context, job):  # type: ignore[no-untyped-def]
    del context.state.held[job.id]
    held_pay._finish_and_release(context, context.put(job, phase=replace(job.phase, is_final=True)))


def _holds_are_short(patch: Patch) -> None:
    accept = verdicts._accept

    def shorter(context, job, *found):  # type: ignore[no-untyped-def]
        rules = context.rules
        context.rules = replace(rules, limits=replace(rules.limits, max_hold=0))
        try:
            return accept(context, job, *found)
        finally:
            context.rules = rules

    patch.setattr(verdicts, "_accept", shorter)
    patch.setattr(held_pay, "draw_at_hold_end", _release_at_once)


def _refunds_are_not_given(patch: Patch) -> None:
    def kept(context, job, amount):  # type: ignore[no-untyped-def]
        context.change_own(fund=Amount(context.state.own.fund + amount))

    patch.setattr(ledger, "refund", kept)


def crowded(plan: Plan) -> Plan | None:
    """A liar has many jobs at once: one is audited while others are held."""
    if plan.market is not Market.LARGE or Behaviour.LIAR not in plan.behaviours:
        return None
    jobs = tuple(dataclasses.replace(job, at=1 + job.at / 2, stop_after=None) for job in plan.jobs)
    return dataclasses.replace(
        plan, jobs=jobs, weather=CALM, cuts=(), clocks=(), crash_chance=0.0, outage=None
    )


def _liars_keep_held_pay(patch: Patch) -> None:
    patch.setattr(
        held_pay, "_pay_from_forfeit", lambda context, job, primary, helpers: (job, list(helpers))
    )


def _final_before_covered(patch: Patch) -> None:
    release = ledger.release
    patch.setattr(
        ledger, "release", lambda context, job: release(context, replace(job, is_covered=True))
    )
    settle = ledger.settle

    def settled(context, job, verdict, members):  # type: ignore[no-untyped-def]
        return ledger.release(context, settle(context, job, verdict, members))

    patch.setattr(ledger, "settle", settled)


def _without(code: Code):  # type: ignore[no-untyped-def]
    def mutate(patch: Patch) -> None:
        on_voucher = ledger.on_voucher

        def taken(context, event):  # type: ignore[no-untyped-def]
            try:
                on_voucher(context, event)
            except Refused as refused:
                if refused.code is not code:
                    raise
                client = context.state.clients[event.voucher.message.payer]
                signed = next(
                    (item for item in client.sessions if item.message.session_key == event.key),
                    None,
                )
                changed = replace(client, voucher=event.voucher, voucher_session=signed)
                ledger._count(context, changed)

        patch.setattr(ledger, "on_voucher", taken)

    return mutate


def _orders_need_no_cover(patch: Patch) -> None:
    patch.setattr(credit, "voucher_needed", lambda charged, reserved, fees_paid: Amount(0))


def _output_needs_no_voucher(patch: Patch) -> None:
    patch.setattr(Job, "is_readable", property(lambda job: job.is_paid_for))


def _held_pay_is_signed(patch: Patch) -> None:
    hold = payees.hold

    def signed(context, account, amount):  # type: ignore[no-untyped-def]
        hold(context, account, amount)
        payee = context.state.payees[account]
        both = Amount(payee.final + payee.held)
        context.state.payees[account] = replace(payee, final=both)
        context.state.vouchers_due[account] = True
        payees.vouch(context)
        payee = context.state.payees[account]
        context.state.payees[account] = replace(payee, final=Amount(both - payee.held))

    patch.setattr(payees, "hold", signed)


def _payrolls_know_no_balance(patch: Patch) -> None:
    patch.setattr(transactions, "_available", lambda context: Amount(10**9))


def _any_time_is_believed(patch: Patch) -> None:
    patch.setattr(settlement, "payable_usage", lambda usage, assignment, by, accept_within: usage)


def _boasting(plan: Plan) -> Plan | None:
    """No provider is slow, so that the long limits cause no waiting."""
    if plan.market is not Market.SMALL:
        return None
    calm = dataclasses.replace(
        plan,
        weather=CALM,
        cuts=(),
        clocks=(),
        outage=None,
        rotations=(),
        leavings=(),
        sleeps=(),
        vanishes=None,
        is_stingy=False,
        leaver=None,
        chain_outage=None,
    )
    return dataclasses.replace(
        calm,
        has_boasters=True,
        behaviours=(Behaviour.HONEST,) * len(plan.behaviours),
        crash_chance=0.0,
        has_intruder=False,
    )


MUTANTS = (
    Mutant("any time is believed", "I4", _any_time_is_believed, _boasting),
    Mutant("the fund pays for the absent", "I4", _the_fund_pays_for_the_absent, LARGE),
    Mutant("pay is rounded up", "I4", _pay_is_rounded_up),
    Mutant("the fee is charged twice", "I4", _fees_are_charged_twice),
    Mutant("a credit counts twice", "I1", _credits_count_twice),
    Mutant("every provider that committed is paid", "I4", _silence_is_paid),
    Mutant("two different results are paid for", "I4", _two_results_are_the_clients_doing),
    Mutant("a client's own limit costs it nothing", "I3", _a_clients_own_limit_costs_nothing),
    Mutant("the end of a budget is not seen", "I3", _the_end_of_a_budget_is_not_seen, SMALL),
    Mutant("pay goes beyond the budget", "I4", _pay_beyond_the_budget, SMALL),
    Mutant("log lines are read for nothing", "I3", _logs_are_read_for_nothing),
    Mutant("read executions are not charged", "I3", _read_executions_are_not_charged),
    Mutant("the fund gets no part of fees", "I1", _the_fund_gets_no_part_of_fees, SMALL),
    Mutant("the fund keeps what it owes", "I3", _the_fund_keeps_what_it_owes, LARGE),
    Mutant("auditors are paid above the client's price", "I4", _auditors_ask_what_they_like),
    Mutant("held pay is final at once", "I3", _held_pay_is_final_early, LARGE),
    Mutant("holds are too short", "I3", _holds_are_short, LARGE),
    Mutant("a refund is not given", "I4", _refunds_are_not_given, LARGE),
    Mutant("a liar keeps its held pay", "I1", _liars_keep_held_pay, crowded),
    Mutant("pay is final before its client covers it", "I1", _final_before_covered),
    Mutant("vouchers above the session's limit", "I4", _without(Code.INSUFFICIENT_FUNDS), INTRUDED),
    Mutant("an order without cover is taken", "I4", _orders_need_no_cover, NEVER_VOUCHES),
    Mutant("output is served without a voucher", "I4", _output_needs_no_voucher, NEVER_VOUCHES),
    Mutant("a voucher over held pay is signed", "I1", _held_pay_is_signed),
    Mutant("a payroll pays more than the balance", "I1", _payrolls_know_no_balance, POOR),
    Mutant("older vouchers replace newer ones", "I6", _without(Code.STALE), INTRUDED),
)
