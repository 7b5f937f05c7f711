"""A client's profile with money on a real chain, without a coordinator."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from quorate.client.base.client_ledger import Ledger
from quorate.client.base.profile import Profile, create_profile
from quorate.client.money.chain_access import ChainAccess, open_chain
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.events import Event
from quorate_contracts.generated.contract_calls import Call
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.market import genesis
from quorate_devnet.market.bulk_sender import BulkSender
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Amount, BlockNumber, Hash32, Seconds
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import KeySigner
from support.chain.chain_nodes import Node, node

COORDINATOR, POSTING = KeySigner(dev_account(1)), KeySigner(dev_account(2))


@dataclass(slots=True)
class ClientMoney:
    """A profile with a tab for a coordinator that does not run."""

    profile: Profile
    ledger: Ledger
    identity: CoordinatorIdentity
    deployment: Deployment
    chain: ChainAccess
    node: Node
    ahead: int = 0

    async def later(self, seconds: int) -> None:
        """Makes a block so much later than the newest one."""
        head = await self.node.client.head()
        self.ahead += seconds
        await self.node.client.rpc.request("evm_mine", hex(head.time + seconds))

    async def call_as_coordinator(self, call: Call, is_posting: bool = False) -> Hash32:
        """Sends a transaction of the coordinator's account or posting key, waits for its block,
        and returns its hash.
        """
        client, signer = self.node.client, POSTING if is_posting else COORDINATOR
        nonce = await client.nonce(signer.address)
        wallet = BulkSender(client, self.identity.chain_id, signer, nonce)
        await wallet.call("call", call)
        (sent,) = wallet.sent.values()
        await genesis.mined([wallet])
        return sent

    async def events(self, name: str) -> list[Event]:
        """Returns the events of Escrow and Jobs of a kind, of all blocks."""
        head = await self.node.client.head()
        places = [self.deployment.escrow, self.deployment.jobs]
        contracts = Contracts.of(self.deployment)
        logs = await self.node.client.logs(BlockNumber(0), head.number, places)
        found = [contracts.event(log.address, log.topics, log.data) for log in logs]
        return [event for event in found if type(event).__name__ == name]


@contextlib.asynccontextmanager
async def client_money(
    folder: Path, deposit: Amount, block_seconds: int | None = 1
) -> AsyncIterator[ClientMoney]:
    """Deploys the contracts with devnet's limits, and deposits for a new profile."""
    profile = create_profile(folder / "client", "http://127.0.0.1:1", "pass", "devnet")
    beacon = BeaconInfo(
        bls.public_key(bls.keygen(b"a test beacon's seed")), Seconds(2), int(time.time())
    )
    async with node("devnet", block_seconds=block_seconds) as chain:
        chain_id = await chain.client.chain_id()
        own = (COORDINATOR, COORDINATOR.address, POSTING, Amount(1))
        funds = genesis.Funds(*own, (profile.account,), deposit)
        deployment = await genesis.begin(chain.client, chain_id, beacon, (), funds)
        identity = CoordinatorIdentity(
            COORDINATOR.address,
            COORDINATOR.address,
            chain_id,
            deployment.stakes,
            deployment.escrow,
            deployment.token,
            beacon.public_key,
            2,
            beacon.genesis_time,
            "devnet",
        )
        ledger = Ledger(profile.ledger_path)
        try:
            async with open_chain(identity, chain.url) as access:
                yield ClientMoney(profile, ledger, identity, deployment, access, chain)
        finally:
            ledger.close()
