"""Bounds on what one address, one account and all together may ask of the coordinator.

An address is cheap to check, and before a signature is checked it is all there is. An account costs
money, and stays the same behind many addresses. So there are limits by both.
"""

from dataclasses import dataclass

from quorate_runtime.http.listener_limits import ListenerLimits

KIB, MIB = 1 << 10, 1 << 20
BODY_BYTES_MAX = 128 * KIB  # of a request: twice a spec's


@dataclass(frozen=True, slots=True)
class RequestBounds(ListenerLimits):
    """Rates have two fields: `..._per_second` in the long run, `..._burst` at once."""

    address_per_second: float = 100.0
    address_burst: float = 1_000.0
    account_per_second: float = 100.0
    account_burst: float = 1_000.0
    # Orders that their clients were not charged for (see `RequestRates.check_order`).
    orders_per_second: float = 1.0
    orders_burst: float = 1_024.0
    buckets_max: int = (
        65_536  # accounts or addresses remembered; the one unused for longest is dropped first
    )
    streams_max: int = 2_000
    account_streams_max: int = 32
    relays_max: int = 512  # streams to rentals; each takes up to a MiB
    account_relays_max: int = 32
    body_seconds: float = (
        20.0  # in which a request's body must arrive; uploads have their own limit
    )
    # Offers and heartbeats, which a provider sends without being asked. They are journaled, so they
    # are bounded. Its answers are bounded by the number of its assignments.
    unasked_per_second: float = 2.0
    unasked_burst: float = 60.0
    offences_per_second: float = 2.0  # frames that were refused
    offences_burst: float = 200.0
    log_bytes_per_second: float = 1.0 * MIB
    log_burst_bytes: float = 4.0 * MIB
    # What clients upload from one address; beyond it they are slowed down, not refused.
    upload_bytes_per_second: float = 8.0 * MIB
    upload_burst_bytes: float = 16.0 * 1024 * MIB
    address_uploads_max: int = 16  # uploads at once


MAINNET_BOUNDS = RequestBounds()

# A devnet's whole market, some hundred providers and every client, comes from one address.
DEVNET_BOUNDS = RequestBounds(
    address_per_second=5_000.0,
    address_burst=20_000.0,
    account_per_second=2_000.0,
    account_burst=5_000.0,
    orders_per_second=1_000.0,
    orders_burst=20_000.0,
    address_connections_max=4_096,
    unasked_per_second=20.0,
    unasked_burst=200.0,
    upload_bytes_per_second=1024.0 * MIB,
    address_uploads_max=48,
)

BOUNDS_BY_LIMITS: dict[str, RequestBounds] = {
    "mainnet": MAINNET_BOUNDS,
    "testnet": MAINNET_BOUNDS,
    "devnet": DEVNET_BOUNDS,
}
"""Name of the deployment's limits -> bounds."""
