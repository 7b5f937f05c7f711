"""Tests a client's deposit with a stablecoin that is not ours, on a real chain."""

import asyncio
import time
from pathlib import Path

from quorate.client.base.profile import create_profile
from quorate.client.money.chain_access import open_chain
from quorate.client.money.funding import fund
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.calls import ask
from quorate_contracts.chain_check import check_chain
from quorate_contracts.chain_cli.token_check import check_token
from quorate_contracts.deploy import Contracts, Deployment, created_address, plan
from quorate_contracts.generated.contract_calls import Call
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.market.bulk_sender import BulkSender
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Address, Amount, BlockNumber
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import KeySigner
from support.chain import foreign_token
from support.chain.chain_nodes import Node, node
from support.chain.client_money import COORDINATOR

BOSS = KeySigner(dev_account(0))
BEACON = bls.public_key(bls.keygen(b"a beacon that nobody asks"))


async def mined(wallet: BulkSender) -> None:
    async with asyncio.timeout(60):
        while not await wallet.check():
            await asyncio.sleep(0.05)


async def deployed(chain: Node, holders: tuple[Address, ...]) -> Deployment:
    """Puts the token and the contracts on the chain, and gives each holder 1,100 USD and a coin."""
    wallet = BulkSender(chain.client, await chain.client.chain_id(), BOSS)
    token = created_address(BOSS.address, 0)
    beacon = BeaconInfo(BEACON, DEVNET.beacon_period, int(time.time()))
    await wallet.create("token", foreign_token.CREATION, foreign_token.CREATION_GAS)
    calls: list[Call] = [*foreign_token.set_up(token, BOSS.address)]
    calls.append(foreign_token.allow_minting(token, BOSS.address))
    mint = "mint(address,uint256)"
    calls += [foreign_token.call(token, mint, who, 1_100 * USD) for who in holders]
    for number, call in enumerate(calls):
        await wallet.call(f"call {number}", call)
    for who in holders:
        await wallet.pay(who, 10**18)
    made = plan(
        BOSS.address, wallet.nonce, wallet.chain_id, BlockNumber(0), DEVNET, beacon, False, token
    )
    for each in made.creations:
        await wallet.create(each.name, each.data, each.gas)
    await mined(wallet)
    return made.deployment


async def registered(chain: Node, contracts: Contracts) -> None:
    wallet = BulkSender(chain.client, contracts.deployment.chain_id, COORDINATOR)
    key = COORDINATOR.address
    await wallet.call(
        "approve", contracts.token.approve(contracts.stakes.address, Amount(1_000 * USD))
    )
    await wallet.call("register", contracts.stakes.register_coordinator(key, key))
    await mined(wallet)


async def test_a_deposit_of_usd_coin_needs_a_permit_and_no_approval(tmp_path: Path) -> None:
    profile = create_profile(tmp_path / "client", "http://127.0.0.1:1", "pass", "devnet")
    me = profile.account.address
    async with node("devnet", block_seconds=1) as chain:
        wealthy = KeySigner(dev_account(0)).address
        assert await chain.client.balance(wealthy) and not await chain.client.nonce(wealthy)
        made = await deployed(chain, (me, COORDINATOR.address))
        await check_token(chain.client, made.token)
        await check_chain(chain.client, made)
        await registered(chain, Contracts.of(made))
        keys = (COORDINATOR.address, COORDINATOR.address, made.chain_id)
        places = (made.stakes, made.escrow, made.token)
        beacon = (made.beacon_key, int(made.beacon_period), made.beacon_genesis)
        identity = CoordinatorIdentity(*keys, *places, *beacon, "devnet")
        for _ in range(2):
            amount = Amount(25 * USD)
            await fund(profile, identity, chain.url, amount, "deposit-a", SystemClock())
        assert await chain.client.nonce(me) == 1, "the deposit, once"
        async with open_chain(identity, chain.url) as access:
            tab = await ask(access.client, access.escrow.tab(me, COORDINATOR.address))
            assert tab.locked == 25 * USD and access.currency.name.startswith("USDC ")
            left = await ask(access.client, access.token.allowance(me, made.escrow))
            assert (await ask(access.client, access.token.balance_of(me)), left) == (1_075 * USD, 0)
