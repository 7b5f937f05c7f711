"""The times at which beacon rounds appear.

Round r appears at genesis_time + (r - 1) * period (drand's rule). The first round is 1.
"""

from msgspec import Struct

from quorate_protocol.limits import BEACON_AHEAD_MAX, BEACON_AHEAD_MIN
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Round, Seconds, UnixSeconds


def round_time(info: BeaconInfo, number: Round) -> UnixSeconds:
    """The moment (unix seconds) at which a round appears. Rounds below 1 do not exist."""
    assert number >= 1, f"no beacon round {number}"
    return UnixSeconds(info.genesis_time + (number - 1) * info.period)


def round_at(info: BeaconInfo, unix: int) -> Round:
    if unix < info.genesis_time:
        return Round(0)
    return Round((unix - info.genesis_time) // info.period + 1)


def first_round_after(info: BeaconInfo, unix: int) -> Round:
    """The first round that appears later than `unix`. At `unix` it is unknown to everybody."""
    return Round(round_at(info, unix) + 1)


class Timing(Struct, frozen=True):
    """The numbers of a deployment that fix which round draws a batch, and the least times between
    signed messages. A receipt holds them beside the beacon's key.
    """

    genesis: int  # unix seconds; round 1 appears then
    period: Seconds
    reveal_within: Seconds
    max_hold: Seconds
    accept_within: Seconds

    def later_round(self, closed_at: int) -> Round:
        """The round that draws the batch after one that was closed at `closed_at`.

        It is the first round that appears at least one period after the reveals of the closed
        batch were due (PROTOCOL §5 Batches).
        """
        return Round(
            max(0, -((self.genesis - closed_at - self.reveal_within - self.period) // self.period))
            + 1
        )

    def first_round(self, named: Round, stored_at: int) -> Round:
        """The round that draws batch 0.

        It is the one that the primary's Commit names, if that was 1 to 10 periods ahead when the
        coordinator stored the Commit. Else it is the first round 2 periods ahead.
        """
        newest = max(0, stored_at - self.genesis) // self.period + 1
        if newest + BEACON_AHEAD_MIN - 1 <= named <= newest + BEACON_AHEAD_MAX:
            return named
        return Round(newest + BEACON_AHEAD_MIN)

    def round_after_ack(self, ack_time: int) -> Round:
        """The round that draws all of batch 0 of a fast job: the first one 2 periods ahead of its
        Ack. The client has the Ack before it appears.
        """
        return self.first_round(Round(0), ack_time)

    def appears_at(self, number: int) -> UnixSeconds:
        return UnixSeconds(self.genesis + (number - 1) * self.period)
