"""The progress of a provider in one job class, which ends the hold of its unaudited jobs.

See PROTOCOL §5 Rate and Holding. It follows from accepted jobs alone (I10).
"""

from msgspec import Struct, field

from quorate_protocol.limits import TIERS, Limits
from quorate_protocol.units import PPM_ONE, Address, Price, VerifyTier

CLIENTS_BEFORE_SHARES = 4
SHARE_MAX = 4  # one client is at most a 4th


class Window(Struct, frozen=True):
    """A provider's progress, and the counts that limit how much one client can add to it.

    Clients' shares are counted over stretches of W jobs, one after the other. Once the provider has
    served four clients, at most W/4 jobs of one client count in a stretch. Counting over the last W
    jobs at each moment would need a list of W clients for each provider.
    """

    progress_ppm: int = 0  # never falls; a job adds at most one job (10^6)
    clients: tuple[Address, ...] = ()  # the first four that the provider served
    served: int = 0  # jobs of the present stretch
    shares: dict[Address, int] = field(default_factory=dict)  # of them, the counted jobs by client


def window_jobs(tier: VerifyTier, limits: Limits) -> int:
    """W: the count of further jobs that makes a job of this tier final."""
    return limits.window_jobs if limits.window_jobs is not None else TIERS[tier].window_jobs


def after_job(window: Window, client: Address, price: Price, median: Price, length: int) -> Window:
    """The window after one more accepted job of a client. The job adds min(1, price / class median)
    of a job, or nothing when the client already has its share of the stretch. `length` is W.
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
