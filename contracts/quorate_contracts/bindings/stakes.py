"""The Stakes contract: accounts, keys with their validity, stake slots per host class,
coordinator bonds (PROTOCOL §2).
"""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.bindings.calls import Call, Contract, Query
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, BlockNumber, Hash32, UnixSeconds

OPEN_BLOCK = BlockNumber(2**32 - 1)  # until_block of a slot that is open
PAGE = 64
OPEN_MAX = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a host class's list. It is active in block b if from_block <= b < until_block. A
    free entry has owner zero.
    """

    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32
    from_block: BlockNumber
    until_block: BlockNumber

    def is_active(self, block: int) -> bool:
        """Whether a draw as of this block may choose it."""
        return self.owner != ZERO_ADDRESS and self.from_block <= block < self.until_block


@dataclass(frozen=True, slots=True)
class Stakes(Contract):
    """Registrations and stake. Its address is the verifying contract of every signature."""

    NAME: ClassVar[str] = "Stakes"

    def register(
        self,
        operator_key: Address,
        payout: Address,
        peer_key: Hash32,
        box_key: Hash32,
        network: Hash32,
    ) -> Call:
        """Makes the sender a provider. `network`: an IPv4 /24 or IPv6 /48, not zero."""
        return self._call("register", 350_000, operator_key, payout, peer_key, box_key, network)

    def register_coordinator(self, statement_key: Address, posting_key: Address) -> Call:
        """Makes the sender a coordinator, after an approval of the bond."""
        return self._call("register_coordinator", 350_000, statement_key, posting_key)

    def rotate_key(self, key: Address) -> Call:
        """Replaces the operator (or statement) key. The old key stays valid for what it signed up
        to and including this second.
        """
        return self._call("rotate_key", 150_000, key)

    def change_payout(self, payout: Address) -> Call:
        """Changes the address that gets a provider's claims and credits."""
        return self._call("change_payout", 80_000, payout)

    def change_posting_key(self, key: Address) -> Call:
        """Changes the key that may post a coordinator's epochs."""
        return self._call("change_posting_key", 80_000, key)

    def open_slots(self, host_class: Hash32, count: int) -> Call:
        """Opens up to 16 slots, after an approval of their stake and of what a slash took."""
        assert 0 < count <= OPEN_MAX, f"1 to {OPEN_MAX} slots at once"
        return self._call("open_slots", 300_000 + 70_000 * count, host_class, count)

    def close_slot(self, host_class: Hash32, place: int) -> Call:
        """Closes a slot: no draw chooses it from the next block on. The unbonding delay starts."""
        return self._call("close_slot", 180_000, host_class, place)

    def unbond_slot(self, host_class: Hash32, place: int) -> Call:
        """After the delay, pays a closed slot's stake back."""
        return self._call("unbond_slot", 200_000, host_class, place)

    def retire_coordinator(self) -> Call:
        """Starts the unbonding delay of a coordinator's bond."""
        return self._call("retire_coordinator", 80_000)

    def unbond_coordinator(self) -> Call:
        """After the delay, pays a retired coordinator's bond back."""
        return self._call("unbond_coordinator", 120_000)

    def slot(self, host_class: Hash32, place: int) -> Query[Slot]:
        """One entry of the list, at the queried block."""
        return self._query("slot", Slot, host_class, place)

    def slot_page(self, host_class: Hash32, start: int) -> Query[tuple[Slot, ...]]:
        """Up to 64 entries from `start`."""
        return self._query(
            "slot_page", lambda page: tuple(Slot(*each) for each in page), host_class, start
        )

    def slot_count(self, host_class: Hash32) -> Query[int]:
        """Length of the list that draws index into, with free entries."""
        return self._query("slot_count", int, host_class)

    def owner_count(self, host_class: Hash32) -> Query[int]:
        """Distinct owners with an open slot."""
        return self._query("owner_count", int, host_class)

    def key_valid(self, account: Address, key: Address, at: UnixSeconds) -> Query[bool]:
        """Whether a key was valid at a time. Both ends are included."""
        return self._query("key_valid", bool, account, key, at)

    def key_range(self, account: Address, key: Address) -> Query[tuple[UnixSeconds, UnixSeconds]]:
        """First and last second of a key's validity. Zeros mean that it was never valid. A last
        second of 2**48 - 1 means that it still is.
        """
        return self._query(
            "key_range", lambda start, end: (UnixSeconds(start), UnixSeconds(end)), account, key
        )

    def operator_key(self, account: Address) -> Query[Address]:
        """The current operator key, or a coordinator's statement key."""
        return self._query("operator_key", Address, account)

    def posting_key(self, account: Address) -> Query[Address]:
        """The key that posts a coordinator's epochs; zero for other accounts."""
        return self._query("posting_key", Address, account)

    def payout_of(self, account: Address) -> Query[Address]:
        """A provider's payout address; zero for others."""
        return self._query("payout_of", Address, account)

    def network_of(self, account: Address) -> Query[Hash32]:
        """A provider's network; zero for others."""
        return self._query("network_of", Hash32, account)

    def index_of(self, account: Address) -> Query[int]:
        """Registration index, from 1; 0 if it has none."""
        return self._query("index_of", int, account)

    def account_at(self, index: int) -> Query[Address]:
        """The account of a registration index."""
        return self._query("account_at", Address, index)

    def stake_of(self, account: Address) -> Query[Amount]:
        """Stake of an account in slots, open or unbonding."""
        return self._query("stake_of", Amount, account)

    def bond_of(self, account: Address) -> Query[Amount]:
        """A coordinator's bond."""
        return self._query("bond_of", Amount, account)

    def retired_at(self, account: Address) -> Query[UnixSeconds]:
        """When a coordinator retired; 0 while it has not."""
        return self._query("retired_at", UnixSeconds, account)

    def frozen(self, account: Address) -> Query[int]:
        """Number of open cases against an account. While there is one, nothing unbonds."""
        return self._query("frozen", int, account)

    def domain_separator(self) -> Query[Hash32]:
        """EIP-712 domain separator. It must equal `eip712.Domain.separator()`."""
        return self._query("domain_separator", Hash32)
