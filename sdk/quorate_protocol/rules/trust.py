"""Trust of one provider in one job class: a pure fold over verdicts (I10)."""

from msgspec import Struct

from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.limits import DAY, TRUST_NEWCOMER, TRUST_PASSED_MAX, TRUST_PRIOR
from quorate_protocol.units import PPM_ONE, Address, Hash32, Ppm, UnixSeconds
from quorate_protocol.values import replace

LAMBDA_START_PPM = Ppm(20_000)
LAMBDA_RATE = 300  # EWMA over about this many audits
STRUCK_LAMBDA_PPM = 50_000
STRIKE_SECONDS = 90 * DAY


class Trust(Struct, frozen=True):
    """k (audits passed in a row, cap 1000), λ in ppm, strikes by time. Starts as a newcomer's."""

    passed: int = 0
    lambda_ppm: Ppm = LAMBDA_START_PPM
    strikes: tuple[UnixSeconds, ...] = ()

    def error_ppm(self) -> int:
        """e = m·λ/(m+k), never below 1 ppm; a struck provider's λ is at least .05·2^(−k/100)."""
        rate = self.lambda_ppm
        if self.strikes:
            rate = Ppm(max(rate, STRUCK_LAMBDA_PPM >> (self.passed // 100)))
        return max(1, TRUST_PRIOR * rate // (TRUST_PRIOR + self.passed))

    def suspicion_ppm(self) -> int:
        """c = .2 for newcomers, else clip(10e, 1e-3, .2): how likely this provider lies, for
        risk().
        """
        if self.passed < TRUST_NEWCOMER:
            return 200_000
        return min(200_000, max(1_000, 10 * self.error_ppm()))

    def at(self, now: UnixSeconds) -> "Trust":
        """What counts of it at a moment: a strike does for 90 days."""
        live = tuple(at for at in self.strikes if now - at < STRIKE_SECONDS)
        return self if len(live) == len(self.strikes) else replace(self, strikes=live)

    def live_strikes(self, now: UnixSeconds) -> int:
        """Strikes of the last 90 days."""
        return len(self.at(now).strikes)

    def leaf(self, provider: Address, job_class: Hash32) -> Hash32:
        """Entry of `Ack.stateRoot`."""
        return hash_tuple(provider, job_class, self.passed, self.lambda_ppm, len(self.strikes))


def after_audit(trust: Trust, passed: bool, now: UnixSeconds) -> Trust:
    """One audited execution more: λ moves by 1/300; a fault resets k and adds a strike."""
    target = 0 if passed else PPM_ONE
    rate = Ppm(trust.lambda_ppm + (target - trust.lambda_ppm) // LAMBDA_RATE)
    if passed:
        return replace(trust, passed=min(TRUST_PASSED_MAX, trust.passed + 1), lambda_ppm=rate)
    return replace(trust, passed=0, lambda_ppm=rate, strikes=(*trust.strikes, now)[-8:])
