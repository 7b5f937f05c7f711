"""What Settlement logs, and what Escrow logs when it pays settled credit."""

from dataclasses import dataclass

from quorate_protocol.codec.canonical import Json
from quorate_protocol.units import Address, Amount, Hash32


@dataclass(frozen=True, slots=True)
class CreditPaid:
    """Escrow: settled credits of an account went to its payout address."""

    account: Address
    receiver: Address
    amount: Amount


@dataclass(frozen=True, slots=True)
class SettlementOpened:
    """Settlement: somebody announced to settle a job. `opening` is read by
    `settlement.Opening.of`.
    """

    coordinator: Address
    client: Address
    opening: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class SettlementAnswered:
    """Settlement: an epoch credits one execution. `amount` is left; `opening` replaces the one
    before.
    """

    coordinator: Address
    client: Address
    job_id: Hash32
    provider: Address
    amount: Amount
    opening: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class SettlementOutvoted:
    """Settlement: as many executions gave another result, so this announcement is void."""

    coordinator: Address
    client: Address
    job_id: Hash32


@dataclass(frozen=True, slots=True)
class JobSettled:
    """Settlement: a job's providers were credited."""

    coordinator: Address
    client: Address
    job_id: Hash32
    amount: Amount


SettlementEvent = (
    CreditPaid | SettlementOpened | SettlementAnswered | SettlementOutvoted | JobSettled
)
