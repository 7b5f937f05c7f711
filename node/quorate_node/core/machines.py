"""Chooses the machine of a lease: that of executions, or that of rentals."""

from quorate_node.core import effects, events, execution, rental
from quorate_node.core.execution import Stepped
from quorate_node.core.phases import Execution
from quorate_node.core.terms import Terms
from quorate_protocol.units import UnixSeconds


def step(
    lease: Execution, event: events.ExecutionEvent, at: UnixSeconds, random: bytes, terms: Terms
) -> Stepped:
    step_it = rental.step if lease.is_rental else execution.step
    return step_it(lease, event, at, random, terms)


def duties(lease: Execution) -> tuple[effects.LeaseEffect, ...]:
    return rental.duties(lease) if lease.is_rental else execution.duties(lease)


def next_due(lease: Execution, terms: Terms) -> UnixSeconds:
    return rental.next_due(lease, terms) if lease.is_rental else execution.next_due(lease)


def lose_gpus(lease: Execution, gone: tuple[str, ...], at: UnixSeconds) -> Stepped:
    lose_them = rental.lose_gpus if lease.is_rental else execution.lose_gpus
    return lose_them(lease, gone, at)
