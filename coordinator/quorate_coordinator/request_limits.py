"""What one address, one account and everybody together may take of the coordinator. One place
for all of it.

Why by address and by account: an address is cheap to check and is all there is before a
signature was looked at; an account costs money, and the same account behind many addresses is
still one.
"""

from dataclasses import dataclass

from quorate_runtime.http.listener_limits import ListenerLimits

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds(ListenerLimits):
    """Rates are token buckets: `..._per_second` in the long run, `..._burst` at once."""

    address_per_second: float = 100.0
    address_burst: float = 1_000.0
    account_per_second: float = 100.0
    account_burst: float = 1_000.0
    buckets_max: int = 65_536  # accounts or addresses remembered; the longest unseen goes first
    streams_max: int = 2_000
    account_streams_max: int = 32
    body_seconds: float = 20.0  # until a request's body is in; uploads have their own
    # What a provider sends unasked is journaled, so it is bounded; what it answers is bounded by
    # what it was asked.
    unasked_per_second: float = 2.0
    unasked_burst: float = 60.0
    offences_per_second: float = 2.0  # frames that were refused
    offences_burst: float = 200.0
    log_bytes_per_second: float = 1.0 * MIB
    log_burst_bytes: float = 4.0 * MIB
    # What clients upload from one address; beyond it they are slowed down, not refused.
    upload_bytes_per_second: float = 8.0 * MIB
    upload_burst_bytes: float = 16.0 * 1024 * MIB
    address_uploads_max: int = 16  # at once


MAINNET_BOUNDS = Bounds()

# A devnet's whole market, some hundred providers and every client, comes from one address.
DEVNET_BOUNDS = Bounds(
    address_per_second=5_000.0,
    address_burst=20_000.0,
    account_per_second=2_000.0,
    account_burst=5_000.0,
    address_connections_max=4_096,
    unasked_per_second=20.0,
    unasked_burst=200.0,
    upload_bytes_per_second=1024.0 * MIB,
    address_uploads_max=48,
)

BOUNDS: dict[str, Bounds] = {"mainnet": MAINNET_BOUNDS, "devnet": DEVNET_BOUNDS}
"""By the name of the deployment's limits."""
