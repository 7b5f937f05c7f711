"""Probation: an owner without stake works for its first stake slot (PROTOCOL 5.92)."""

from quorate_protocol.units import Amount

RUN_SLOTS_MAX = 1  # of an owner on probation, over all classes
OWNERS_MAX = 256  # on probation with a live offer, of one coordinator


def is_over(final: Amount, slot_stake: Amount) -> bool:
    """Whether pay has ended a probation: it reaches the stake of one slot."""
    return final >= slot_stake


def shown(final: Amount, held: Amount, is_on_probation: bool) -> tuple[Amount, Amount]:
    """Returns (final, held) as others see them: on probation all pay is held. The final amount
    never falls over time, because a probation ends once.
    """
    return (Amount(0), Amount(final + held)) if is_on_probation else (final, held)
