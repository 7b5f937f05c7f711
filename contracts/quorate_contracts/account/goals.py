"""The calls by which an account gets what it wants, from what the chain says of it. Pure.

Every role uses them, whether it sends them, prints them for a key elsewhere, or signs them for a
relayer. What the chain has already is left out, so a repeated command goes on.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from quorate_contracts import encodings
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import OPEN_MAX
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.generated.escrow import Escrow
from quorate_contracts.generated.token import Token
from quorate_protocol.units import (
    ZERO_ADDRESS,
    Address,
    Amount,
    BlockNumber,
    Hash32,
    Signature,
    UnixSeconds,
)


class StakeSlot(Struct, frozen=True):
    """One stake slot of an owner. `back_at` is when its stake may be taken back; 0 means that the
    slot is open.
    """

    pool: Hash32
    place: int
    from_block: BlockNumber
    back_at: UnixSeconds


class Permit(Struct, frozen=True):
    """What an owner signed instead of an approval."""

    amount: Amount
    deadline: UnixSeconds
    sig: Signature


def open_slots(
    contracts: Contracts, short: Mapping[Hash32, int], stake: Amount, allowance: int = 0
) -> list[Call]:
    """Opens the slots that each pool is short of. `stake` is what they pull: theirs, and what
    was burned of others.
    """
    calls = _approved(contracts, stake, allowance) if short else []
    for pool, left in sorted(short.items()):
        for begun in range(0, left, OPEN_MAX):
            count = min(left - begun, OPEN_MAX)
            calls.append(contracts.stakes.open_slots(pool, count))
    return calls


def top_up(contracts: Contracts, lacks: Amount, allowance: int = 0) -> list[Call]:
    """Restores what was burned of a stake or bond."""
    if not lacks:
        return []
    return [*_approved(contracts, lacks, allowance), contracts.stakes.top_up(lacks)]


def close_slots(contracts: Contracts, slots: Iterable[StakeSlot]) -> list[Call]:
    stakes = contracts.stakes
    return [stakes.close_slot(slot.pool, slot.place) for slot in slots if not slot.back_at]


def take_back(contracts: Contracts, slots: Iterable[StakeSlot], now: UnixSeconds) -> list[Call]:
    """Takes back the stake of the closed ones that are due."""
    due = [slot for slot in slots if slot.back_at and slot.back_at <= now]
    return [contracts.stakes.unbond_slot(slot.pool, slot.place) for slot in due]


def withdraw(escrow: Escrow, balance: Amount, keep: int = 0) -> list[Call]:
    """Pays the balance in Escrow out, if it is more than `keep`."""
    return [escrow.withdraw(balance)] if balance > keep else []


def deposit(
    token: Token,
    escrow: Escrow,
    amount: Amount,
    payee: Address,
    allowance: int = 0,
    permit: Permit | None = None,
) -> list[Call]:
    """Puts tokens into the tab for `payee`, or into the balance if that is the zero address."""
    if permit is not None:
        r, s, v = Hash32(permit.sig[:32]), Hash32(permit.sig[32:64]), permit.sig[64]
        return [escrow.deposit_with_permit(amount, payee, permit.deadline, v, r, s)]
    approve = [token.approve(escrow.address, amount)] if allowance < amount else []
    return [*approve, escrow.deposit(amount, payee)]


def deposit_of(
    contracts: Contracts, amount: Amount, of: Address | None, allowance: int
) -> list[Call]:
    """Puts tokens into the own balance, or into that of the key `of`."""
    calls = deposit(contracts.token, contracts.escrow, amount, ZERO_ADDRESS, allowance)
    if of is not None:
        calls.append(contracts.escrow.pay(encodings.pairs([(of, amount)])))
    return calls


def _approved(contracts: Contracts, amount: Amount, allowance: int) -> list[Call]:
    stakes = contracts.stakes.address
    return [contracts.token.approve(stakes, amount)] if allowance < amount else []
