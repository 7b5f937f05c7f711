"""Which jury duties a provider takes: by price, room, and a number a day (PROTOCOL §5).

The chain draws a juror without asking. A juror that declines votes `void` at once: it then earns
its gas if most do so, and no seat stays empty.
"""

from collections.abc import Iterable

from msgspec import Struct

from quorate_node.core import events, jury_duty
from quorate_node.core.effects import CourtEffect
from quorate_node.core.jury_duty import JuryDuty
from quorate_node.core.terms import Terms
from quorate_protocol.codec.tables import Table
from quorate_protocol.limits import DAY
from quorate_protocol.units import Hash32, UnixSeconds, usd
from quorate_protocol.values import replace

CASES_KEPT_MAX = 1_000
_SEND_PART = 4  # of the voting window, the last such part is left to send the vote


class Case(Struct, frozen=True):
    """A case that is open, with its ballots in the order of the chain."""

    opened: events.ChainCaseOpened
    votes: tuple[events.Vote, ...] = ()


def note_case(cases: Table[Hash32, Case], event: events.ChainCaseOpened, terms: Terms) -> None:
    """Keeps a case until its decision, unless it is against this provider or of a class that it
    does not offer. An execution has one open case, so a new one replaces the last.
    """
    is_irrelevant = event.accused == terms.provider or terms.slot(event.host_class) is None
    known = cases.get(event.execution)
    if is_irrelevant or (known is not None and known.opened.case_id == event.case_id):
        return
    if known is not None or len(cases) < CASES_KEPT_MAX:
        cases[event.execution] = Case(event)


def note_vote(cases: Table[Hash32, Case], event: events.ChainVoted) -> None:
    case = cases.get(event.execution)
    if case is not None:
        others = tuple(vote for vote in case.votes if vote.juror != event.vote.juror)
        cases[event.execution] = replace(case, votes=(*others, event.vote))


def seat(
    cases: Table[Hash32, Case],
    jury: Table[Hash32, JuryDuty],
    event: events.ChainJuryDrawn,
    terms: Terms,
    at: UnixSeconds,
    random: bytes,
) -> tuple[CourtEffect, ...]:
    """Takes or declines the duty. `random`: 32 bytes for a salt. Nobody votes twice."""
    case = cases.get(event.execution)
    is_seated = case is not None and case.opened.case_id in jury
    if case is None or not event.vote_by or is_seated or terms.provider not in event.jurors:
        return ()
    # An execution rarely takes its maxDuration, so a slot that frees later is still worth waiting
    # for.
    begin_by = UnixSeconds(event.vote_by - terms.limits.jury_window // _SEND_PART)
    duty = JuryDuty(
        case=case.opened,
        juror=terms.provider,
        jurors=event.jurors,
        vote_by=event.vote_by,
        phase=jury_duty.Waiting(),
        begin_by=begin_by,
        drawn_at=at,
    )
    why = _refusal(duty, jury.values(), terms, at)
    jury[duty.case_id], due = jury_duty.decline(duty, why, random) if why else (duty, ())
    return due


def has_room(jury: Iterable[JuryDuty], terms: Terms) -> bool:
    """Returns whether one more duty may take a free run slot. Duties never take a lease's slot."""
    return sum(duty.occupies_slot for duty in jury) < terms.policy.jury_slots


def _refusal(duty: JuryDuty, jury: Iterable[JuryDuty], terms: Terms, at: UnixSeconds) -> str:
    """Returns why the owner's policy declines a duty; "" if it does not."""
    policy = terms.policy
    named = duty.case
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
