"""The coordinator's three keys (PROTOCOL §2). The account key owns the bond, the statement key
signs messages, and the posting key sends transactions.
"""

from dataclasses import dataclass

from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.keys.keystore import Keystore


@dataclass(frozen=True, slots=True)
class CoordinatorKeys:
    """The three opened keys. They are different keys, so that a stolen posting key can neither sign
    debt nor take the bond.
    """

    account: KeySigner
    statement: KeySigner
    posting: KeySigner


NAMES = ("account", "statement", "posting")


def create(keystore: Keystore) -> CoordinatorKeys:
    """Makes the keys that are missing, and opens all three."""
    for name in NAMES:
        if not keystore.has(name):
            keystore.create_account(name)
    return load(keystore)


def load(keystore: Keystore) -> CoordinatorKeys:
    """Opens all three keys. Raises KeystoreError if one is missing or cannot be opened."""
    return CoordinatorKeys(*(keystore.account(name) for name in NAMES))
