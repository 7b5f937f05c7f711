"""The machine of all contracts with fewer rules, so that the others meet more often."""

import inspect

from hypothesis.stateful import RULE_MARKER

from contracts.court_machine import CourtMoney
from contracts.fault_machine import FaultedMoney
from contracts.money_machine import Money
from contracts.staking_machine import StakedMoney

# Rules that others call, or without which there is no money or no time
NEEDED = ("a_coordinator_acts", "deposit", "deposit_and_allocate", "travel")


def _rules(machine: type[Money]) -> set[str]:
    return {name for name, member in inspect.getmembers(machine) if hasattr(member, RULE_MARKER)}


MONEY_RULES = _rules(Money) - set(NEEDED)
FAULT_RULES = _rules(FaultedMoney) - _rules(StakedMoney)

Proofs = type("Proofs", (FaultedMoney,), dict.fromkeys(MONEY_RULES))
"""Slots, bonds and faults."""

Trials = type("Trials", (CourtMoney,), dict.fromkeys(MONEY_RULES | FAULT_RULES))
"""Slots, bonds and cases."""
