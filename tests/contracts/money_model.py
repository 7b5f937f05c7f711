"""A model of Escrow, Epochs and Challenges in plain Python.

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
class Credits:
    """What settlements credited to providers, by number, and what of it was paid out."""

    of: dict[int, int] = field(default_factory=dict)
    paid: int = 0


@dataclass
class Account:
    """One client's account with one coordinator."""

    wallet: Wallet = field(default_factory=Wallet)
    allocated: int = 0
    since: int = 0  # time of the first allocation
    charged: int = 0  # by vouchers and settlements
    settled: int = 0  # of it, by settlements: it never was in the pool
    nonce_floor: int = 0  # of the newest posted voucher
    remembered: tuple[int, int] | None = None  # terms of the session that Epochs keeps
    up_to: int = 10**9  # terms of the session that signs vouchers
    expires: int = 10**12
    signed_floor: int = 0  # nonce floor of the client's next vouchers
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
    rests: int = 0  # what a halted coordinator's pool gave back
    rested: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    exhausted: set[int] = field(default_factory=set)
    demands: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    floor: int = 0
    epoch_demand: tuple[int, int] | None = None  # number, time
    halted_at: int = 0
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
        return sum(who.charged - who.settled for who in self.clients)

    @property
    def allocated(self) -> int:
        """What the clients allocated, less what settlements took."""
        return sum(who.allocated - who.settled for who in self.clients)

    def deposit(self, client: int, amount: int) -> None:
        need(amount > 0, "amount")
        self.clients[client].wallet.free += amount
        self.deposited += amount

    def allocate(self, client: int, amount: int, now: int) -> None:
        who = self.clients[client]
        need(0 < amount <= who.wallet.free, "amount")
        need(not self.halted_at, "halted")
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

    def is_past(self, number: int, now: int) -> bool:
        return now >= self.posted[number - 1][0] + DEVNET.challenge_window

    def valid(self) -> list[int]:
        """Returns the numbers of the epochs that are not void, in order."""
        return [number for number in range(1, len(self.posted) + 1) if number not in self.void]

    def newest(self) -> tuple[int, ...]:
        """Returns the final credits of the newest epoch that is not void."""
        valid = self.valid()
        return self.posted[valid[-1] - 1][1] if valid else (0, 0, 0)

    def is_final(self, number: int, now: int) -> bool:
        """Whether an epoch that is not void can be void no more."""
        return self.is_past(number, now) and (not self.are_demands_open() or number < self.floor)

    def are_demands_open(self) -> bool:
        return any(asked not in self.void for asked, _ in self.demands)

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
            need(cumulative >= who.charged - who.settled, "stale")
            need(cumulative <= who.allocated, "allocation")
            charged[client] = max(who.charged, cumulative)
        pool = sum(charged.values()) - sum(who.settled for who in self.clients)
        need(sum(finals) <= pool, "pool")
        need(sum(finals) + held * len(finals) <= self.allocated, "allocation")
        for client, cumulative in charged.items():
            self.clients[client].charged = cumulative
        for client, _ in vouchers:
            who = self.clients[client]
            who.nonce_floor = max(who.nonce_floor, who.signed_floor)
            who.remembered = (who.up_to, who.expires)
        self.posted.append((now, finals, held))
        if sum(finals) == pool:
            self.exhausted.add(len(self.posted))

    def punish(self, number: int, now: int) -> None:
        """An epoch that is not final becomes void, with all after it, and the bond pays."""
        need(number in self.valid(), "epoch")
        need(not self.is_final(number, now), "late")
        self.void |= set(range(number, len(self.posted) + 1))
        self.lose_bond(DEVNET.void_penalty, now)

    def challenge_statement(
        self, number: int, epoch: int, provider: int, final: int, now: int
    ) -> None:
        need(epoch <= number, "epoch")
        need(number in self.valid(), "epoch")
        _, finals, held = self.posted[number - 1]
        covered = finals[provider] >= final or (
            number in self.exhausted and finals[provider] + held >= final
        )
        need(not covered, "covered")
        self.punish(number, now)

    def challenge_leaf(self, number: int, old: int, provider: int, now: int) -> None:
        need(old < number, "epoch")
        need(number in self.valid() and old in self.valid(), "epoch")
        need(self.posted[number - 1][1][provider] < self.posted[old - 1][1][provider], "covered")
        self.punish(number, now)

    def demand_leaf(self, number: int, provider: int, final: int, now: int) -> None:
        need((number, provider) not in self.demands, "phase")
        need(final > 0, "amount")
        need(number in self.valid(), "epoch")
        need(not self.is_past(number, now), "late")
        self.floor = min(self.floor, number) if self.are_demands_open() else number
        self.demands[number, provider] = (final, now + DEVNET.challenge_response)

    def answer(self, number: int, provider: int, shown_in: int, now: int) -> None:
        need((number, provider) in self.demands, "phase")
        due, by = self.demands[number, provider]
        need(now <= by, "late")
        need(shown_in >= number, "epoch")
        need(shown_in in self.valid(), "epoch")
        need(self.posted[shown_in - 1][1][provider] >= due, "amount")
        del self.demands[number, provider]

    def close_demand(self, number: int, provider: int, now: int) -> None:
        need((number, provider) in self.demands, "phase")
        if number in self.valid():
            need(now > self.demands[number, provider][1], "early")
            self.punish(number, now)
        del self.demands[number, provider]

    def demand_epoch(self, epoch: int, now: int) -> None:
        need(not self.halted_at, "halted")
        need(self.epoch_demand is None, "phase")
        need((self.valid() or [0])[-1] < epoch, "covered")
        self.epoch_demand = (epoch, now + DEVNET.halt_after)

    def halt(self, now: int) -> None:
        need(self.epoch_demand is not None, "phase")
        assert self.epoch_demand is not None
        need(now > self.epoch_demand[1], "early")
        need((self.valid() or [0])[-1] < self.epoch_demand[0], "covered")
        self.epoch_demand, self.halted_at = None, now
        self.set_bond(0, now)

    def release_halted(self, client: int, now: int) -> None:
        need(self.halted_at != 0 and now >= self.halted_at + DEVNET.halt_settle, "early")
        who = self.clients[client]
        need(who.allocated > who.charged, "amount")
        who.wallet.free += who.allocated - who.charged
        who.allocated, who.release = who.charged, None

    def take_rest(self, client: int, now: int) -> None:
        need(self.halted_at != 0 and now >= self.halted_at + DEVNET.halt_held, "early")
        valid = self.valid()
        need(not valid or self.is_final(valid[-1], now), "early")
        charged, who = self.pool, self.clients[client]
        owed, helds = (sum(self.newest()), 3 * self.posted[valid[-1] - 1][2]) if valid else (0, 0)
        rest = charged - owed - min(charged - owed, helds)
        need(client not in self.rested, "amount")
        share = rest * (who.charged - who.settled) // max(charged, 1)
        need(share > 0, "amount")
        self.rested.add(client)
        who.wallet.free += share
        self.rests += share

    def credits(self, number: int, now: int) -> tuple[int, ...]:
        """Returns what an epoch pays each provider: after a halt held credits too."""
        _, finals, held = self.posted[number - 1]
        is_last = number == self.valid()[-1]
        if (
            not (self.halted_at and is_last and now >= self.halted_at + DEVNET.halt_held)
            or not held
        ):
            return finals
        left = self.pool - sum(finals)
        backed = min(3 * held, left)
        return tuple(final + held * backed // (3 * held) for final in finals)

    def claim(self, number: int, providers: list[int], now: int) -> None:
        valid = self.valid()
        need(number in valid and self.is_final(number, now), "early")
        later = [each for each in valid if each > number]
        need(not later or not self.is_final(later[0], now), "stale")
        finals = self.credits(number, now)
        coming = {
            each: finals[each] for each in providers if finals[each] > self.claimed.get(each, 0)
        }
        need(bool(coming), "amount")
        amount = sum(final - self.claimed.get(each, 0) for each, final in coming.items())
        need(self.paid + self.rests + amount <= self.pool, "pool")
        self.paid += amount
        self.claimed |= coming

    def settle(self, debts: list[tuple[int, int, int, int]]) -> None:
        """Takes debts of single jobs: client, nonce, amount, and what its session signs for."""
        charged = [who.charged for who in self.clients]
        for client, nonce, amount, up_to in debts:
            who = self.clients[client]
            need(nonce >= who.nonce_floor, "covered")
            charged[client] += amount
            need(charged[client] <= who.allocated, "allocation")
            need(charged[client] <= up_to, "amount")
        for client, _, amount, _ in debts:
            self.clients[client].charged += amount
            self.clients[client].settled += amount
