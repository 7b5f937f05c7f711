"""The trust of one provider in one job class, computed from its verdicts alone (I10)."""

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DAY, TRUST_NEWCOMER, TRUST_PASSED_MAX, TRUST_PRIOR
from quorate_protocol.units import PPM_ONE, Address, Hash32, Ppm, UnixSeconds
from quorate_protocol.values import replace

LAMBDA_START_PPM = Ppm(20_000)
LAMBDA_RATE = 300  # λ is a moving average (EWMA) over about this many audits
STRUCK_LAMBDA_PPM = 50_000
STRIKE_SECONDS = 90 * DAY


class Trust(Struct, frozen=True):
    """The record of one provider in one job class. The defaults are those of a newcomer."""

    passed: int = 0  # k: audits passed in a row, at most 1000
    lambda_ppm: Ppm = LAMBDA_START_PPM  # λ: average rate of faults
    strikes: tuple[UnixSeconds, ...] = ()  # times of the last faults, at most eight

    def error_ppm(self) -> int:
        """Expected error rate e = m·λ/(m+k), at least 1 ppm. With a strike, λ counts as at least
        .05·2^(−k/100).
        """
        rate = self.lambda_ppm
        if self.strikes:
            rate = Ppm(max(rate, STRUCK_LAMBDA_PPM >> (self.passed // 100)))
        return max(1, TRUST_PRIOR * rate // (TRUST_PRIOR + self.passed))

    def suspicion_ppm(self) -> int:
        """Assumed probability c that this provider lies, which `verdict.risk` uses. c = .2 for
        newcomers, else 10e within .001 and .2.
        """
        if self.passed < TRUST_NEWCOMER:
            return 200_000
        return min(200_000, max(1_000, 10 * self.error_ppm()))

    def at(self, now: UnixSeconds) -> "Trust":
        """The trust without the strikes that are older than 90 days at a moment."""
        live = tuple(at for at in self.strikes if now - at < STRIKE_SECONDS)
        return self if len(live) == len(self.strikes) else replace(self, strikes=live)

    def live_strikes(self, now: UnixSeconds) -> int:
        return len(self.at(now).strikes)

    def leaf(self, provider: Address, job_class: Hash32) -> Hash32:
        return hash_tuple(provider, job_class, self.passed, self.lambda_ppm, len(self.strikes))


def after_doubt(trust: Trust) -> Trust:
    """The trust after an execution that other determinism classes outvoted. It is no fault, but a
    provider that calls its class as it likes must not lie for nothing: k begins again.
    """
    return replace(trust, passed=0)


def after_audit(trust: Trust, passed: bool, now: UnixSeconds) -> Trust:
    """The trust after one more audited execution. λ moves by 1/300 of the way to 0 or 1. A fault
    also resets k and adds a strike.
    """
    target = 0 if passed else PPM_ONE
    rate = Ppm(trust.lambda_ppm + (target - trust.lambda_ppm) // LAMBDA_RATE)
    if passed:
        return replace(trust, passed=min(TRUST_PASSED_MAX, trust.passed + 1), lambda_ppm=rate)
    return replace(trust, passed=0, lambda_ppm=rate, strikes=(*trust.strikes, now)[-8:])
