"""The answer to GET /v1/market/history: supply, prices and volume by period and pool."""

from quorate_protocol.messages.classes import Pool
from quorate_protocol.readable import Readable
from quorate_protocol.units import Amount, Hash32, Price, UnixSeconds


class PriceBand(Readable, frozen=True):
    """Prices of one slot-hour, in millionths of a USD: the lowest, the median and the 90th
    percentile by nearest rank. Every slot on offer counts once.
    """

    least: Price
    median: Price
    p90: Price


class MarketPeriodView(Readable, frozen=True):
    """One pool in one hour or day, which begins at `start` (UTC).

    `slots`, `providers` and `prices` are those of the moment with the most slots in the period;
    `prices` is null when no slot was seen on offer. `jobs` were ordered in the period; the columns
    after it say what has become of them since. `unmatched`: orders that expired without a match.
    `charged`: millionths of a USD.
    """

    start: UnixSeconds
    pool_id: Hash32
    pool: Pool | None  # null if the coordinator does not know it
    slots: int
    providers: int
    prices: PriceBand | None
    jobs: int
    executions: int
    executions_per_job_ppm: int
    unmatched: int
    charged: Amount


class MarketHistory(Readable, frozen=True):
    """Periods in order of `start`, then of `poolId`. `next` continues the list as the query
    parameter `after`; null at its end.
    """

    by: str
    since: UnixSeconds
    until: UnixSeconds
    periods: tuple[MarketPeriodView, ...]
    next: str | None
