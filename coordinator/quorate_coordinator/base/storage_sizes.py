"""How much the coordinator stores, and for how long.

Parts of the staging store are separate, so that uploads of one part cannot displace those of
another.
"""

from dataclasses import dataclass

from msgspec import Struct

from quorate_protocol.messages.job_spec import Resources
from quorate_protocol.units import Amount

MIB, GIB = 1 << 20, 1 << 30
USD = 1_000_000
STORE_BYTES_MIN = 50 * GIB  # if the operator sets no size
FLOOR_BYTES = 64 * MIB
OVERHEAD_BYTES = 1 << 20  # of a ciphertext beside its files
# of one entry beside its file's bytes: a name of up to 255, CIDs, and its place in the CAR
ENTRY_BYTES = 512
DAY_SECONDS = 86_400
# A coordinator's bond can be taken for 21 days, and a case takes longer (PROTOCOL §5).
LEAST_SECONDS = 23 * DAY_SECONDS


class Keeping(Struct, frozen=True):
    """How many bytes a file may have, and for how long it keeps its content."""

    bytes_max: int
    keep_seconds: int
    least_seconds: int = LEAST_SECONDS


@dataclass(frozen=True, slots=True)
class StagingQuota:
    """Half of the store is for outputs of executions, and a twenty-fifth for clients with almost
    no money. A fiftieth is for attestations of providers, and the rest for clients' uploads.

    A client may keep `bytes_per_usd` for each USD in its tab that is not spent, at most half of the
    part for uploads; with less than `floor_bytes` bought, that much in the small part. A full part
    deletes the oldest content of the owner that holds most in relation to its money.
    """

    store_bytes: int = STORE_BYTES_MIN
    bytes_per_usd: int = 4 * GIB
    floor_bytes: int = FLOOR_BYTES

    @property
    def outputs(self) -> int:
        return self.store_bytes // 2

    @property
    def small(self) -> int:
        return self.store_bytes // 25

    @property
    def attestations(self) -> int:
        return self.store_bytes // 50

    @property
    def uploads(self) -> int:
        return self.store_bytes - self.outputs - self.small - self.attestations

    @property
    def account(self) -> int:
        """The most that one client may keep, whatever its money."""
        return self.uploads // 2

    def bought(self, unspent: Amount) -> int:
        """Bytes that a client may keep for this much unspent money."""
        return min(self.account, unspent * self.bytes_per_usd // USD)


def ciphertext_most(resources: Resources) -> int:
    """Bytes, well above any ciphertext, however small and many its files are (I3)."""
    entries = resources.output_inodes * ENTRY_BYTES
    return 2 * (resources.output_bytes + OVERHEAD_BYTES + entries)
