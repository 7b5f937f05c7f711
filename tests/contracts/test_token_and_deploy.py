"""Tests the token, and a whole deployment."""

import pytest

from contracts.evm import Evm, refused
from contracts.market import BOSS, CHAIN_ID, SECRET, key, market, planned
from quorate_contracts import deploy
from quorate_contracts.deploy import Contracts, created_address
from quorate_protocol.limits import DEVNET, MAINNET, Limits
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, BlockNumber, Seconds
from quorate_runtime.keys.bls import public_key


@pytest.mark.rule("3.1")
@pytest.mark.parametrize("limits", [DEVNET, MAINNET], ids=lambda limits: limits.name)
def test_a_plan_deploys_at_the_addresses_it_names(limits: Limits) -> None:
    evm, made = Evm.fresh(), planned(limits)
    for creation in made.creations:
        evm.create(creation, BOSS.address)
    contracts = Contracts.of(made.deployment)
    assert evm.ask(contracts.stakes.domain_separator()) == made.deployment.domain().separator()
    assert made.deployment.constants() is limits


def test_a_deployment_survives_its_json() -> None:
    deployment = planned(DEVNET).deployment
    assert deploy.decode(deploy.encode(deployment)) == deployment


def test_addresses_follow_from_deployer_and_nonce() -> None:
    # the widely published example of CREATE addresses
    sender = Address(bytes.fromhex("6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0"))
    assert created_address(sender, 0).hex() == "cd234a471b72ba2f1ccf0a70fcaba648a5eecd8d"
    assert created_address(sender, 1).hex() == "343c43a37d37dff08ae8c4a11544c718abb4fcf8"


@pytest.mark.rule("9.1")
def test_a_beacon_with_another_period_than_the_limits_is_refused() -> None:
    info = BeaconInfo(public_key(SECRET), Seconds(3), 1)
    with pytest.raises(AssertionError, match="period"):
        deploy.plan(BOSS.address, 0, CHAIN_ID, BlockNumber(1), DEVNET, info, True)


def test_a_deployment_without_faucet_mints_for_nobody() -> None:
    info = BeaconInfo(public_key(SECRET), MAINNET.beacon_period, 1)
    evm, made = (
        Evm.fresh(),
        deploy.plan(BOSS.address, 0, CHAIN_ID, BlockNumber(1), MAINNET, info, False),
    )
    for creation in made.creations:
        evm.create(creation, BOSS.address)
    contracts = Contracts.of(made.deployment)
    refused(evm, "faucet", BOSS.address, contracts.token.mint(BOSS.address, Amount(1)))


def test_tokens_move_as_far_as_balance_and_allowance_reach() -> None:
    world = market()
    token, alice, bob = world.contracts.token, key("alice").address, key("bob").address
    world.evm.send(alice, token.mint(alice, Amount(10)))
    world.evm.send(alice, token.transfer(bob, Amount(4)))
    assert (world.balance(alice), world.balance(bob)) == (6, 4)
    refused(world.evm, "balance", alice, token.transfer(bob, Amount(7)))
    refused(world.evm, "allowance", alice, world.contracts.escrow.deposit(Amount(1), ZERO_ADDRESS))
    world.evm.send(alice, token.approve(world.contracts.escrow.address, Amount(5)))
    refused(world.evm, "allowance", alice, world.contracts.escrow.deposit(Amount(6), ZERO_ADDRESS))
    world.evm.send(alice, world.contracts.escrow.deposit(Amount(5), ZERO_ADDRESS))
    assert world.evm.ask(token.allowance(alice, world.contracts.escrow.address)) == 0


def test_creations_are_sent_in_groups_that_fit_into_a_block() -> None:
    """A node once forgot what came after a transaction that a block had no room for."""
    made = planned(DEVNET)
    groups = list(deploy.waves(made.creations))
    assert [each for group in groups for each in group] == list(made.creations)
    assert all(sum(each.gas for each in group) <= deploy.WAVE_GAS_MAX for group in groups)
    assert len(groups) > 1
