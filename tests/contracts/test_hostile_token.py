"""Tests a token that calls back, returns false or keeps a part (I1).

The contracts credit nothing that did not arrive, and pay nothing twice.
"""

from dataclasses import replace
from functools import lru_cache

import pytest

from contracts.evm import Evm, refused
from contracts.market import BOSS, planned
from quorate_contracts.bindings.calls import Call, Query
from quorate_contracts.deploy import Contracts
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import Amount

SOURCE = """
# pragma version 0.4.3
balanceOf: public(HashMap[address, uint256])
answer: public(bool)
fee: public(uint256)
target: address
message: Bytes[256]
passed: public(uint256)

@deploy
def __init__(faucet: bool, supply: uint256):
    self.answer = True
    self.balanceOf[self] = 10**12
    self.balanceOf[msg.sender] = 10**12

@external
def become(answer: bool, fee: uint256):
    self.answer = answer
    self.fee = fee

@external
def call_back(target: address, message: Bytes[256]):
    self.target = target
    self.message = message

@external
def act(target: address, message: Bytes[256]):
    raw_call(target, message)

@internal
def _move(owner: address, receiver: address, amount: uint256) -> bool:
    if self.target != empty(address):
        if raw_call(self.target, self.message, revert_on_failure=False):
            self.passed += 1
    if self.answer:
        self.balanceOf[owner] -= amount
        self.balanceOf[receiver] += amount - self.fee
    return self.answer

@external
def transfer(receiver: address, amount: uint256) -> bool:
    return self._move(msg.sender, receiver, amount)

@external
def transferFrom(owner: address, receiver: address, amount: uint256) -> bool:
    return self._move(owner, receiver, amount)
"""


@lru_cache(maxsize=1)
def code() -> bytes:
    from vyper.compiler import compile_code

    return bytes.fromhex(compile_code(SOURCE, output_formats=["bytecode"])["bytecode"][2:])


def hostile() -> tuple[Evm, Contracts]:
    """Returns a deployment with the hostile token, which is a client too."""
    evm, made = Evm.fresh(), planned(DEVNET)
    for creation in made.creations:
        arguments = (0).to_bytes(64, "big")
        evm.create(
            replace(creation, data=code() + arguments)
            if creation.name == "TestToken"
            else creation,
            BOSS.address,
        )
    evm.contracts = Contracts.of(made.deployment)
    return evm, evm.contracts


def say(contracts: Contracts, function: str, *words: int, message: bytes = b"") -> Call:
    """Returns a call of the token."""
    data = keccak256(function.encode())[:4] + b"".join(word.to_bytes(32, "big") for word in words)
    if message:
        data += (
            (64).to_bytes(32, "big")
            + len(message).to_bytes(32, "big")
            + message.ljust(-(-len(message) // 32) * 32, b"\0")
        )
    return replace(contracts.token.approve(contracts.escrow.address), data=data, gas=2_000_000)


def act(contracts: Contracts, call: Call, function: str = "act(address,bytes)") -> Call:
    """Returns a call that makes the token act as a client.

    The token makes the call itself, or makes it in the middle of each movement of money.
    """
    return say(contracts, function, int.from_bytes(call.to, "big"), message=call.data)


@pytest.mark.parametrize(("answer", "fee", "reason"), [(0, 0, "token"), (1, 1, "amount")])
def test_tokens_that_did_not_arrive_are_not_credited(answer: int, fee: int, reason: str) -> None:
    evm, contracts = hostile()
    stakes, escrow = contracts.stakes, contracts.escrow
    evm.send(BOSS.address, say(contracts, "become(bool,uint256)", answer, fee))
    refused(evm, reason, BOSS.address, escrow.deposit(Amount(5 * USD)))
    refused(evm, reason, BOSS.address, stakes.register_coordinator(BOSS.address, BOSS.address))
    assert (
        evm.ask(escrow.free_of(BOSS.address)) == 0 and evm.ask(stakes.index_of(BOSS.address)) == 0
    )


@pytest.mark.parametrize(
    ("inside", "is_let_in"),
    [("deposit", False), ("finish_withdrawal", False), ("request_withdrawal", True)],
)
def test_a_token_that_calls_back_is_paid_once(inside: str, is_let_in: bool) -> None:
    """During its withdrawal the token deposits, withdraws again, or requests the next
    withdrawal. Only that request is allowed.
    """
    evm, contracts = hostile()
    escrow, token, amount = contracts.escrow, contracts.token.address, Amount(10 * USD)
    calls = {"deposit": escrow.deposit(amount), "finish_withdrawal": escrow.finish_withdrawal()}
    calls["request_withdrawal"] = escrow.request_withdrawal(amount)
    evm.send(BOSS.address, escrow.deposit(amount))  # another client's
    evm.send(BOSS.address, act(contracts, calls["deposit"]))
    evm.send(BOSS.address, act(contracts, calls["request_withdrawal"]))
    evm.travel(DEVNET.withdrawal_delay)
    evm.send(BOSS.address, act(contracts, calls[inside], "call_back(address,bytes)"))
    evm.send(BOSS.address, act(contracts, calls["finish_withdrawal"]))
    let_in = evm.ask(Query(token, say(contracts, "passed()").data, int.from_bytes))
    assert let_in == is_let_in
    assert evm.ask(contracts.token.balance_of(escrow.address)) == amount, "the other client's"
    assert evm.ask(escrow.free_of(token)) == 0 and evm.ask(escrow.free_of(BOSS.address)) == amount
    refused(evm, "early", token, escrow.finish_withdrawal())
