"""Compares Escrow and Epochs with a model in Python, driven by Hypothesis at boundary times.

Seeded mutants of the contracts must be caught.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FilesystemInputBundle

from contracts.evm import Evm, Reverted
from contracts.market import BOSS, COORDINATOR, POSTER, Market, key, market, planned
from contracts.money_model import Account, Model, ModelRefused
from quorate_contracts.artifact import artifact
from quorate_contracts.bindings.calls import Call
from quorate_contracts.compile import SOURCES
from quorate_contracts.deploy import Contracts
from quorate_protocol.limits import DEVNET
from quorate_protocol.rules.epoch_tree import Leaf, build, prove
from quorate_protocol.units import ZERO_HASH, Address, Amount

C = COORDINATOR.address
CLIENTS = [key("client0"), key("client1")]
OWNERS = [key(f"owner{i}").address for i in range(3)]
WINDOW, RELEASE, WITHDRAWAL = (
    DEVNET.challenge_window,
    DEVNET.allocation_release,
    DEVNET.withdrawal_delay,
)
AMOUNTS = st.sampled_from([0, 1, 99, 100, 101, 1000])
TIMES = st.sampled_from(
    [1, WINDOW - 1, WINDOW, WINDOW + 1, WITHDRAWAL - 1, WITHDRAWAL, RELEASE - 1, RELEASE]
)


def peopled(world: Market) -> Market:
    for number in range(3):
        world.provider(number, slots=0)
    for client in CLIENTS:
        world.fund(client)
    return world


class Money(RuleBasedStateMachine):
    """A state machine in which each rule does the same to contracts and model, and expects the
    same answer.
    """

    make: Callable[[], Market] = staticmethod(lru_cache(maxsize=1)(lambda: peopled(market())))

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make().fork()
        self.model = Model([Account(), Account()])
        self.trees: list[list[Leaf]] = []
        self.start = {client.address: self.world.balance(client.address) for client in CLIENTS}
        for client in range(2):
            self._sign_session(client, 10**9, 10**6)

    def both(self, sender: Address, call: Call, act: Callable[[], None]) -> bool:
        wanted = ""
        try:
            act()
        except ModelRefused as refusal:
            wanted = str(refusal)
        got = ""
        try:
            self.world.evm.send(sender, call)
        except Reverted as refusal:
            got = str(refusal)
            assert got, "a refusal gives its reason"
        assert got == wanted, f"the contract says {got!r}, the model {wanted!r}"
        return not got

    @rule(client=st.integers(0, 1), amount=AMOUNTS)
    def deposit(self, client: int, amount: int) -> None:
        call = self.world.contracts.escrow.deposit(Amount(amount))
        self.both(CLIENTS[client].address, call, lambda: self.model.deposit(client, amount))

    @rule(client=st.integers(0, 1), amount=AMOUNTS)
    def deposit_and_allocate(self, client: int, amount: int) -> None:
        self.deposit(client, amount)
        call = self.world.contracts.escrow.allocate(C, Amount(amount))
        self.both(CLIENTS[client].address, call, lambda: self.model.allocate(client, amount))

    @rule(client=st.integers(0, 1), amount=AMOUNTS)
    def request_release(self, client: int, amount: int) -> None:
        call = self.world.contracts.escrow.request_release(C, Amount(amount))
        self.both(
            CLIENTS[client].address,
            call,
            lambda: self.model.request_release(client, amount, self.world.evm.now),
        )

    @rule(client=st.integers(0, 1))
    def finish_release(self, client: int) -> None:
        call = self.world.contracts.escrow.finish_release(C)
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
        previous = self.model.posted[-1][1] if self.model.posted else (0, 0, 0)
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

    @precondition(lambda self: self.model.posted and sum(self.model.posted[-1][1]) > 0)
    @rule()
    def the_next_epoch_credits_less(self) -> None:
        finals = self.model.posted[-1][1]
        place = next(i for i, final in enumerate(finals) if final > 0)
        self._post(tuple(final - (i == place) for i, final in enumerate(finals)), 0, [])

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), beyond=st.integers(0, 1))
    def held_credits_reach_the_allocations(self, client: int, amount: int, beyond: int) -> None:
        self.deposit_and_allocate(client, amount)
        finals = self.model.posted[-1][1] if self.model.posted else (0, 0, 0)
        room = sum(who.allocated for who in self.model.clients) - sum(finals)
        self._post(finals, room // 3 + beyond, [])

    @precondition(lambda self: self.trees)
    @rule()
    def the_newest_epoch_is_posted_again(self) -> None:
        self._post(self.model.posted[-1][1], 0, [], len(self.trees))

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), beyond=st.integers(0, 1))
    def a_remembered_session_comes_to_its_end(self, client: int, amount: int, beyond: int) -> None:
        self._sign_session(client, self.model.clients[client].allocated + amount, 10)
        self._funded_epoch(client, amount)
        self.deposit_and_allocate(client, 1)
        finals = self.model.posted[-1][1] if self.model.posted else (0, 0, 0)
        self._post(finals, 0, [(client, self.model.clients[client].allocated)])
        self.world.evm.travel(10 + beyond)
        self._post(finals, 0, [(client, self.model.clients[client].charged)])
        self._sign_session(client, 10**9, 10**6)

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]))
    def credits_that_were_paid_move_to_another(self, client: int, amount: int) -> None:
        number = self._funded_epoch(client, amount)
        if number:
            pool, (_, second, third) = (
                sum(who.charged for who in self.model.clients),
                self.model.posted[-1][1],
            )
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
            first, second, third = self.model.posted[-1][1]
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
        pool, finals = (
            sum(who.charged for who in self.model.clients),
            self.model.posted[-1][1] if self.model.posted else (0, 0, 0),
        )
        self._post((pool - finals[1] - finals[2] + beyond, *finals[1:]), 0, [])

    @rule(client=st.integers(0, 1), amount=st.sampled_from([100, 101]))
    def what_was_to_be_withdrawn_is_allocated(self, client: int, amount: int) -> None:
        self.deposit(client, amount)
        self.request_withdrawal(client, self.model.clients[client].free)
        call = self.world.contracts.escrow.allocate(C, Amount(amount))
        self.both(CLIENTS[client].address, call, lambda: self.model.allocate(client, amount))
        self.world.evm.travel(WITHDRAWAL)
        self.finish_withdrawal(client)

    @rule(client=st.integers(0, 1), amount=st.sampled_from([99, 100]), beyond=st.integers(0, 1))
    def a_voucher_reaches_the_allocation(self, client: int, amount: int, beyond: int) -> None:
        self.deposit_and_allocate(client, amount)
        finals = self.model.posted[-1][1] if self.model.posted else (0, 0, 0)
        self._post(finals, 0, [(client, self.model.clients[client].allocated + beyond)])

    @rule(client=st.integers(0, 1), amount=st.sampled_from([100, 101]))
    def a_withdrawal_is_finished_early_in_time_and_again(self, client: int, amount: int) -> None:
        self.deposit(client, amount)
        self.request_withdrawal(client, amount)
        for seconds in (WITHDRAWAL - 1, 1, 0):
            self.world.evm.travel(seconds)
            self.finish_withdrawal(client)

    def _post(
        self, finals: tuple[int, ...], held: int, vouchers: list[tuple[int, int]], number: int = 0
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
            Leaf(i, owner, Amount(final), Amount(held), ZERO_HASH)
            for i, owner, final in zip(indices, OWNERS, finals, strict=True)
        ]
        signed = [
            self.world.voucher(CLIENTS[client], cumulative, up_to=who.up_to, expires=who.expires)
            for who, (client, cumulative) in zip(clients, vouchers, strict=True)
        ]
        known = {
            CLIENTS[client].address: self.world.evm.ask(epochs.session(C, CLIENTS[client].address))
            for client, _ in vouchers
        }
        call = epochs.post(C, number, build(tree), signed, known)
        if self.both(
            POSTER.address,
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
            C, number, *prove(self.trees[number - 1], OWNERS[provider])
        )
        self.both(
            BOSS.address, call, lambda: self.model.claim(number, [provider], self.world.evm.now)
        )

    @precondition(lambda self: self.trees)
    @rule(back=st.integers(0, 2))
    def claim_all(self, back: int) -> None:
        self._claim_all(max(1, len(self.trees) - back))

    def _claim_all(self, number: int) -> None:
        (call,) = self.world.contracts.epochs.claim_all(C, number, self.trees[number - 1])
        self.both(
            BOSS.address, call, lambda: self.model.claim(number, [0, 1, 2], self.world.evm.now)
        )

    @invariant()
    def money_is_conserved(self) -> None:
        world, model = self.world, self.model
        held = world.balance(world.contracts.escrow.address)
        assert held == model.deposited - model.withdrawn - model.paid, "I1"
        assert held == sum(who.free + who.allocated for who in model.clients) - model.paid
        assert sum(world.balance(key(f"payout{i}").address) for i in range(3)) == model.paid

    def teardown(self) -> None:
        """Asserts that contracts and model agree at the end."""
        escrow, evm = self.world.contracts.escrow, self.world.evm
        for client, who in zip(CLIENTS, self.model.clients, strict=True):
            found = evm.ask(escrow.allocation(client.address, C))
            assert (found.allocated, found.charged) == (who.allocated, who.charged)
            assert evm.ask(escrow.free_of(client.address)) == who.free
        pool = evm.ask(escrow.pool(C))
        assert (pool.charged, pool.paid) == (
            sum(who.charged for who in self.model.clients),
            self.model.paid,
        ), "I1"


LONG = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)
SHORT = settings(LONG, max_examples=50, phases=[Phase.generate])  # stop at the first difference


@pytest.mark.rule("I1", "6.14")
def test_contracts_and_model_agree() -> None:
    run_state_machine_as_test(Money, settings=LONG)  # type: ignore[no-untyped-call]


MUTANTS = {
    "claims are not remembered": (
        "Epochs",
        "self.claimed[coordinator][leaf.account] = final",
        "pass",
    ),
    "claims of nothing are paid again": ("Epochs", "if final <= before or", "if final < before or"),
    "only the last claim of many is paid": (
        "Escrow",
        "amount += payment & MASK96",
        "amount = payment & MASK96",
    ),
    "pools pay more than their vouchers cover": (
        "Escrow",
        'assert pool.paid + amount <= pool.charged, "pool"',
        "pass",
    ),
    "remembered sessions never end": (
        "Epochs",
        'assert block.timestamp <= session & MASK36, "expired"',
        "pass",
    ),
    "remembered sessions have no bound": (
        "Epochs",
        'assert cumulative <= (session >> 36) & MASK60, "amount"',
        "pass",
    ),
    "a number is posted twice": (
        "Epochs",
        'assert self.infos[coordinator][number % RING] >> 224 < number, "epoch"',
        "pass",
    ),
    "an epoch is final at once": (
        "Epochs",
        "((info >> 176) & MASK48) + CHALLENGE_WINDOW",
        "((info >> 176) & MASK48)",
    ),
    "an epoch is final a second late": (
        "Epochs",
        "+ CHALLENGE_WINDOW\n",
        "+ CHALLENGE_WINDOW + 1\n",
    ),
    "final credits need no vouchers": ("Epochs", 'assert sumFinal <= pool.charged, "pool"', "pass"),
    "held credits need no allocation": (
        "Epochs",
        "assert sumFinal + sumHeld <= pool.allocated",
        "assert sumFinal <= pool.allocated",
    ),
    "sums may fall": ("Epochs", 'assert sumFinal >= (last >> 88) & MASK88, "stale"', "pass"),
    "older epochs still pay": (
        "Epochs",
        "assert following >> 224 <= number or",
        "assert following >> 224 > number or",
    ),
    "vouchers beyond the allocation": (
        "Escrow",
        'assert cumulative <= word >> 152, "allocation"',
        "pass",
    ),
    "a release ignores vouchers": (
        "Escrow",
        "(word >> 152) - ((word >> 48) & MASK104))",
        "(word >> 152))",
    ),
    "a release does not wait": (
        "Escrow",
        "ready: uint256 = block.timestamp + RELEASE_DELAY",
        "ready: uint256 = block.timestamp",
    ),
    "a withdrawal can be finished twice": ("Escrow", "    self.withdrawals[msg.sender] = 0\n", ""),
    "a withdrawal takes what was allocated": (
        "Escrow",
        "min(request >> 48, self.free_of[msg.sender])",
        "request >> 48",
    ),
}


@pytest.mark.rule("I1", "6.12", "6.13", "6.14")
@pytest.mark.parametrize("name", MUTANTS)
def test_seeded_mutants_are_caught(name: str) -> None:
    contract, old, new = MUTANTS[name]
    source = (SOURCES / f"{contract}.vy").read_text()
    assert source.count(old) == 1, "the mutant no longer fits its source"
    bundle = FilesystemInputBundle([SOURCES])
    mutated = replace(bundle.load_file(f"{contract}.vy"), contents=source.replace(old, new))
    code = bytes.fromhex(
        compile_from_file_input(mutated, input_bundle=bundle, output_formats=["bytecode"])[
            "bytecode"
        ][2:]
    )

    class Mutated(Money):
        make = staticmethod(lru_cache(maxsize=1)(lambda: peopled(_deployed_with(contract, code))))

    # an assertion error, or Hypothesis' group of several
    with pytest.raises(BaseException) as caught:
        run_state_machine_as_test(Mutated, settings=SHORT)  # type: ignore[no-untyped-call]
    assert "the contract says" in str(caught.getrepr(style="long")) or "I1" in str(
        caught.getrepr(style="long")
    )


def _deployed_with(contract: str, code: bytes) -> Market:
    """Returns a market in which the code of one contract is replaced."""
    evm, made = Evm.fresh(), planned(DEVNET)
    original = artifact(contract).bytecode
    for creation in made.creations:
        data = code + creation.data[len(original) :] if creation.name == contract else creation.data
        evm.create(dataclasses.replace(creation, data=data), BOSS.address)
    evm.contracts = Contracts.of(made.deployment)
    world = Market(evm, evm.contracts, DEVNET)
    world.coordinator()
    return world
