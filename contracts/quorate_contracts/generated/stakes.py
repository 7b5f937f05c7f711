"""Calls, queries and events of `Stakes`.

Written by `binding_writer` from the contract; do not edit it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.generated.contract_calls import (
    Call,
    Contract,
    Query,
    one,
    struct_of,
    structs_of,
    values,
)
from quorate_protocol.units import (
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Nonce,
    Seconds,
    Signature,
    UnixSeconds,
)


@dataclass(frozen=True, slots=True)
class Registration:
    """What `Stakes` calls wanted."""

    account: Address
    operator_key: Address
    payout: Address
    peer_key: Hash32
    box_key: Hash32
    network: Hash32


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """What `Stakes` calls terms."""

    nonce: Nonce
    deadline: UnixSeconds
    max_fee: int


@dataclass(frozen=True, slots=True)
class Slot:
    """What `Stakes` calls slot."""

    owner: Address
    operator_key: Address
    payout: Address
    network: Hash32
    from_block: BlockNumber
    until_block: BlockNumber


@dataclass(frozen=True, slots=True)
class Lot:
    """What `Stakes` calls lot."""

    pool: Hash32
    length: int
    seed: Hash32
    at_block: BlockNumber
    opened_by: int
    profiles_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class Registered:
    """An event of `Stakes`."""

    account: Address
    operator_key: Address
    payout: Address
    peer_key: Hash32
    box_key: Hash32
    network: Hash32


@dataclass(frozen=True, slots=True)
class CoordinatorRegistered:
    """An event of `Stakes`."""

    account: Address
    statement_key: Address
    posting_key: Address


@dataclass(frozen=True, slots=True)
class KeyRotated:
    """An event of `Stakes`."""

    account: Address
    key: Address


@dataclass(frozen=True, slots=True)
class PayoutChanged:
    """An event of `Stakes`."""

    account: Address
    payout: Address


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """An event of `Stakes`."""

    account: Address
    network: Hash32


@dataclass(frozen=True, slots=True)
class PostingKeyChanged:
    """An event of `Stakes`."""

    account: Address
    key: Address


@dataclass(frozen=True, slots=True)
class Announced:
    """An event of `Stakes`."""

    coordinator: Address
    peer_key: Hash32
    addresses: bytes


@dataclass(frozen=True, slots=True)
class Unbonded:
    """An event of `Stakes`."""

    account: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class SlotOpened:
    """An event of `Stakes`."""

    pool: Hash32
    account: Address
    place: int
    from_block: BlockNumber


@dataclass(frozen=True, slots=True)
class SlotClosed:
    """An event of `Stakes`."""

    pool: Hash32
    account: Address
    place: int
    until_block: BlockNumber


@dataclass(frozen=True, slots=True)
class Exited:
    """An event of `Stakes`."""

    account: Address


@dataclass(frozen=True, slots=True)
class ToppedUp:
    """An event of `Stakes`."""

    account: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class Burned:
    """An event of `Stakes`."""

    account: Address
    amount: Amount
    reward: Amount
    out_block: BlockNumber


@dataclass(frozen=True, slots=True)
class Stakes(Contract):
    """The contract `Stakes`."""

    NAME: ClassVar[str] = "Stakes"

    def coordinator_bond(self) -> Query[Amount]:
        return self._query("COORDINATOR_BOND", one)

    def bond_of(self, arg0: Address) -> Query[Amount]:
        return self._query("bond_of", one, arg0)

    def is_bonded(self, coordinator: Address) -> Query[bool]:
        return self._query("is_bonded", one, coordinator)

    def bonded_at(self, coordinator: Address, at: UnixSeconds) -> Query[bool]:
        return self._query("bonded_at", one, coordinator, at)

    def operator_key(self, arg0: Address) -> Query[Address]:
        return self._query("operator_key", one, arg0)

    def key_valid(self, account: Address, key: Address, at: UnixSeconds) -> Query[bool]:
        return self._query("key_valid", one, account, key, at)

    def key_range(self, account: Address, key: Address) -> Query[tuple[int, int]]:
        return self._query("key_range", values, account, key)

    def profile_delay(self) -> Query[int]:
        return self._query("PROFILE_DELAY", one)

    def payout_of(self, arg0: Address) -> Query[Address]:
        return self._query("payout_of", one, arg0)

    def network_of(self, account: Address) -> Query[Hash32]:
        return self._query("network_of", one, account)

    def out_block(self, account: Address) -> Query[BlockNumber]:
        return self._query("out_block", one, account)

    def profile_at(self, account: Address, at: UnixSeconds) -> Query[tuple[Address, Hash32]]:
        return self._query("profile_at", values, account, at)

    def profile_changes(self, account: Address) -> Query[tuple[int, int]]:
        return self._query("profile_changes", values, account)

    def slot_count(self, arg0: Hash32) -> Query[int]:
        return self._query("slot_count", one, arg0)

    def owner_count(self, arg0: Hash32) -> Query[int]:
        return self._query("owner_count", one, arg0)

    def held(self, arg0: Address) -> Query[int]:
        return self._query("held", one, arg0)

    def open_slots_of(self, account: Address, pool: Hash32) -> Query[int]:
        return self._query("open_slots_of", one, account, pool)

    def register(
        self,
        operator_key: Address,
        payout: Address,
        peer_key: Hash32,
        box_key: Hash32,
        network: Hash32,
    ) -> Call:
        """The sender becomes a provider (and its owner). Peer and box key are only published
        here: the chain never uses them.
        """
        return self._call("register", operator_key, payout, peer_key, box_key, network)

    def register_coordinator(self, statement_key: Address, posting_key: Address) -> Call:
        """The sender becomes a coordinator and puts up its bond. An account has one role, so no
        key can answer for two.
        """
        return self._call("register_coordinator", statement_key, posting_key)

    def rotate_key(self, key: Address) -> Call:
        """A new operator (or statement) key from this second on; the old one still answers for
        what it signed, this second included.
        """
        return self._call("rotate_key", key)

    def change_payout(self, payout: Address) -> Call:
        """Where the money of this provider goes, at once. Draws count it after PROFILE_DELAY."""
        return self._call("change_payout", payout)

    def change_network(self, network: Hash32) -> Call:
        """The network in which this provider is reached. Draws count it after PROFILE_DELAY."""
        return self._call("change_network", network)

    def change_posting_key(self, key: Address) -> Call:
        """Who may pay for this coordinator and announce it. It signs nothing, so it needs no
        history.
        """
        return self._call("change_posting_key", key)

    def announce(self, coordinator: Address, peer_key: Hash32, addresses: bytes) -> Call:
        """Where peers reach a coordinator, for programs that know only the chain. Sent by its
        posting key while its bond is here.
        """
        return self._call("announce", coordinator, peer_key, addresses)

    def unbond_coordinator(self) -> Call:
        """Pays the bond back once the delay has passed. The account keeps its index and its key
        history.
        """
        return self._call("unbond_coordinator")

    def open_slots(self, pool: Hash32, count: int) -> Call:
        """Opens slots from the next block on. What was burned of held slots is staked again with
        them.
        """
        return self._call("open_slots", pool, count)

    def close_slot(self, pool: Hash32, place: int) -> Call:
        """The slot is not drawn from the next block on; its stake answers until it is unbonded."""
        return self._call("close_slot", pool, place)

    def unbond_slot(self, pool: Hash32, place: int) -> Call:
        """Pays a closed slot's stake back after the delay and frees its place. The first slot
        that leaves bears what was burned.
        """
        return self._call("unbond_slot", pool, place)

    def exit(self) -> Call:
        """Leaves for good: every slot of a provider closes from the next block on; the delay of
        a coordinator's bond starts.
        """
        return self._call("exit")

    def top_up(self, amount: Amount) -> Call:
        """Restores what was burned of the sender's stake or bond, without opening a slot."""
        return self._call("top_up", amount)

    def register_for(
        self, wanted: Registration, terms: RequestTerms, fee: Amount, sig: Signature
    ) -> Call:
        """As `register`, signed by the account and sent by anyone, who gets `fee` of the
        account's tokens.
        """
        return self._call("register_for", wanted, terms, fee, sig)

    def open_slots_for(
        self,
        account: Address,
        pool: Hash32,
        count: int,
        terms: RequestTerms,
        fee: Amount,
        sig: Signature,
    ) -> Call:
        """As `open_slots`, relayed."""
        return self._call("open_slots_for", account, pool, count, terms, fee, sig)

    def close_slot_for(
        self,
        account: Address,
        pool: Hash32,
        place: int,
        terms: RequestTerms,
        fee: Amount,
        sig: Signature,
    ) -> Call:
        """As `close_slot`, relayed."""
        return self._call("close_slot_for", account, pool, place, terms, fee, sig)

    def unbond_slot_for(
        self,
        account: Address,
        pool: Hash32,
        place: int,
        terms: RequestTerms,
        fee: Amount,
        sig: Signature,
    ) -> Call:
        """As `unbond_slot`, relayed. The fee may come from the stake that is paid back, so it is
        paid last.
        """
        return self._call("unbond_slot_for", account, pool, place, terms, fee, sig)

    def change_payout_for(
        self, account: Address, payout: Address, terms: RequestTerms, fee: Amount, sig: Signature
    ) -> Call:
        """As `change_payout`, relayed."""
        return self._call("change_payout_for", account, payout, terms, fee, sig)

    def exit_for(self, account: Address, terms: RequestTerms, fee: Amount, sig: Signature) -> Call:
        """As `exit`, relayed."""
        return self._call("exit_for", account, terms, fee, sig)

    def burn(
        self, account: Address, is_bond: bool, amount: Amount, reward: Amount, receiver: Address
    ) -> Call:
        """Court and Faults only: takes at most `amount` of a provider's stake or a coordinator's
        bond, and returns what was taken. It is never more than one slot's stake. The receiver
        gets `reward` of it, at most half. The rest stays here, and nothing can move it. Slots
        stay open as long as half of their stake is left.
        """
        return self._call("burn", account, is_bond, amount, reward, receiver)

    def domain_separator(self) -> Query[Hash32]:
        """EIP-712 domain of every message; recomputed, so that a forked chain gets its own."""
        return self._query("domain_separator", one)

    def slot(self, pool: Hash32, place: int) -> Query[Slot]:
        """One place of the list; owner zero when it is free."""
        return self._query("slot", struct_of(Slot), pool, place)

    def slot_page(self, pool: Hash32, start: int) -> Query[tuple[Slot, ...]]:
        """Up to 64 places from `start`."""
        return self._query("slot_page", structs_of(Slot), pool, start)

    def owners_apart(self, pool: Hash32, parties: Sequence[Address]) -> Query[tuple[int, int]]:
        """Owners with open slots in a class, without the parties of a case, and the length of
        the class's list.
        """
        return self._query("owners_apart", values, pool, parties)

    def draw(
        self, lot: Lot, want: int, start: int, parties: Sequence[Address], drawn: Sequence[Address]
    ) -> Query[tuple[tuple[Address, ...], int]]:
        """Up to `want` owners, and the try with which the next call goes on; see `draws`."""
        return self._query("draw", values, lot, want, start, parties, drawn)

    def token(self) -> Query[Address]:
        return self._query("TOKEN", one)

    def court(self) -> Query[Address]:
        return self._query("COURT", one)

    def faults(self) -> Query[Address]:
        return self._query("FAULTS", one)

    def slot_stake(self) -> Query[Amount]:
        return self._query("SLOT_STAKE", one)

    def unbond_after(self) -> Query[Seconds]:
        return self._query("UNBOND_AFTER", one)

    def role_of(self, arg0: Address) -> Query[int]:
        return self._query("role_of", one, arg0)

    def exited_at(self, arg0: Address) -> Query[int]:
        return self._query("exited_at", one, arg0)

    def posting_key(self, arg0: Address) -> Query[Address]:
        return self._query("posting_key", one, arg0)

    def stake_of(self, arg0: Address) -> Query[Amount]:
        return self._query("stake_of", one, arg0)

    def request_nonce(self, arg0: Address) -> Query[Nonce]:
        return self._query("request_nonce", one, arg0)


EVENTS: tuple[type, ...] = (
    Registered,
    CoordinatorRegistered,
    KeyRotated,
    PayoutChanged,
    NetworkChanged,
    PostingKeyChanged,
    Announced,
    Unbonded,
    SlotOpened,
    SlotClosed,
    Exited,
    ToppedUp,
    Burned,
)
