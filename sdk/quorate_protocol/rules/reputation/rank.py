"""How a provider's reputation ranks its offers beside their price (PROTOCOL §4, Ranking).

The coordinator's matching and `quorate offers` use these functions, so that an owner sees the
factor by which its price counts.
"""

from quorate_protocol.codec.identity_cache import Kept
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.units import PPM_ONE, Ppm, UnixSeconds

STRIKE_PPM = 50_000  # a strike of the last 90 days weighs as much as 5 % of the price
STRIKES_MAX = 10
MISSED_PPM = 25_000  # each of the last 20 executions that gave no result
LATE_PPM_MAX = 200_000  # executions that take twice as long as quoted, or longer
AUDIT_PPM = 100  # each audit passed makes the price count so much less
AUDITS_MAX = 100
MEASURED_PPM = 10_000  # a slot of level 1, so that it comes before one of the same price at level 0


def lasting_ppm(known: Trusts) -> int:
    """Returns what availability, time against quote, and audits passed add to the price's factor.

    It changes only with the log. Negative if the record is good. The newest results are cached: a
    line of the log compares a record with the one before.
    """
    return _lasting(known)


def _lasting_ppm(known: Trusts) -> int:
    answered, executions = known.availability()
    return (
        MISSED_PPM * (executions - answered)
        + _late_ppm(known)
        - AUDIT_PPM * min(known.audits_passed, AUDITS_MAX)
    )


_lasting = Kept(_lasting_ppm, 1024)


def strikes_ppm(known: Trusts, now: UnixSeconds) -> int:
    strikes = sum(trust.live_strikes(now) for trust in known.by_class.values())
    return STRIKE_PPM * min(strikes, STRIKES_MAX)


def slot_ppm(known: Trusts | None, level: int) -> int:
    return (0 if known is None else lasting_ppm(known)) - MEASURED_PPM * (level > 0)


def rank_ppm(known: Trusts | None, now: UnixSeconds, level: int) -> Ppm:
    strikes = 0 if known is None else strikes_ppm(known, now)
    return Ppm(PPM_ONE + slot_ppm(known, level) + strikes)


def _late_ppm(known: Trusts) -> int:
    """In proportion to the time beyond the quotes; a provider that quotes nothing is late by all
    it took.
    """
    times = known.completion()
    late = max(0, times.took - times.quoted)
    return min(LATE_PPM_MAX, LATE_PPM_MAX * late // max(1, times.quoted))
