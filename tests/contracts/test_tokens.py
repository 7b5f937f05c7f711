"""Tests tokens that lie: Escrow credits nothing that did not arrive, and pays nothing twice.

A token that refuses to pay one account stops this account only.
"""

from functools import lru_cache
from typing import Any

import pytest

from contracts.evm import Reverted
from contracts.world import World, account, deployed, pair
from quorate_protocol.limits import USD
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH

SOURCE = """
# pragma version 0.4.3
decimals: public(uint8)
balanceOf: public(HashMap[address, uint256])
blocked: public(HashMap[address, bool])
answer: public(bool)
fee: public(uint256)
target: address
message: Bytes[512]
passed: public(uint256)
permitted: public(uint256)

@deploy
def __init__(faucet: bool, supply: uint256):
    self.decimals = DECIMALS
    self.answer = True

@external
def mint(receiver: address, amount: uint256):
    self.balanceOf[receiver] += amount

@external
def approve(spender: address, amount: uint256):
    pass

@external
def permit(owner: address, spender: address, amount: uint256, deadline: uint256, v: uint8,
           r: bytes32, s: bytes32):
    assert deadline > 0
    self.permitted += amount

@external
def become(answer: bool, fee: uint256):
    self.answer = answer
    self.fee = fee

@external
def block_account(account: address, blocked: bool):
    self.blocked[account] = blocked

@external
def call_back(target: address, message: Bytes[512]):
    self.target = target
    self.message = message

@external
def act(target: address, message: Bytes[512]):
    raw_call(target, message)

@internal
def _move(owner: address, receiver: address, amount: uint256) -> bool:
    assert not self.blocked[receiver], "blocked"
    if self.target != empty(address):
        if raw_call(self.target, self.message, revert_on_failure=False):
            self.passed += 1
    if self.answer:
        self.balanceOf[owner] -= amount
        self.balanceOf[receiver] += amount - self.fee
    return self.answer

@external
def transferFrom(owner: address, receiver: address, amount: uint256) -> bool:
    return self._move(owner, receiver, amount)

@external
def transfer(receiver: address, amount: uint256)ANSWER
"""
ANSWERS = " -> bool:\n    return self._move(msg.sender, receiver, amount)"
SILENT = ":\n    assert self._move(msg.sender, receiver, amount)"
C, K, P, Q, ANY = "client0", "coordinator", "owner0", "owner1", "stranger"


@lru_cache(maxsize=4)
def token(decimals: int = 6, answers: str = ANSWERS) -> dict[str, Any]:
    from vyper.compiler import compile_code

    source = SOURCE.replace("DECIMALS", str(decimals)).replace("ANSWER", answers)
    return compile_code(source, output_formats=["abi", "bytecode"])  # type: ignore[no-any-return]


@lru_cache(maxsize=2)
def _world(answers: str) -> World:
    world = deployed(TestToken=token(answers=answers))
    world.coordinator(K)
    for who in (C, K):
        world.fund(who, 1000 * USD)
        world.send(who, world.escrow, "deposit", 100 * USD, ZERO_ADDRESS)
    pays = [pair(P, 5 * USD), pair(Q, 7 * USD)]
    world.send(f"{K} posting", world.escrow, "payroll", account(K), ZERO_HASH, pays)
    return world


def hostile() -> World:
    """A market whose token lies once `become` or `block_account` told it to."""
    return _world(ANSWERS).fork()


@pytest.fixture
def world() -> World:
    return hostile()


@pytest.mark.rule("0.2")
@pytest.mark.parametrize("decimals", [0, 5, 7, 18])
def test_a_token_of_other_decimals_is_refused_at_deployment(decimals: int) -> None:
    with pytest.raises(Reverted, match="^decimals$"):
        deployed(TestToken=token(decimals))


@pytest.mark.rule("0.4")
@pytest.mark.parametrize(("answer", "fee", "reason"), [(False, 0, "token"), (True, 1, "amount")])
def test_tokens_that_did_not_arrive_are_not_credited(
    world: World, answer: bool, fee: int, reason: str
) -> None:
    world.send(ANY, world.token, "become", answer, fee)
    for place in (ZERO_ADDRESS, account(K)):
        world.refused(reason, C, world.escrow, "deposit", USD, place)


