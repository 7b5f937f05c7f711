"""When challenges take place: all providers at once, by the first beacon round of each period.

So a coordinator cannot choose a round that draws its friends, and one GPU cannot answer for several
providers one after the other.
"""

from quorate_attestation.challenge import ChallengeOpened
from quorate_protocol.limits import Limits
from quorate_protocol.messages.beacon_rounds import first_round_after, round_time
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Round, UnixSeconds


def challenge_round(info: BeaconInfo, unix: int, limits: Limits) -> Round:
    """The first round of the present period, which may still be to come. Periods of
    `attestation_every` begin at the beacon's genesis.
    """
    assert unix >= info.genesis_time, "the beacon has begun"
    begun = unix - (unix - info.genesis_time) % limits.attestation_every
    return first_round_after(info, begun - 1)


def check_start(
    challenge: ChallengeOpened, info: BeaconInfo, now: UnixSeconds, limits: Limits
) -> None:
    """Both sides call it before they take part. Raises `Refused` with STALE or TOO_LATE."""
    expected = challenge_round(info, now, limits)
    if challenge.beacon.round != expected:
        raise Refused(Code.STALE, f"challenge: beacon: round {expected} is that of this period")
    late = now - round_time(info, expected)
    if late > limits.attestation_start_within:
        raise Refused(
            Code.TOO_LATE,
            f"challenge: it starts {late} s after its round, at most "
            f"{limits.attestation_start_within} s; wait for the next period",
        )
