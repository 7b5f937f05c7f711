"""Broken rules of rentals: what counts, what may be charged, and who works on unpaid."""

import dataclasses

from quorate_coordinator.core.model import market_index
from quorate_coordinator.core.rentals import allowances, meters
from quorate_node.core import rental
from quorate_protocol.rules import rentals
from quorate_protocol.units import Amount
from quorate_protocol.values import replace
from sim.mutants import Mutant, Patch, changed
from sim.plan import CALM, LYING, Behaviour, Plan

RENTED = changed(has_rentals=True)
SPOT = changed(has_rentals=True, has_spot=True)


def _with_liar(plan: Plan) -> Plan | None:
    if LYING.isdisjoint(plan.behaviours):
        return None
    return dataclasses.replace(plan, has_rentals=True, weather=CALM, cuts=(), leavings=())


def _stingy(plan: Plan) -> Plan:
    return dataclasses.replace(
        plan, has_rentals=True, is_stingy=True, weather=CALM, cuts=(), leavings=()
    )


def _alone(plan: Plan) -> Plan:
    """Nothing is ordered beside the rentals, so only they are signed for."""
    honest = (Behaviour.HONEST,) * len(plan.behaviours)
    calm = _stingy(plan)
    calm = dataclasses.replace(calm, is_stingy=False, behaviours=honest, crash_chance=0.0)
    return dataclasses.replace(calm, jobs=(), funded_job=None, sleeps=(), clocks=())


def _any_usage_is_believed(patch: Patch) -> None:
    patch.setattr(meters, "_counted", lambda context, job, lease, usage: usage)


def _rentals_need_no_voucher(patch: Patch) -> None:
    patch.setattr(meters, "free_for", lambda client, job: 10**12)


def _allowances_bound_nothing(patch: Patch) -> None:
    patch.setattr(allowances, "limit_of", lambda job: job.order.budget)


def _fees_count_twice(patch: Patch) -> None:
    charge_of = rentals.charge_of

    def doubled(*given):  # type: ignore[no-untyped-def]
        found = charge_of(*given)
        return replace(found, fee=Amount(2 * found.fee))

    patch.setattr(rentals, "charge_of", doubled)


def _owners_work_on_unpaid(patch: Patch) -> None:
    patch.setattr(rental, "_covered_until", lambda phase, terms: 2**40)


def _everything_makes_room(patch: Patch) -> None:
    patch.setattr(market_index, "_is_spot", lambda state, lease: True)


MUTANTS = (
    Mutant("any usage of a rental is believed", "I4", _any_usage_is_believed, _with_liar),
    Mutant("a rental is charged without a voucher", "I4", _rentals_need_no_voucher, _alone),
    Mutant("a rental's allowance bounds nothing", "I4", _allowances_bound_nothing, RENTED),
    Mutant("the fee of a rental is charged twice", "I4", _fees_count_twice, RENTED),
    Mutant("tasks make room for rentals", "4.40", _everything_makes_room, SPOT),
    Mutant("an owner works on for a rental unpaid", "I11", _owners_work_on_unpaid, _stingy),
)
