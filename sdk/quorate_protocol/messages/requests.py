"""Requests that an account signs and anyone may send to `Stakes` (PROTOCOL 2.8).

The account needs no coin of the chain: it pays the sender in tokens, at most `max_fee`. The order
of the fields is the order in which they are signed, as in `signed`.
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
    """Account: it opens stake slots of a host class."""

    account: Address
    host_class: Hash32
    count: Small
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class CloseSlotRequest(Readable, frozen=True):
    """Account: it closes one stake slot."""

    account: Address
    host_class: Hash32
    place: Sequence  # in the list of the host class
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class UnbondSlotRequest(Readable, frozen=True):
    """Account: it takes back the stake of a slot that was closed long enough ago."""

    account: Address
    host_class: Hash32
    place: Sequence  # in the list of the host class
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class ChangePayoutRequest(Readable, frozen=True):
    """Account: its claims and credits go to another address."""

    account: Address
    payout: Address
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


class ExitRequest(Readable, frozen=True):
    """Account: a provider closes all its slots, or a coordinator retires."""

    account: Address
    nonce: Nonce
    deadline: UnixSeconds
    max_fee: Amount


Request = (
    RegisterRequest
    | OpenSlotsRequest
    | CloseSlotRequest
    | UnbondSlotRequest
    | ChangePayoutRequest
    | ExitRequest
)
REQUEST_TYPES: dict[str, type] = {kind.__name__: kind for kind in Request.__args__}
