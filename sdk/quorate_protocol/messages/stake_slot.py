"""One stake slot: an entry of a pool's list in the contract `Stakes`."""

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.units import Address, BlockNumber, Hash32

FOREVER = BlockNumber(2**48 - 1)


class StakeSlot(Struct, frozen=True):
    """One stake slot: an entry of a pool's list in the contract `Stakes`."""

    index: int  # position in the list
    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32
    active_from: BlockNumber  # the first block at which it is active
    active_until: BlockNumber = FOREVER  # the first block at which it is active no longer

    def is_active(self, block: BlockNumber) -> bool:
        return self.active_from <= block < self.active_until

    def entry(self) -> Hash32:
        """Hash of the slot in the eligible list. H(index, owner, operatorKey, payout, network,
        activeFrom, activeUntil).
        """
        return hash_tuple(
            self.index,
            self.owner,
            self.operator_key,
            self.payout,
            self.network,
            self.active_from,
            self.active_until,
        )
