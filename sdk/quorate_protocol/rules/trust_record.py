"""The trust of one provider in one job class, computed from its verdicts alone (I10)."""

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DAY, TRUST_PASSED_MAX
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_protocol.values import replace

STRIKE_SECONDS = 90 * DAY


class Trust(Struct, frozen=True):
    """The record of one provider in one job class. The defaults are those of a newcomer."""

    passed: int = 0  # k: audits passed in a row, at most 3000
    strikes: tuple[UnixSeconds, ...] = ()  # times of the last faults, at most eight

    def error_ppm(self) -> int:
        """Expected rate of wrong results: e = .3/(15+k), and .75/(15+k) with a strike."""
        return (750_000 if self.strikes else 300_000) // (15 + self.passed)

    def suspicion_ppm(self) -> int:
        """Assumed probability c that this provider lies, which `verdict.risk` uses: 10e within
        .001 and .2.
        """
        return min(200_000, max(1_000, 10 * self.error_ppm()))

    def at(self, now: UnixSeconds) -> "Trust":
        """The trust without the strikes that are older than 90 days at a moment."""
        live = tuple(at for at in self.strikes if now - at < STRIKE_SECONDS)
        return self if len(live) == len(self.strikes) else replace(self, strikes=live)

    def live_strikes(self, now: UnixSeconds) -> int:
        return len(self.at(now).strikes)

    def leaf(self, provider: Address, job_class: Hash32) -> Hash32:
        return hash_tuple(provider, job_class, self.passed, len(self.strikes))


def after_doubt(trust: Trust) -> Trust:
    """The trust after an execution that other determinism classes outvoted. It is no fault, but a
    provider that calls its class as it likes must not lie for nothing: k begins again.
    """
    return replace(trust, passed=0)


def after_audit(trust: Trust, passed: bool, now: UnixSeconds) -> Trust:
    """The trust after one more audited execution. A fault resets k and adds a strike."""
    if passed:
        return replace(trust, passed=min(TRUST_PASSED_MAX, trust.passed + 1))
    return replace(trust, passed=0, strikes=(*trust.strikes, now)[-8:])
