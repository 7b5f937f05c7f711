"""A model of Escrow and Epochs in plain Python.

For each call it says what changes, or for which reason the contracts refuse it.
"""

from dataclasses import dataclass, field

from quorate_protocol.limits import DEVNET

RING = 32


class ModelRefused(Exception):
    """The model refuses a call. The message is the contract's reason."""


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise ModelRefused(reason)


@dataclass
class Account:
    """One client's account with one coordinator."""

    free: int = 0
    allocated: int = 0
    charged: int = 0
    up_to: int = 10**9  # terms of the session that signs vouchers
    expires: int = 10**12
    release: tuple[int, int] | None = None  # (amount, time from which it may be finished)
    withdrawal: tuple[int, int] | None = None


@dataclass
class Model:
    """Both contracts for one coordinator. Times are in seconds."""

    clients: list[Account]
    posted: list[tuple[int, tuple[int, ...], int]] = field(
        default_factory=list
    )  # per epoch: its time, final credits per provider, held credits of each
    claimed: dict[int, int] = field(default_factory=dict)
    paid: int = 0
    withdrawn: int = 0
    deposited: int = 0

    def deposit(self, client: int, amount: int) -> None:
        need(amount > 0, "amount")
        self.clients[client].free += amount
        self.deposited += amount

    def allocate(self, client: int, amount: int) -> None:
        who = self.clients[client]
        need(0 < amount <= who.free, "amount")
        who.free -= amount
        who.allocated += amount

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
        who.free += amount

    def request_withdrawal(self, client: int, amount: int, now: int) -> None:
        need(amount > 0, "amount")
        self.clients[client].withdrawal = (amount, now + DEVNET.withdrawal_delay)

    def finish_withdrawal(self, client: int, now: int) -> None:
        who = self.clients[client]
        need(who.withdrawal is not None and now >= who.withdrawal[1], "early")
        assert who.withdrawal is not None
        amount = min(who.withdrawal[0], who.free)
        who.withdrawal = None
        who.free -= amount
        self.withdrawn += amount

    def is_past(self, number: int, now: int) -> bool:
        return now >= self.posted[number - 1][0] + DEVNET.challenge_window

    def post(
        self,
        number: int,
        finals: tuple[int, ...],
        held: int,
        vouchers: list[tuple[int, int]],
        now: int,
    ) -> None:
        need(number == len(self.posted) + 1, "epoch")
        if self.posted:
            need(sum(finals) >= sum(self.posted[-1][1]), "stale")
        if number >= RING:
            need(self.is_past(number + 1 - RING, now), "early")
        for client, cumulative in vouchers:
            need(now <= self.clients[client].expires, "expired")
            need(cumulative <= self.clients[client].up_to, "amount")
        charged = {i: who.charged for i, who in enumerate(self.clients)}
        for client, cumulative in vouchers:
            need(cumulative >= charged[client], "stale")
            need(cumulative <= self.clients[client].allocated, "allocation")
            charged[client] = cumulative
        need(sum(finals) <= sum(charged.values()), "pool")
        need(
            sum(finals) + held * len(finals) <= sum(who.allocated for who in self.clients),
            "allocation",
        )
        for client, cumulative in charged.items():
            self.clients[client].charged = cumulative
        self.posted.append((now, finals, held))

    def claim(self, number: int, providers: list[int], now: int) -> None:
        need(
            0 < number <= len(self.posted)
            and number > len(self.posted) - RING
            and self.is_past(number, now),
            "early",
        )
        need(number == len(self.posted) or not self.is_past(number + 1, now), "stale")
        finals = self.posted[number - 1][1]
        coming = {
            each: finals[each] for each in providers if finals[each] > self.claimed.get(each, 0)
        }
        need(bool(coming), "amount")
        amount = sum(final - self.claimed.get(each, 0) for each, final in coming.items())
        need(self.paid + amount <= sum(who.charged for who in self.clients), "pool")
        self.paid += amount
        self.claimed |= coming
