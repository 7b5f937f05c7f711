"""Requests that an account signs and anyone may send to `Stakes` or `Escrow` (PROTOCOL 2.8).

The account needs no coin of the chain: it pays the sender at most `max_fee`, in tokens at Stakes
and out of its balance at Escrow. The order of the fields is the order in which they are signed.
"""

from quorate_protocol.readable import Readable
from quorate_protocol.units import Address, Amount, Hash32, Nonce, Sequence, Small, UnixSeconds


class RegisterRequest(Readable, frozen=True):
    """Account: it becomes a provider."""

    account: Address
    operator_key: Address
    payout: Address
    peer_key: Hash32
    box_key: Hash32
    network: Hash32
    nonce: Nonce  # an account's requests count from 0
    deadline: UnixSeconds  # the chain takes no request after it
    max_fee: Amount  # the most that the sender gets


class OpenSlotsRequest(Readable, frozen=True):
    """Account: it opens stake slots of a pool."""

    account: Address
    pool: Hash32
    count: Small
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class CloseSlotRequest(Readable, frozen=True):
    """Account: it closes one stake slot."""

    account: Address
    pool: Hash32
    place: Sequence  # in the list of the pool
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class UnbondSlotRequest(Readable, frozen=True):
    """Account: it takes back the stake of a slot that was closed long enough ago."""

    account: Address
    pool: Hash32
    place: Sequence  # in the list of the pool
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class ChangePayoutRequest(Readable, frozen=True):
    """Account: its money goes to another address."""

    account: Address
    payout: Address
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class ExitRequest(Readable, frozen=True):
    """Account: it leaves for good. A provider's slots close; the delay of a bond starts."""

    account: Address
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class LockRequest(Readable, frozen=True):
    """Account: a part of its balance is locked in its tab for a payee."""

    account: Address
    payee: Address
    amount: Amount
    nonce: Nonce  # Escrow counts requests of its own, from 0 too
    deadline: UnixSeconds
    max_fee: Amount


class CloseTabRequest(Readable, frozen=True):
    """Account: it closes its tab for a payee."""

    account: Address
    payee: Address
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class WithdrawRequest(Readable, frozen=True):
    """Account: so much of its balance goes to its payout address. The fee comes out of it."""

    account: Address
    amount: Amount
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


StakesRequest = (
    RegisterRequest
    | OpenSlotsRequest
    | CloseSlotRequest
    | UnbondSlotRequest
    | ChangePayoutRequest
    | ExitRequest
)
EscrowRequest = LockRequest | CloseTabRequest | WithdrawRequest
Request = StakesRequest | EscrowRequest
REQUEST_TYPES: dict[str, type] = {kind.__name__: kind for kind in Request.__args__}