def test_tokens_that_did_not_leave_are_not_debited(world: World) -> None:
    world.send(ANY, world.token, "become", False, 0)
    world.refused("token", C, world.escrow, "withdraw", USD)
    world.refused("token", ANY, world.escrow, "draw", account(P), [account(K)])
    world.send(ANY, world.escrow, "draw_many", account(K), [account(P), account(Q)])
    assert world.tab(K, P)[2] == world.tab(K, Q)[2] == 0


@pytest.mark.rule("6.70")
def test_a_blocked_payee_stops_only_itself(world: World) -> None:
    world.send(ANY, world.token, "block_account", account(P), True)
    world.refused("token", ANY, world.escrow, "draw", account(P), [account(K)])
    payees = [account(P), account(Q), account(Q), account("nobody")]
    sent = world.send(ANY, world.escrow, "draw_many", account(K), payees)
    event = sent.one("Drawn")
    assert (event.payee, event.receiver, event.amount) == (account(Q), account(Q), 7 * USD)
    assert world.tokens(Q) == 7 * USD and world.tab(K, P) == (5 * USD, 5 * USD, 0, 0)
    world.send(ANY, world.token, "block_account", account(P), False)
    world.send(ANY, world.escrow, "draw_many", account(K), payees)
    assert world.tokens(P) == 5 * USD and world.tokens(Q) == 7 * USD


def test_a_token_that_answers_nothing_is_taken() -> None:
    world = _world(SILENT).fork()
    world.send(C, world.escrow, "withdraw", USD)
    world.send(ANY, world.escrow, "draw_many", account(K), [account(P)])
    assert world.tokens(P) == 5 * USD
    world.send(ANY, world.token, "become", False, 0)
    world.refused("token", C, world.escrow, "withdraw", USD)


INSIDE: dict[str, tuple[Any, ...]] = {
    "deposit": (1, ZERO_ADDRESS),
    "deposit_with_permit": (1, ZERO_ADDRESS, 0, 0, ZERO_HASH, ZERO_HASH),
    "withdraw": (1,),
    "pay": ([],),
    "set_limits": (1, 1),
    "lock": (account(K), 1),
    "redeem": (account(K), ZERO_HASH, [], []),
    "draw_many": (account(K), []),
    "draw": (account(Q), [account(K)]),
    "close": (account(K),),
    "finish": (account(K), account(P)),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_token_that_calls_back_enters_nowhere(world: World, name: str) -> None:
    world.send(K, world.escrow, "close", account(P))
    world.evm.travel(15 * 86_400)
    world.send(ANY, world.token, "mint", world.token.address, 10 * USD)
    itself = (world.escrow.address, world.escrow.data("deposit", USD, account(K)))
    world.send(ANY, world.token, "act", *itself)
    itself = (world.escrow.address, world.escrow.data("deposit", USD, ZERO_ADDRESS))
    world.send(ANY, world.token, "act", *itself)
    call = (world.escrow.address, world.escrow.data(name, *INSIDE[name]))
    before = world.fork()
    before.send(ANY, world.token, "act", *call)  # outside of a transfer it is taken
    world.send(ANY, world.token, "call_back", *call)
    for who, contract, function, arguments in (
        (C, world.escrow, "withdraw", (USD,)),
        (C, world.escrow, "deposit", (USD, ZERO_ADDRESS)),
        (ANY, world.escrow, "draw", (account(P), [account(K)])),
        (ANY, world.escrow, "draw_many", (account(K), [account(Q)])),
    ):
        world.send(who, contract, function, *arguments)
    assert world.ask(world.token, "passed") == 0


@pytest.mark.rule("4.73")
def test_a_permit_saves_the_approval_and_may_have_been_sent_before(world: World) -> None:
    for deadline, told in ((0, 0), (1, USD)):
        permit = (deadline, 0, ZERO_HASH, ZERO_HASH)
        world.send(C, world.escrow, "deposit_with_permit", USD, account(K), *permit)
        assert world.ask(world.token, "permitted") == told
    assert world.tab(C, K)[0] == 2 * USD
