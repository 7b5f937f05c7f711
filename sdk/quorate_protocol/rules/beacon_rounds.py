"""When beacon rounds appear: pure arithmetic over `BeaconInfo`.

Round r appears at genesis_time + (r - 1) * period (drand's rule); rounds start at 1.
"""

from msgspec import Struct

from quorate_protocol.ports import BeaconInfo
from quorate_protocol.units import Round, Seconds, UnixSeconds


def round_time(info: BeaconInfo, number: Round) -> UnixSeconds:
    """The moment (unix seconds) at which a round appears. Rounds below 1 do not exist."""
    assert number >= 1, f"no beacon round {number}"
    return UnixSeconds(info.genesis_time + (number - 1) * info.period)


def round_at(info: BeaconInfo, unix: int) -> Round:
    """The newest round that has appeared at `unix`; 0 before the first."""
    if unix < info.genesis_time:
        return Round(0)
    return Round((unix - info.genesis_time) // info.period + 1)


def first_round_after(info: BeaconInfo, unix: int) -> Round:
    """The first round that appears strictly later than `unix`: nobody can know it then."""
    return Round(round_at(info, unix) + 1)


class Timing(Struct, frozen=True):
    """What of a deployment says by which round a later batch is drawn. A receipt shows it, as it
    does the beacon's key.
    """

    genesis: int
    period: Seconds
    reveal_within: Seconds
    max_hold: Seconds

    def later_round(self, closed_at: int) -> Round:
        """The first round that appears a period or more after the reveals of a set closed then
        were due (PROTOCOL §5 Batches).
        """
        return Round(
            max(0, -((self.genesis - closed_at - self.reveal_within - self.period) // self.period))
            + 1
        )

    def appears_at(self, number: int) -> UnixSeconds:
        """The moment at which a round appears."""
        return UnixSeconds(self.genesis + (number - 1) * self.period)
