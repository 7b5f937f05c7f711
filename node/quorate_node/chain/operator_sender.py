"""Who pays for the provider's transactions: the operator key of today, so that an owner funds
one account.
"""

from pathlib import Path

from quorate_contracts.bindings.calls import Call
from quorate_node.chain.calls import transact
from quorate_node.keys.operator_keys import OperatorKeys
from quorate_protocol.ports import Clock
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Receipt, Sender


class OperatorSender:
    """One `Sender` for each operator key, with one file for all of them."""

    def __init__(self, ring: OperatorKeys, client: ChainClient, path: Path, clock: Clock) -> None:
        self._ring, self._client, self._path, self._clock = ring, client, path, clock
        self._senders: dict[Address, Sender] = {}

    async def send(self, purpose: str, call: Call, deadline_seconds: float) -> Receipt:
        """Does a purpose once: what an earlier key has signed for is waited for there. As
        `Sender.send`.
        """
        current = self._ring.current
        for signer in self._ring.signers:
            sender = self._senders.setdefault(
                signer.address, Sender(self._client, signer, self._path, self._clock)
            )
            if signer is not current and await sender.known(purpose):
                return await transact(sender, purpose, call, deadline_seconds)
        return await transact(self._senders[current.address], purpose, call, deadline_seconds)

    def close(self) -> None:
        """Closes the file; what is on its way stays on its way."""
        for sender in self._senders.values():
            sender.close()
