"""`quorate deposit` on a real devnet chain: the money arrives once, also if the command is
repeated.
"""

import time
from pathlib import Path

import pytest

from quorate.client.money.funding import fund
from quorate.client.profile import create_profile
from quorate.errors import RefusedError
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.deploy import Contracts
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.setup import genesis
from quorate_protocol.limits import USD
from quorate_protocol.ports import BeaconInfo
from quorate_protocol.units import Amount, Seconds
from quorate_runtime.beacon import bls
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from support.chain.chain_nodes import node


async def test_a_deposit_is_made_once(tmp_path: Path) -> None:
    profile = create_profile(tmp_path / "client", "http://127.0.0.1:1", "pass", "devnet")
    coordinator = KeySigner(dev_account(1))
    beacon = BeaconInfo(
        bls.public_key(bls.keygen(b"a test beacon's seed")), Seconds(2), int(time.time())
    )
    async with node("devnet", block_seconds=1) as chain:
        chain_id = await chain.client.chain_id()
        funds = genesis.Funds(
            coordinator,
            coordinator.address,
            KeySigner(dev_account(2)),
            Amount(0),
            (profile.account,),
            Amount(50 * USD),
        )
        deployment = await genesis.begin(chain.client, chain_id, beacon, (), funds)
        pins = CoordinatorIdentity(
            coordinator.address,
            coordinator.address,
            chain_id,
            deployment.stakes,
            deployment.escrow,
            deployment.token,
            beacon.public_key,
            2,
            beacon.genesis_time,
            "devnet",
        )
        escrow = Contracts.of(deployment).escrow

        async def allocated() -> int:
            query = escrow.allocation(profile.account.address, coordinator.address)
            return query.decode(await chain.client.call(query.to, query.data)).allocated

        before = await allocated()
        for _ in range(2):
            gas = await fund(
                profile, pins, chain.url, Amount(25 * USD), "deposit-a", SystemClock(), mint=True
            )
            assert gas > 0 and await allocated() == before + 25 * USD
        with pytest.raises(RefusedError, match="chain"):
            await fund(profile, pins, chain.url, Amount(10**9 * USD), "deposit-b", SystemClock())
        assert await allocated() == before + 25 * USD
