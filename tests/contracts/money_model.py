"""A model of Escrow and Epochs in plain Python.

For each call it says what changes, or for which reason the contracts refuse it.
"""

from dataclasses import dataclass, field

from quorate_protocol.limits import DEVNET

RING = 256


class ModelRefused(Exception):
    """The model refuses a call. The message is the contract's reason."""


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise ModelRefused(reason)


@dataclass
class Wallet:
    """One client's deposit, which all coordinators share."""

    free: int = 0
    withdrawal: tuple[int, int] | None = None  # (amount, time from which it may be finished)


@dataclass
class Account:
    """One client's account with one coordinator."""

    wallet: Wallet = field(default_factory=Wallet)
    allocated: int = 0
    since: int = 0  # time of the first allocation
    charged: int = 0  # by vouchers
    remembered: tuple[int, int] | None = None  # terms of the session that Epochs keeps
    up_to: int = 10**9  # terms of the session that signs vouchers
    expires: int = 10**12
    release: tuple[int, int] | None = None  # (amount, time from which it may be finished)


@dataclass
class Model:
    """These contracts for one coordinator. Times are in seconds."""

    clients: list[Account]
    posted: list[tuple[int, tuple[int, ...], int]] = field(
        default_factory=list
    )  # per epoch: its time, final credits per provider, held credits of each
    claimed: dict[int, int] = field(default_factory=dict)
    paid: int = 0
    withdrawn: int = 0
    deposited: int = 0
    bond: int = DEVNET.coordinator_bond
    bond_lost: int = 0  # when less than half was left; 0 = never
    bond_restored: int = 0  # after that; 0 = it was not
    retired_at: int = 0

    @property
    def is_bonded(self) -> bool:
        return self.bond * 2 >= DEVNET.coordinator_bond

    def set_bond(self, bond: int, now: int) -> None:
        before, self.bond = self.is_bonded, bond
        if before and not self.is_bonded:
            self.bond_lost, self.bond_restored = now, 0
        elif not before and self.is_bonded:
            self.bond_restored = now

    def lose_bond(self, amount: int, now: int) -> int:
        """Takes at most `amount` of the bond; returns what was taken."""
        taken = min(self.bond, amount)
        self.set_bond(self.bond - taken, now)
        return taken

    def was_bonded(self, at: int) -> bool:
        """Whether the bond was there at a moment, inclusive. Of several times without it the last
        one counts.
        """
        restored = self.bond_restored and at >= self.bond_restored
        return not self.bond_lost or at <= self.bond_lost or bool(restored)

    @property
    def pool(self) -> int:
        """What vouchers brought in."""
        return sum(who.charged for who in self.clients)

    @property
    def allocated(self) -> int:
        """What the clients allocated."""
        return sum(who.allocated for who in self.clients)

    def deposit(self, client: int, amount: int) -> None:
        need(amount > 0, "amount")
        self.clients[client].wallet.free += amount
        self.deposited += amount

    def allocate(self, client: int, amount: int, now: int) -> None:
        who = self.clients[client]
        need(0 < amount <= who.wallet.free, "amount")
        who.wallet.free -= amount
        who.allocated += amount
        who.since = who.since or now

    def request_release(self, client: int, amount: int, now: int) -> None:
        need(amount > 0, "amount")
        self.clients[client].release = (amount, now + DEVNET.allocation_release)

    def finish_release(self, client: int, now: int) -> None:
        who = self.clients[client]
        need(who.release is not None and now >= who.release[1], "early")
        assert who.release is not None
        amount = min(who.release[0], who.allocated - who.charged)
        who.release = None
        who.allocated -= amount
        who.wallet.free += amount

    def request_withdrawal(self, client: int, amount: int, now: int) -> None:
        need(amount > 0, "amount")
        self.clients[client].wallet.withdrawal = (amount, now + DEVNET.withdrawal_delay)

    def finish_withdrawal(self, client: int, now: int) -> None:
        who = self.clients[client]
        need(who.wallet.withdrawal is not None and now >= who.wallet.withdrawal[1], "early")
        assert who.wallet.withdrawal is not None
        amount = min(who.wallet.withdrawal[0], who.wallet.free)
        who.wallet.withdrawal = None
        who.wallet.free -= amount
        self.withdrawn += amount

    def newest(self) -> tuple[int, ...]:
        """Returns the final credits of the newest epoch."""
        return self.posted[-1][1] if self.posted else (0, 0, 0)

    def is_final(self, number: int, now: int) -> bool:
        """Whether an epoch's window is over."""
        return now >= self.posted[number - 1][0] + DEVNET.challenge_window

    def post(
        self,
        number: int,
        finals: tuple[int, ...],
        held: int,
        vouchers: list[tuple[int, int]],
        now: int,
    ) -> None:
        need(self.is_bonded, "bond")
        need(number == len(self.posted) + 1, "epoch")
        need(sum(finals) >= sum(self.newest()), "stale")
        assert number <= RING, "walks are shorter than the ring"
        for client, cumulative in vouchers:
            need(now <= self.clients[client].expires, "expired")
            need(cumulative <= self.clients[client].up_to, "amount")
        charged = {i: who.charged for i, who in enumerate(self.clients)}
        for client, cumulative in vouchers:
            who = self.clients[client]
            need(cumulative >= who.charged, "stale")
            need(cumulative <= who.allocated, "allocation")
            charged[client] = cumulative
        pool = sum(charged.values())
        need(sum(finals) <= pool, "pool")
        need(sum(finals) + held * len(finals) <= self.allocated, "allocation")
        for client, cumulative in charged.items():
            self.clients[client].charged = cumulative
        for client, _ in vouchers:
            who = self.clients[client]
            who.remembered = (who.up_to, who.expires)
        self.posted.append((now, finals, held))

    def claim(self, number: int, providers: list[int], now: int) -> None:
        need(self.is_final(number, now), "early")
        need(number == len(self.posted) or not self.is_final(number + 1, now), "stale")
        _, finals, _ = self.posted[number - 1]
        coming = {
            each: finals[each] for each in providers if finals[each] > self.claimed.get(each, 0)
        }
        need(bool(coming), "amount")
        amount = sum(final - self.claimed.get(each, 0) for each, final in coming.items())
        need(self.paid + amount <= self.pool, "pool")
        self.paid += amount
        self.claimed |= coming
