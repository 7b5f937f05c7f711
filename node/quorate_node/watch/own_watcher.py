"""Builds the provider's watcher, and pays for what it sends."""

from collections.abc import Mapping
from dataclasses import dataclass

from quorate_contracts.bindings.calls import Call
from quorate_contracts.deploy import Contracts
from quorate_contracts.watch.acting import Acting
from quorate_contracts.watch.bonds import BondedSender
from quorate_contracts.watch.epoch_watcher import EpochWatcher
from quorate_contracts.watch.evidence import Evidence
from quorate_node.chain.calls import transact
from quorate_node.chain.operator_sender import OperatorSender
from quorate_node.chain.owner_sender import owner_sender
from quorate_node.config import Config
from quorate_node.core.provider_core import ProviderCore
from quorate_node.keys.provider_keys import ProviderKeys
from quorate_node.messaging.coordinator_client import Coordinator
from quorate_node.watch.own_evidence import OwnEvidence
from quorate_protocol.ports import Clock
from quorate_protocol.units import Address, Amount
from quorate_runtime.chain import ChainClient

SEND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class WatchMoney:
    """Pays the watcher's gas under the operator key, and its bonds from the owner's tokens if the
    owner's key is here.
    """

    config: Config
    keys: ProviderKeys
    client: ChainClient
    contracts: Contracts
    operator_sender: OperatorSender
    clock: Clock

    async def pay(self, purpose: str, call: Call) -> None:
        """Sends a call under the operator key. Refused or Unavailable."""
        await self.operator_sender.send(purpose, call, SEND_SECONDS)

    async def fund(self, operator: Address, amount: Amount) -> None:
        """Sends tokens from the owner to the operator key, if the owner's key is here."""
        owner, token = self.keys.owner, self.contracts.token
        if owner is None or owner.address == operator:
            return
        nonce = await self.client.nonce(owner.address)
        home, chain_id = self.config.home, self.contracts.deployment.chain_id
        with owner_sender(home, self.client, owner, self.clock, chain_id) as sender:
            call = token.transfer(operator, amount)
            await transact(sender, f"watch-bond-{nonce}", call, SEND_SECONDS)


def make_watcher(
    money: WatchMoney, core: ProviderCore, coordinators: Mapping[Address, Coordinator]
) -> EpochWatcher:
    """Returns the watcher of this provider. Raises Refused if its file is damaged."""
    sender = BondedSender(
        money.client, money.contracts, lambda: money.operator_sender.address, money.pay, money.fund
    )
    home, account = money.config.home, core.terms.provider
    acting = Acting(account, money.client, money.contracts, sender, money.clock, home)
    return EpochWatcher(
        acting, Evidence(acting, OwnEvidence(core, coordinators)), lambda: coordinators
    )
