"""How far a provider has come in one job class: what ends the hold of its unaudited jobs
(PROTOCOL §5 Rate, Holding). A pure fold (I10).
"""

from msgspec import Struct, field

from quorate_protocol.limits import TIERS, Limits
from quorate_protocol.units import PPM_ONE, Address, Price, VerifyTier

CLIENTS_BEFORE_SHARES = 4
SHARE_MAX = 4  # one client is at most a 4th


class Window(Struct, frozen=True):
    """`progress_ppm` grows by at most one job (10^6) a job and never falls. The rest bounds what
    one client can add to it.

    Shares are counted over stretches of W jobs, one after the other: within each at most W/4 of
    one client count, once four have been served. Not over the last W jobs at each moment, which
    would take a list of W clients a provider.
    """

    progress_ppm: int = 0
    clients: tuple[Address, ...] = ()  # the first four
    served: int = 0  # jobs of the present stretch
    shares: dict[Address, int] = field(default_factory=dict)  # of them, by client


def window_jobs(tier: VerifyTier, limits: Limits) -> int:
    """W: how many further jobs make a job of this tier final."""
    return limits.window_jobs if limits.window_jobs is not None else TIERS[tier].window_jobs


def after_job(window: Window, client: Address, price: Price, median: Price, length: int) -> Window:
    """One accepted job more: min(1, price / class median) of a job, or nothing when the client
    has its share already.
    """
    clients = window.clients
    if client not in clients and len(clients) < CLIENTS_BEFORE_SHARES:
        clients = (*clients, client)
    mine = window.shares.get(client, 0)
    counts = len(clients) < CLIENTS_BEFORE_SHARES or mine < max(1, length // SHARE_MAX)
    weight = min(PPM_ONE, price * PPM_ONE // median) if median else PPM_ONE
    progress = window.progress_ppm + (weight if counts else 0)
    if window.served + 1 >= length:
        return Window(progress, clients)
    return Window(progress, clients, window.served + 1, {**window.shares, client: mine + 1})
