"""The Escrow contract: clients' deposits and allocations, coordinators' pools (PROTOCOL §4, §6)."""

from dataclasses import dataclass
from typing import ClassVar

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_protocol.units import Address, Amount, Signature, UnixSeconds


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a client has allocated to one coordinator. New orders may use allocated - charged, less
    what the client has promised off chain.
    """

    allocated: Amount
    charged: Amount  # cumulative debt by posted vouchers
    since: UnixSeconds  # first allocation; 0 = never
    releasing: Amount  # pending release
    release_at: UnixSeconds  # 0 = none pending


@dataclass(frozen=True, slots=True)
class Pool:
    """One coordinator's money: what all its clients allocated, what vouchers charged, and what
    claims paid.
    """

    allocated: Amount
    charged: Amount
    paid: Amount


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A pending withdrawal; zeros when there is none."""

    amount: Amount
    ready_at: UnixSeconds


@dataclass(frozen=True, slots=True)
class Escrow(Contract):
    """Holds the clients' money."""

    NAME: ClassVar[str] = "Escrow"

    def deposit(self, amount: Amount) -> Call:
        """Deposits tokens, after an approval. The first deposit gives the sender a registration
        index.
        """
        return self._call("deposit", 250_000, amount)

    def deposit_with_permit(
        self, amount: Amount, deadline: UnixSeconds, signature: Signature
    ) -> Call:
        """As deposit, with the sender's permit for this contract instead of an approval."""
        r, s, v = words(signature)
        return self._call(
            "deposit_with_permit",
            350_000,
            amount,
            deadline,
            v,
            r.to_bytes(32, "big"),
            s.to_bytes(32, "big"),
        )

    def allocate(self, coordinator: Address, amount: Amount) -> Call:
        """Turns free deposit into an allocation."""
        return self._call("allocate", 180_000, coordinator, amount)

    def request_release(self, coordinator: Address, amount: Amount) -> Call:
        """Announces the release of an allocation. It replaces a pending one."""
        return self._call("request_release", 90_000, coordinator, amount)

    def finish_release(self, coordinator: Address) -> Call:
        """After the delay, frees what vouchers left of the announced amount."""
        return self._call("finish_release", 120_000, coordinator)

    def request_withdrawal(self, amount: Amount) -> Call:
        """Announces a withdrawal of free deposit. It replaces a pending one."""
        return self._call("request_withdrawal", 90_000, amount)

    def finish_withdrawal(self) -> Call:
        """After the delay, pays what is still free of the announced amount."""
        return self._call("finish_withdrawal", 120_000)

    def free_of(self, client: Address) -> Query[Amount]:
        """Deposit that is not allocated."""
        return self._query("free_of", Amount, client)

    def allocation(self, client: Address, coordinator: Address) -> Query[Allocation]:
        """A client's allocation for a coordinator."""
        return self._query("allocation", Allocation, client, coordinator)

    def withdrawal(self, client: Address) -> Query[Withdrawal]:
        """A client's pending withdrawal."""
        return self._query("withdrawal", Withdrawal, client)

    def pool(self, coordinator: Address) -> Query[Pool]:
        """One coordinator's pool."""
        return self._query("pool", Pool, coordinator)
