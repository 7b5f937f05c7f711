"""The Stakes contract: accounts, keys with their validity, stake slots per host class,
coordinator bonds (PROTOCOL §2).
"""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_protocol.messages.requests import (
    ChangePayoutRequest,
    CloseSlotRequest,
    ExitRequest,
    OpenSlotsRequest,
    RegisterRequest,
    Request,
    UnbondSlotRequest,
)
from quorate_protocol.units import (
    ZERO_ADDRESS,
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Signature,
    UnixSeconds,
)

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
        """Changes the address that gets a provider's claims and credits, which belongs to no other
        account. The next change may come after two times `profile_delay`.
        """
        return self._call("change_payout", 150_000, payout)

    def change_network(self, network: Hash32) -> Call:
        """Changes a provider's network. Draws count the new one after `profile_delay`."""
        return self._call("change_network", 120_000, network)

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

    def relayed(self, request: Request, fee: Amount, signature: Signature) -> Call:
        """Does what an account signed. Anyone may send it, and gets `fee` of the account's tokens,
        at most the request's `max_fee`. The account must have approved fee and stake.
        """
        end = ((request.nonce, request.deadline, request.max_fee), fee, words(signature))
        who = request.account
        match request:
            case RegisterRequest():
                keys = (request.operator_key, request.payout, request.peer_key, request.box_key)
                return self._call("register_for", 450_000, (who, *keys, request.network), *end)
            case OpenSlotsRequest():
                gas, class_ = 400_000 + 70_000 * request.count, request.host_class
                return self._call("open_slots_for", gas, who, class_, request.count, *end)
            case CloseSlotRequest():
                slot = (request.host_class, request.place)
                return self._call("close_slot_for", 280_000, who, *slot, *end)
            case UnbondSlotRequest():
                slot = (request.host_class, request.place)
                return self._call("unbond_slot_for", 300_000, who, *slot, *end)
            case ChangePayoutRequest():
                return self._call("change_payout_for", 250_000, who, request.payout, *end)
            case ExitRequest():
                return self._call("exit_for", 500_000, who, *end)

    def exit(self) -> Call:
        """Closes every slot of a provider. A coordinator retires. The unbonding delay starts."""
        return self._call("exit", 400_000)

    def top_up(self, amount: Amount) -> Call:
        """Restores what a slash or a fine took of stake or bond, after an approval."""
        return self._call("top_up", 150_000, amount)

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

    def account_count(self) -> Query[int]:
        """Count of registered accounts, clients included."""
        return self._query("account_count", int)

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

    def is_bonded(self, coordinator: Address) -> Query[bool]:
        """Whether at least half of a coordinator's bond is there."""
        return self._query("is_bonded", bool, coordinator)

    def bonded_at(self, coordinator: Address, at: UnixSeconds) -> Query[bool]:
        """Whether a coordinator was registered and bonded at a time. Both ends are included. Of
        several times without a bond only the last one is known.
        """
        return self._query("bonded_at", bool, coordinator, at)

    def profile_at(self, account: Address, at: UnixSeconds) -> Query[tuple[Address, Hash32]]:
        """Payout and network that count in a draw as of a time, which is at most `profile_delay`
        ago.
        """
        return self._query(
            "profile_at", lambda payout, network: (Address(payout), Hash32(network)), account, at
        )

    def profile_changes(self, account: Address) -> Query[tuple[UnixSeconds, UnixSeconds]]:
        """From when on the newest payout and the newest network count in a draw. Zero means since
        the registration.
        """
        return self._query(
            "profile_changes",
            lambda payout, network: (UnixSeconds(payout), UnixSeconds(network)),
            account,
        )

    def open_slots_of(self, account: Address, host_class: Hash32) -> Query[int]:
        """Count of an account's open slots in a host class."""
        return self._query("open_slots_of", int, account, host_class)

    def held(self, account: Address) -> Query[int]:
        """Count of an account's slots, open or unbonding."""
        return self._query("held", int, account)

    def request_nonce(self, account: Address) -> Query[int]:
        """The nonce of the account's next relayed request."""
        return self._query("request_nonce", int, account)

    def frozen(self, account: Address) -> Query[int]:
        """Number of open cases against an account. While there is one, nothing unbonds."""
        return self._query("frozen", int, account)

    def domain_separator(self) -> Query[Hash32]:
        """EIP-712 domain separator. It must equal `eip712.Domain.separator()`."""
        return self._query("domain_separator", Hash32)
