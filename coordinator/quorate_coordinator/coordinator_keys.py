"""The coordinator's three keys (PROTOCOL §2): account (bond), statement (signs messages),
posting (sends transactions).
"""

from dataclasses import dataclass

from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.keys.keystore import Keystore


@dataclass(frozen=True, slots=True)
class CoordinatorKeys:
    """Opened keys. They differ: a posting key that leaks can neither sign debt nor take the
    bond.
    """

    account: KeySigner
    statement: KeySigner
    posting: KeySigner


NAMES = ("account", "statement", "posting")


def create(keystore: Keystore) -> CoordinatorKeys:
    """Makes the keys that are missing."""
    for name in NAMES:
        if not keystore.has(name):
            keystore.create_account(name)
    return load(keystore)


def load(keystore: Keystore) -> CoordinatorKeys:
    """Opens all three; KeystoreError names what is wrong."""
    return CoordinatorKeys(*(keystore.account(name) for name in NAMES))
