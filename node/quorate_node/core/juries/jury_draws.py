"""Which jury duties a provider takes: by price, room, and a number a day (PROTOCOL §5).

The chain draws a juror without asking. A juror that declines votes `void` at once: it then earns
its gas if most do so, and no seat stays empty.
"""

from collections.abc import Iterable

from quorate_node.core import events
from quorate_node.core.effects import CourtEffect
from quorate_node.core.juries import jury_duty
from quorate_node.core.juries.jury_duty import JuryDuty
from quorate_node.core.terms import Terms
from quorate_protocol.limits import DAY
from quorate_protocol.tables import Table
from quorate_protocol.units import Nonce, UnixSeconds, usd
from quorate_protocol.values import replace

CASES_KEPT_MAX = 1_000
_SEND_PART = 4  # of the voting window, the last such part is left to send the vote


def note_case(
    cases: Table[Nonce, events.ChainCaseOpened], event: events.ChainCaseOpened, terms: Terms
) -> None:
    """Keeps a case until its decision, because no later event names what a juror repeats.

    It keeps no case against this provider, or of a host class that it does not offer.
    """
    is_irrelevant = (
        event.accused == terms.provider or terms.slot(event.executions[0].host_class) is None
    )
    if not is_irrelevant and event.case_id not in cases and len(cases) < CASES_KEPT_MAX:
        cases[event.case_id] = event


def seat(
    cases: Table[Nonce, events.ChainCaseOpened],
    jury: Table[Nonce, JuryDuty],
    event: events.ChainJuryDrawn,
    terms: Terms,
    at: UnixSeconds,
    random: bytes,
) -> tuple[CourtEffect, ...]:
    """Takes or declines the duty of a juror that was drawn. `random`: 32 bytes for a salt."""
    case = cases.get(event.case_id)
    if case is None or terms.provider not in event.jurors:
        return ()
    known = jury.get(event.case_id)
    # An execution rarely takes its maxDuration, so a slot that frees later is still worth waiting
    # for.
    begin_by = UnixSeconds(event.vote_by - terms.limits.jury_window // _SEND_PART)
    if known is not None:
        jury[event.case_id] = replace(known, vote_by=event.vote_by, begin_by=begin_by)
        return ()
    duty = replace(
        jury_duty.new_duty(case, event.vote_by, terms.provider), begin_by=begin_by, drawn_at=at
    )
    why = _refusal(duty, jury.values(), terms, at)
    jury[event.case_id], due = jury_duty.decline(duty, why, random) if why else (duty, ())
    return due


def has_room(jury: Iterable[JuryDuty], terms: Terms) -> bool:
    """Returns whether one more duty may take a free run slot. Duties never take a lease's slot."""
    return sum(duty.occupies_slot for duty in jury) < terms.policy.jury_slots


def _refusal(duty: JuryDuty, jury: Iterable[JuryDuty], terms: Terms, at: UnixSeconds) -> str:
    """Returns why the owner's policy declines a duty; "" if it does not."""
    policy = terms.policy
    for named in duty.executions:
        if named.pay * 3600 < policy.jury_price * named.max_duration:
            return (
                f"an execution of {named.max_duration} s pays {usd(named.pay)}, less than your "
                f"--jury-price of {usd(policy.jury_price)} an hour"
            )
    if not policy.jury_slots:
        return "no room: --jury-slots is 0"
    taken = sum(not other.declined and other.drawn_at > at - DAY for other in jury)
    if taken >= policy.jury_cases:
        return f"{taken} cases in 24 hours reached --jury-cases"
    return ""
