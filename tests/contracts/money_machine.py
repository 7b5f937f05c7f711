"""Drives Escrow and Epochs and a model of both with the same calls, at boundary times.

Two coordinators have the same clients and providers, and share the clients' deposits.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.evm import Mined, Reverted
from contracts.market import ACCUSER, BOSS, COORDINATOR, POSTER, STATEMENT, Key, Market, key, market
from contracts.money_model import Account, Model, ModelRefused, Wallet
from quorate_contracts.bindings.calls import Call
from quorate_protocol.limits import DEVNET
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32

SECOND = key("second coordinator")
COORDINATORS = (
    (COORDINATOR, STATEMENT, POSTER),
    (SECOND, key("second statement key"), key("second posting key")),
)
CLIENTS = [key("client0"), key("client1")]
OWNERS = [key(f"owner{i}").address for i in range(3)]
WINDOW, RELEASE, WITHDRAWAL = (
    DEVNET.challenge_window,
    DEVNET.allocation_release,
    DEVNET.withdrawal_delay,
)
WATCHER = ACCUSER.address
AMOUNTS = st.sampled_from([0, 1, 99, 100, 101, 1000])
TIMES = st.sampled_from(
    [1, WINDOW - 1, WINDOW, WINDOW + 1, WITHDRAWAL - 1, WITHDRAWAL, RELEASE - 1, RELEASE]
)


def peopled(world: Market) -> Market:
    for number in range(3):
        world.provider(number, slots=0)
    for who in (*CLIENTS, ACCUSER):
        world.fund(who)
    second, statement, poster = COORDINATORS[1]
    world.fund(second)
    call = world.contracts.stakes.register_coordinator(statement.address, poster.address)
    world.evm.send(second.address, call)
    world.evm.travel(200)  # all keys are older than any evidence
    return world


@lru_cache(maxsize=4)
def _market_after(people: Callable[[Market], Market]) -> Market:
    return people(market())


@dataclass
class Side:
    """One coordinator: its keys, the model of its money, and the leaves of its epochs."""

    coordinator: Key
    statement_key: Key
    poster: Key
    model: Model
    trees: list[list[Leaf]] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)  # what a provider had claimed before


class Money(RuleBasedStateMachine):
    """A state machine in which each rule does the same to contracts and model, and expects the
    same answer.
    """

    steps = 0  # of all runs in this process
    reasons: ClassVar[Counter[str]] = Counter()  # of refusals, in all runs; "" = taken
    people = staticmethod(peopled)

    @classmethod
    def make(cls) -> Market:
        """A market as `people` leaves it."""
        return _market_after(cls.people)

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make().fork()
        wallets = [Wallet(), Wallet()]
        self.paid_by_others = 0  # by other contracts than Escrow to the three payout addresses
        self.sides = [
            Side(*keys, Model([Account(wallet) for wallet in wallets])) for keys in COORDINATORS
        ]
        for side in reversed(self.sides):
            self.side = side
            for client in range(2):
                self._sign_session(client, 10**9, 10**6)

    @property
    def model(self) -> Model:
        return self.side.model

    @property
    def trees(self) -> list[list[Leaf]]:
        return self.side.trees

    @property
    def c(self) -> Address:
        """The coordinator that acts now."""
        return self.side.coordinator.address

    @rule(side=st.integers(0, 1))
    def a_coordinator_acts(self, side: int) -> None:
        self.side = self.sides[side]

    def both(self, sender: Address, call: Call, act: Callable[[], None]) -> bool:
        """Whether contract and model take a call. They must agree."""
        return self.both_mined(sender, call, act) is not None

    def both_mined(self, sender: Address, call: Call, act: Callable[[], None]) -> Mined | None:
        """As `both`; returns what was mined, or None if both refuse."""
        wanted, mined = "", None
        try:
            act()
        except ModelRefused as refusal:
            wanted = str(refusal)
        got = ""
        try:
            mined = self.world.evm.send(sender, call)
        except Reverted as refusal:
            got = str(refusal)
            assert got, "a refusal gives its reason"
        Money.reasons[got] += 1
        assert got == wanted, f"the contract says {got!r}, the model {wanted!r}"
        return mined

    @rule(client=st.integers(0, 1), amount=AMOUNTS)
    def deposit(self, client: int, amount: int) -> None:
        call = self.world.contracts.escrow.deposit(Amount(amount))
        self.both(CLIENTS[client].address, call, lambda: self.model.deposit(client, amount))

    @rule(client=st.integers(0, 1), amount=AMOUNTS)
    def deposit_and_allocate(self, client: int, amount: int) -> None:
        self.deposit(client, amount)
        call = self.world.contracts.escrow.allocate(self.c, Amount(amount))
        self.both(
            CLIENTS[client].address,
            call,
            lambda: self.model.allocate(client, amount, self.world.evm.now),
        )

    @rule(client=st.integers(0, 1), amount=AMOUNTS)
    def request_release(self, client: int, amount: int) -> None:
        call = self.world.contracts.escrow.request_release(self.c, Amount(amount))
        self.both(
            CLIENTS[client].address,
            call,
            lambda: self.model.request_release(client, amount, self.world.evm.now),
        )

    @rule(client=st.integers(0, 1))
    def finish_release(self, client: int) -> None:
        call = self.world.contracts.escrow.finish_release(self.c)
        self.both(
            CLIENTS[client].address,
            call,
            lambda: self.model.finish_release(client, self.world.evm.now),
        )

    @rule(client=st.integers(0, 1), amount=AMOUNTS)
    def request_withdrawal(self, client: int, amount: int) -> None:
        call = self.world.contracts.escrow.request_withdrawal(Amount(amount))
        self.both(
            CLIENTS[client].address,
            call,
            lambda: self.model.request_withdrawal(client, amount, self.world.evm.now),
        )

    @rule(client=st.integers(0, 1))
    def finish_withdrawal(self, client: int) -> None:
        call = self.world.contracts.escrow.finish_withdrawal()
        self.both(
            CLIENTS[client].address,
            call,
            lambda: self.model.finish_withdrawal(client, self.world.evm.now),
        )

    @rule(seconds=TIMES)
    def travel(self, seconds: int) -> None:
        self.world.evm.travel(seconds)

    def _sign_session(self, client: int, up_to: int, seconds: int) -> None:
        who = self.model.clients[client]
        who.up_to, who.expires = up_to, self.world.evm.now + seconds

    @rule(
        client=st.integers(0, 1),
        up_to=st.sampled_from([0, 100, 10**9]),
        seconds=st.sampled_from([0, 10, 10**6]),
    )
    def sign_session(self, client: int, up_to: int, seconds: int) -> None:
        self._sign_session(client, up_to, seconds)

    @rule(
        client=st.integers(0, 1),
        cumulative=AMOUNTS,
        share=st.sampled_from([0, 1, 33, 50, 51, 340]),
        held=st.sampled_from([0, 1, 400]),
    )
    def post(self, client: int, cumulative: int, share: int, held: int) -> None:
        finals = (share, share, 0)
        self._post(finals, held, [(client, cumulative)])

    # Walks: long paths that single rules hardly ever complete. Each seeded mutant below
    # needs one of them.

    def _funded_epoch(self, client: int, amount: int) -> int:
        """Funds a client and posts one unit more for provider 0; returns the epoch's number, or
        0 if refused.
        """
        self.deposit_and_allocate(client, amount)
        previous = self.model.newest()
        posted = len(self.model.posted)
        self._post(
            (previous[0] + 1, *previous[1:]), 0, [(client, self.model.clients[client].allocated)]
        )
        return len(self.model.posted) if len(self.model.posted) > posted else 0

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100, 1000]))
    def an_epoch_becomes_final_and_is_claimed_twice(self, client: int, amount: int) -> None:
        number = self._funded_epoch(client, amount)
        for seconds in (WINDOW - 1, 1, 0) if number else ():
            self.world.evm.travel(seconds)
            self._claim(number, 0)

    @precondition(lambda self: self.model.posted and sum(self.model.newest()) > 0)
    @rule()
    def the_next_epoch_credits_less(self) -> None:
        finals = self.model.newest()
        place = next(i for i, final in enumerate(finals) if final > 0)
        self._post(tuple(final - (i == place) for i, final in enumerate(finals)), 0, [])

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), beyond=st.integers(0, 1))
    def held_credits_reach_the_allocations(self, client: int, amount: int, beyond: int) -> None:
        self.deposit_and_allocate(client, amount)
        finals = self.model.newest()
        room = self.model.allocated - sum(finals)
        self._post(finals, room // 3 + beyond, [])

    @precondition(lambda self: self.trees)
    @rule()
    def the_newest_epoch_is_posted_again(self) -> None:
        self._post(self.model.newest(), 0, [], len(self.trees))

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), beyond=st.integers(0, 1))
    def a_remembered_session_comes_to_its_end(self, client: int, amount: int, beyond: int) -> None:
        self._sign_session(client, self.model.clients[client].allocated + amount, 10)
        self._funded_epoch(client, amount)
        self.deposit_and_allocate(client, 1)
        finals = self.model.newest()
        self._post(finals, 0, [(client, self.model.clients[client].allocated)])
        self.world.evm.travel(10 + beyond)
        self._post(finals, 0, [(client, self.model.clients[client].charged)])
        self._sign_session(client, 10**9, 10**6)

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]))
    def credits_that_were_paid_move_to_another(self, client: int, amount: int) -> None:
        number = self._funded_epoch(client, amount)
        if number:
            pool, (_, second, third) = (self.model.pool, self.model.newest())
            self._post((pool - second - third, second, third), 0, [])
            self.world.evm.travel(WINDOW)
            self._claim(len(self.trees), 0)
            self._post((0, pool - third, third), 0, [])
            self.world.evm.travel(WINDOW)
            self._claim(len(self.trees), 1)

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), own=st.integers(-1, 2))
    def all_claim_together(self, client: int, amount: int, own: int) -> None:
        """Lets all providers claim together. One of them may have claimed alone just before."""
        if self._funded_epoch(client, amount):
            first, second, third = self.model.newest()
            self._post((first, second + 20, third + 30), 0, [])
            self.world.evm.travel(WINDOW)
            if own >= 0:
                self._claim(len(self.trees), own)
            for _ in range(2):
                self._claim_all(len(self.trees))

    @rule(client=st.integers(0, 1), amount=st.sampled_from([100, 101]))
    def a_voucher_comes_before_the_release_is_finished(self, client: int, amount: int) -> None:
        self.request_release(client, amount)
        self._funded_epoch(client, amount)
        for seconds in (RELEASE - 1, 1):
            self.world.evm.travel(seconds)
            self.finish_release(client)

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), beyond=st.integers(0, 1))
    def final_credits_reach_the_pool(self, client: int, amount: int, beyond: int) -> None:
        # so that the allocations do not limit the credits
        self.deposit_and_allocate(client, amount)
        pool, finals = (self.model.pool, self.model.newest())
        self._post((pool - finals[1] - finals[2] + beyond, *finals[1:]), 0, [])

    @rule(client=st.integers(0, 1), amount=st.sampled_from([100, 101]))
    def what_was_to_be_withdrawn_is_allocated(self, client: int, amount: int) -> None:
        self.deposit(client, amount)
        self.request_withdrawal(client, self.model.clients[client].wallet.free)
        call = self.world.contracts.escrow.allocate(self.c, Amount(amount))
        self.both(
            CLIENTS[client].address,
            call,
            lambda: self.model.allocate(client, amount, self.world.evm.now),
        )
        self.world.evm.travel(WITHDRAWAL)
        self.finish_withdrawal(client)

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), beyond=st.integers(0, 1))
    def a_voucher_reaches_the_allocation(self, client: int, amount: int, beyond: int) -> None:
        self.deposit_and_allocate(client, amount)
        finals = self.model.newest()
        self._post(finals, 0, [(client, self.model.clients[client].allocated + beyond)])

    @rule(client=st.integers(0, 1), amount=st.sampled_from([100, 101]))
    def a_withdrawal_is_finished_early_in_time_and_again(self, client: int, amount: int) -> None:
        self.deposit(client, amount)
        self.request_withdrawal(client, amount)
        for seconds in (WITHDRAWAL - 1, 1, 0):
            self.world.evm.travel(seconds)
            self.finish_withdrawal(client)

    def _post(
        self,
        finals: tuple[int, ...],
        held: int,
        vouchers: list[tuple[int, int]],
        number: int = 0,
        roots: tuple[Hash32, ...] = (ZERO_HASH,) * 3,
    ) -> None:
        number = number or len(self.model.posted) + 1
        epochs, clients = (
            self.world.contracts.epochs,
            [self.model.clients[client] for client, _ in vouchers],
        )
        indices = [
            self.world.evm.ask(self.world.contracts.stakes.index_of(owner)) for owner in OWNERS
        ]
        tree = [
            Leaf(i, owner, Amount(final), Amount(held), root)
            for i, owner, final, root in zip(indices, OWNERS, finals, roots, strict=True)
        ]
        signed = [
            self.world.voucher(
                CLIENTS[client],
                cumulative,
                self.side.coordinator,
                up_to=who.up_to,
                expires=who.expires,
            )
            for who, (client, cumulative) in zip(clients, vouchers, strict=True)
        ]
        known = {
            CLIENTS[client].address: self.world.evm.ask(
                epochs.session(self.c, CLIENTS[client].address)
            )
            for client, _ in vouchers
        }
        call = epochs.post(self.c, number, build(tree), signed, known)
        if self.both(
            self.side.poster.address,
            call,
            lambda: self.model.post(number, finals, held, vouchers, self.world.evm.now),
        ):
            self.trees.append(tree)

    @precondition(lambda self: self.trees)
    @rule(back=st.integers(0, 2), provider=st.integers(0, 2))
    def claim(self, back: int, provider: int) -> None:
        self._claim(max(1, len(self.trees) - back), provider)

    def _claim(self, number: int, provider: int) -> None:
        call = self.world.contracts.epochs.claim(
            self.c, number, *prove(self.trees[number - 1], OWNERS[provider])
        )
        self.both(
            BOSS.address, call, lambda: self.model.claim(number, [provider], self.world.evm.now)
        )

    @precondition(lambda self: self.trees)
    @rule(back=st.integers(0, 2))
    def claim_all(self, back: int) -> None:
        self._claim_all(max(1, len(self.trees) - back))

    def _claim_all(self, number: int) -> None:
        (call,) = self.world.contracts.epochs.claim_all(self.c, number, self.trees[number - 1])
        self.both(
            BOSS.address, call, lambda: self.model.claim(number, [0, 1, 2], self.world.evm.now)
        )

    @invariant()
    def money_is_conserved(self) -> None:
        """I1: the escrow holds what came in and did not go out, over both coordinators."""
        Money.steps += 1
        world, models = self.world, [side.model for side in self.sides]
        held = world.balance(world.contracts.escrow.address)
        paid = sum(model.paid for model in models)
        deposited = sum(model.deposited - model.withdrawn for model in models)
        assert held == deposited - paid, "I1"
        free = sum(who.wallet.free for who in models[0].clients)
        allocated = sum(who.allocated for model in models for who in model.clients)
        assert held == free + allocated - paid, "I1"
        received = sum(world.balance(key(f"payout{i}").address) for i in range(3))
        assert received == paid + self.paid_by_others, "I1"
        for model in models:
            assert model.paid <= model.pool, "I1: a pool pays more than it has"
            assert all(who.charged <= who.allocated for who in model.clients), "I1"

    @invariant()
    def no_credit_falls(self) -> None:
        """What an account was paid never falls, and the chain and the model agree on it."""
        epochs, evm = self.world.contracts.epochs, self.world.evm
        claimed = self.model.claimed
        for number, owner in enumerate(OWNERS):
            found = evm.ask(epochs.claimed(self.c, owner))
            assert found == claimed.get(number, 0) >= self.side.seen.get(number, 0)
            self.side.seen[number] = found

    def teardown(self) -> None:
        """Asserts that contracts and model agree at the end, for each coordinator."""
        for side in self.sides:
            self.side = side
            self._compare()

    def _compare(self) -> None:
        escrow, evm = self.world.contracts.escrow, self.world.evm
        for client, who in zip(CLIENTS, self.model.clients, strict=True):
            found = evm.ask(escrow.allocation(client.address, self.c))
            assert (found.allocated, found.charged) == (who.allocated, who.charged)
            assert evm.ask(escrow.free_of(client.address)) == who.wallet.free
        pool = evm.ask(escrow.pool(self.c))
        assert (pool.charged, pool.paid) == (self.model.pool, self.model.paid), "I1"
        count = len(self.model.posted)
        final = [number + 1 for number in range(count) if self.model.is_final(number + 1, evm.now)]
        epochs = self.world.contracts.epochs
        assert evm.ask(epochs.newest(self.c)) == count
        assert evm.ask(epochs.newest_final(self.c)).number == max(final, default=0)
        assert evm.ask(self.world.contracts.stakes.bond_of(self.c)) == self.model.bond, "I1"
