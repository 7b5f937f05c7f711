"""Sends the provider's transactions: under its current operator key, and under the owner's."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from quorate_contracts.calls import transact
from quorate_contracts.deploy import Deployment
from quorate_contracts.generated.contract_calls import Call
from quorate_node.base.operator_keys import OperatorKeys
from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address
from quorate_runtime.chain import ChainClient, Receipt, Sender
from quorate_runtime.files import file_lock


@dataclass(slots=True)
class OperatorSender:
    """One `Sender` for each operator key, in one file: the owner sends gas money to one account."""

    ring: OperatorKeys
    client: ChainClient
    path: Path
    clock: Clock
    deployment: Deployment
    _senders: dict[Address, Sender] = field(default_factory=dict)

    @property
    def address(self) -> Address:
        return self.ring.current.address

    async def send(self, purpose: str, call: Call) -> Receipt:
        """Once per purpose. Waits for a transaction that an earlier operator key signed."""
        current = self.ring.current
        for signer in self.ring.signers:
            sender = self._senders.setdefault(signer.address, self._sender_of(signer))
            if signer is not current and await sender.known(purpose):
                return await transact(sender, purpose, call)
        return await transact(self._senders[current.address], purpose, call)

    def _sender_of(self, signer: Signer) -> Sender:
        trusted = self.deployment.trusted()
        return Sender(self.client, signer, self.path, self.clock, **trusted)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()


LOCK_FILE = "owner.lock"
SENDS_FILE = "owner.sqlite"
LOCKED_SECONDS = 2.0


@contextmanager
def owner_sender(
    home: Path, client: ChainClient, owner: Signer, clock: Clock, deployment: Deployment
) -> Iterator[Sender]:
    """The owner's key sends once at a time, daemon and commands in turn: raises Unavailable while
    another program does. What one has signed and not finished, the next finishes.
    """
    with owner_lock(home):
        sender = Sender(client, owner, home / SENDS_FILE, clock, **deployment.trusted())
        try:
            yield sender
        finally:
            sender.close()


@contextmanager
def owner_lock(home: Path) -> Iterator[None]:
    """Holds the lock of the owner's key. Raises Unavailable while another program has it."""
    place = shlex.quote(str(home))
    busy = (
        f"another command or the daemon sends transactions of {place} now: type this again in a "
        "minute"
    )
    with file_lock(home / LOCK_FILE, Unavailable(busy, LOCKED_SECONDS)):
        yield
