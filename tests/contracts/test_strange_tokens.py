"""Tests that a token that moves another amount than it says is refused wherever money comes in.

Otherwise the contracts' sums would be wrong (PROTOCOL, Constants).
"""

import dataclasses
from dataclasses import replace

import pytest
from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FilesystemInputBundle

from contracts.evm import Evm, refused
from contracts.market import BOSS, CLASS, COORDINATOR, POSTER, STATEMENT, Market, key, planned
from quorate_contracts.artifact import artifact
from quorate_contracts.compile import SOURCES
from quorate_contracts.deploy import Contracts
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import ZERO_ADDRESS, Amount

MOVED = "    self.balanceOf[receiver] += amount\n    log Transfer(sender=owner"


def code_with(moved: str) -> bytes:
    """Returns the test token's code with another last line in its transfer."""
    source = (SOURCES / "TestToken.vy").read_text()
    assert source.count(MOVED) == 1
    bundle = FilesystemInputBundle([SOURCES])
    changed = replace(
        bundle.load_file("TestToken.vy"),
        contents=source.replace(MOVED, moved + "\n    log Transfer(sender=owner"),
    )
    return bytes.fromhex(
        compile_from_file_input(changed, input_bundle=bundle, output_formats=["bytecode"])[
            "bytecode"
        ][2:]
    )


def deployed(code: bytes) -> Market:
    """Returns the contracts with a token of this code. Nobody has registered."""
    evm, made = Evm.fresh(), planned(DEVNET)
    for creation in made.creations:
        data = (
            code + creation.data[len(artifact("TestToken").bytecode) :]
            if creation.name == "TestToken"
            else creation.data
        )
        evm.create(dataclasses.replace(creation, data=data), BOSS.address)
    evm.contracts = Contracts.of(made.deployment)
    return Market(evm, evm.contracts, DEVNET)


@pytest.mark.rule("0.4")
@pytest.mark.parametrize(
    "moved",
    [
        "    self.balanceOf[receiver] += amount - 1",
        "    self.balanceOf[receiver] += amount + 1",
        "    pass",
    ],
    ids=["a fee", "more than was sent", "nothing"],
)
def test_a_token_that_keeps_a_fee_is_refused_wherever_money_comes_in(moved: str) -> None:
    world = deployed(code_with(moved))
    stakes, escrow = world.contracts.stakes, world.contracts.escrow
    who = world.fund(COORDINATOR).address
    refused(
        world.evm, "amount", who, stakes.register_coordinator(STATEMENT.address, POSTER.address)
    )
    owner = world.provider(0, slots=0)
    refused(world.evm, "amount", owner, stakes.open_slots(CLASS, 1))
    client = world.fund(key("client0"))
    refused(world.evm, "amount", client.address, escrow.deposit(Amount(100), ZERO_ADDRESS))
    assert world.balance(stakes.address) == world.balance(escrow.address) == 0


def test_a_token_that_moves_what_it_says_is_accepted() -> None:
    """This shows that the test above refuses only the fee."""
    world = deployed(code_with("    self.balanceOf[receiver] += amount"))
    world.coordinator()
    world.provider(0)
    world.client(0)
    c = world.contracts
    assert world.balance(c.stakes.address) == DEVNET.coordinator_bond + DEVNET.slot_stake
    assert world.balance(c.escrow.address) == 50_000_000
