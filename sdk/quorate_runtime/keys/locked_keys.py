"""The account keys of a daemon's folder, for its commands.

A key's file names its address, so a command that only reads opens no key. The first signature uses
the agent of the folder, or asks for the passphrase.
"""

import json
from collections.abc import Callable
from pathlib import Path

from quorate_protocol.limits import MAINNET
from quorate_protocol.messages.ports import Signer
from quorate_protocol.units import Address, Signature
from quorate_runtime.keys import key_agent
from quorate_runtime.keys.keystore import KEY_FILE_BYTES_MAX, Keystore, KeystoreError, read_private

ADDRESS_BYTES = 20


class LockedKeys:
    """The keys of one folder. `ask` returns the passphrase, and is called at most once."""

    def __init__(self, folder: Path, ask: Callable[[], str]) -> None:
        self._folder, self._ask = folder, ask
        self._keystore: Keystore | None = None

    def signer(self, name: str) -> Signer:
        """Returns a signer that opens its key when it signs. Raises KeystoreError if there is no
        such key.
        """
        path = self._folder / f"{name}.json"
        try:
            text = json.loads(read_private(path, KEY_FILE_BYTES_MAX))["address"]
            address = bytes.fromhex(str(text).removeprefix("0x"))
        except (ValueError, LookupError, TypeError):
            address = b""  # a file of another wallet may name no address
        if len(address) != ADDRESS_BYTES:
            return self.opened(name)
        return LockedSigner(self, name, Address(address))

    def opened(self, name: str) -> Signer:
        """Returns a key of the agent, or of the keystore. Raises KeystoreError if neither opens."""
        agent = None if self._keystore else key_agent.agent_of(self._folder)
        if agent is not None and name in agent.addresses:
            return key_agent.AgentSigner(self._folder, name, agent.addresses[name])
        if self._keystore is None:
            # The file says how it was encrypted, so the limits do not matter.
            self._keystore = Keystore.at(self._folder, self._ask(), MAINNET)
        return self._keystore.account(name)


class LockedSigner:
    """A signer (`ports.Signer`) whose address is known and whose key is opened when it signs."""

    def __init__(self, keys: LockedKeys, name: str, address: Address) -> None:
        self.address = address
        self._keys, self._name = keys, name
        self._opened: Signer | None = None

    def sign(self, digest: bytes) -> Signature:
        """Returns the signature of a 32-byte digest. Raises KeystoreError if the passphrase is
        wrong, or the file holds another key than it says.
        """
        if self._opened is None:
            self._opened = self._keys.opened(self._name)
        if self._opened.address != self.address:
            told = f"the key {self._name} is not the one that its file names; restore your backup"
            raise KeystoreError(told)
        return self._opened.sign(digest)
