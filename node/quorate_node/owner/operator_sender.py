"""Sends the provider's transactions under its current operator key.

So the owner has to send coins for gas to one account only.
"""

from pathlib import Path

from quorate_contracts.calls import transact
from quorate_contracts.deploy import Deployment
from quorate_contracts.generated.contract_calls import Call
from quorate_node.base.operator_keys import OperatorKeys
from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Receipt, Sender


class OperatorSender:
    """One `Sender` for each operator key; all of them share one file."""

    def __init__(
        self,
        ring: OperatorKeys,
        client: ChainClient,
        path: Path,
        clock: Clock,
        deployment: Deployment,
    ) -> None:
        self._ring, self._client, self._path, self._clock = ring, client, path, clock
        self._deployment = deployment
        self._senders: dict[Address, Sender] = {}

    @property
    def address(self) -> Address:
        return self._ring.current.address

    async def send(self, purpose: str, call: Call) -> Receipt:
        """Once per purpose. Waits for a transaction that an earlier operator key signed."""
        current = self._ring.current
        for signer in self._ring.signers:
            sender = self._senders.setdefault(signer.address, self._sender_of(signer))
            if signer is not current and await sender.known(purpose):
                return await transact(sender, purpose, call)
        return await transact(self._senders[current.address], purpose, call)

    def _sender_of(self, signer: Signer) -> Sender:
        trusted = self._deployment.trusted()
        return Sender(self._client, signer, self._path, self._clock, **trusted)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
