"""The staging store's parts, and how much of them money buys. Separate, so that none can take
the place of another.
"""

from dataclasses import dataclass

from quorate_protocol.units import Amount

MIB, GIB = 1 << 20, 1 << 30
USD = 1_000_000
STORE_BYTES = 50 * GIB
FLOOR_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class StagingQuota:
    """Half of the store is for outputs of executions, a twenty-fifth for clients with next to no
    money, the rest for clients' uploads.

    A client may keep `bytes_per_usd` for each USD that it has allocated and not spent, at most
    `account_bytes`. Who has less than that buys keeps `floor_bytes`, in the small part. Where a
    part is full, whoever holds most for its money yields.
    """

    store_bytes: int = STORE_BYTES
    account_bytes: int = 10 * GIB
    bytes_per_usd: int = 4 * GIB
    floor_bytes: int = FLOOR_BYTES

    @property
    def outputs(self) -> int:
        """Providers' ciphertexts."""
        return self.store_bytes // 2

    @property
    def small(self) -> int:
        """Uploads of clients with next to no money, all of them together."""
        return self.store_bytes // 25

    @property
    def uploads(self) -> int:
        """Other clients' uploads."""
        return self.store_bytes - self.outputs - self.small

    def bought(self, unspent: Amount) -> int:
        """Bytes that a client may keep for this much money, beyond the floor or not."""
        return min(self.account_bytes, self.uploads, unspent * self.bytes_per_usd // USD)
