"""A profile whose keys are opened at the first signature, by the agent or by the passphrase.

Commands that only read sign nothing, so they need neither passphrase nor agent.
"""

import json
from collections.abc import Callable
from pathlib import Path

from quorate.base.errors import ProfileError
from quorate.client.base.profile import ACCOUNT, SESSION, Profile, lead_setting, read_settings
from quorate_protocol.limits import BY_NAME
from quorate_protocol.messages.ports import Signer
from quorate_protocol.units import Address, Signature
from quorate_runtime.files import private_folder
from quorate_runtime.keys import key_agent
from quorate_runtime.keys.key_errors import KeystoreError

KEY_FILE_BYTES_MAX = 16 * 1024


class ProfileKeys:
    """The keys of one profile. `ask` returns the passphrase, and is called at most once.

    `has_file` says whether `ask` reads a file rather than ask a person.
    """

    def __init__(
        self, home: Path, limits: str, ask: Callable[[], str], has_file: Callable[[], bool]
    ) -> None:
        self._home, self._limits, self._ask, self._has_file = home, limits, ask, has_file
        self._open: dict[str, Signer] = {}
        self._passphrase: str | None = None
        self._agent: key_agent.Agent | None = None
        self._has_looked = False

    @property
    def is_open(self) -> bool:
        """Whether signing asks nobody for a passphrase."""
        if self._passphrase is not None or self._has_file():
            return True
        return self._running_agent() is not None

    def signer(self, name: str) -> Signer:
        """Returns the signer of a key. Raises ProfileError if the passphrase is wrong."""
        if name not in self._open:
            self._open[name] = self._opened(name)
        return self._open[name]

    def _opened(self, name: str) -> Signer:
        agent = self._running_agent()
        if agent is not None:
            return key_agent.AgentSigner(self._home / "keys", name, agent.addresses[name])
        # Imported here: reading the keystore loads ciphers, which reads do not need.
        from quorate_runtime.keys.keystore import Keystore

        passphrase = self._ask() if self._passphrase is None else self._passphrase
        try:
            private_folder(self._home)
            opened = Keystore.at(self._home / "keys", passphrase, BY_NAME[self._limits])
            signer = opened.account(name)
        except (OSError, KeystoreError) as error:
            raise ProfileError(str(error)) from error
        self._passphrase = passphrase
        return signer

    def _running_agent(self) -> key_agent.Agent | None:
        if not self._has_looked:
            self._agent, self._has_looked = key_agent.agent_of(self._home / "keys"), True
        return self._agent


class LockedSigner:
    """A signer (`ports.Signer`) whose address is known and whose key is opened when it signs."""

    def __init__(self, name: str, address: Address, keys: ProfileKeys) -> None:
        self.address = address
        self._name, self._keys = name, keys

    @property
    def is_open(self) -> bool:
        """Whether signing asks nobody for a passphrase."""
        return self._keys.is_open

    def sign(self, digest: bytes) -> Signature:
        """Returns the signature of a 32-byte digest. Raises ProfileError if the passphrase is
        wrong, or the file holds another key than it says.
        """
        signer = self._keys.signer(self._name)
        if signer.address != self.address:
            raise ProfileError(
                f"the key {self._name} is not the one that its file names; restore the profile's "
                "folder from your backup"
            )
        try:
            return signer.sign(digest)
        except KeystoreError as error:  # the agent has ended
            raise ProfileError(str(error)) from error


def open_locked(
    home: Path,
    ask: Callable[[], str],
    remedy: str = "",
    has_file: Callable[[], bool] = lambda: False,
) -> Profile:
    """Opens the profile in a folder without its keys. `ask` returns the passphrase when a signature
    is needed, and `has_file` whether it comes from a file. `remedy` is the command that makes a
    profile.

    Raises ProfileError, which says what is missing.
    """
    settings = read_settings(home, remedy) if remedy else read_settings(home)
    keys = ProfileKeys(home, settings["limits"], ask, has_file)
    signers = [_locked(home, name, keys) for name in (ACCOUNT, SESSION)]
    limits, lead = settings["limits"], lead_setting(settings)
    return Profile(home, settings["coordinator"], signers[0], signers[1], limits, lead)


def is_open(signer: Signer) -> bool:
    """Whether a signer signs without asking for a passphrase."""
    return not isinstance(signer, LockedSigner) or signer.is_open


def _locked(home: Path, name: str, keys: ProfileKeys) -> Signer:
    path = home / "keys" / f"{name}.json"
    try:
        with path.open("rb") as file:
            text = json.loads(file.read(KEY_FILE_BYTES_MAX))["address"]
        address = Address(bytes.fromhex(str(text).removeprefix("0x")))
    except OSError as error:
        raise ProfileError(
            f"{path}: {error.strerror}; restore the profile's folder from your backup"
        ) from error
    except (ValueError, KeyError, TypeError):
        # Not re-raised: a file of another wallet may name no address, so it is opened now.
        return keys.signer(name)
    return LockedSigner(name, address, keys) if len(address) == 20 else keys.signer(name)
