"""The coordinator's keys (PROTOCOL §2). The account key owns the bond, the statement key signs
messages, the posting key sends transactions, and the peer key proves who it is on libp2p.
"""

from dataclasses import dataclass

from quorate_runtime.keys.crypto import KeySigner, PeerKey
from quorate_runtime.keys.keystore import Keystore


@dataclass(frozen=True, slots=True)
class CoordinatorKeys:
    """The opened keys. They are different keys, so that a stolen posting key can neither sign debt
    nor take the bond.
    """

    account: KeySigner
    statement: KeySigner
    posting: KeySigner
    peer: PeerKey


NAMES = ("account", "statement", "posting")
PEER = "peer"


def create(keystore: Keystore) -> CoordinatorKeys:
    """Makes the keys that are missing, and opens all."""
    for name in NAMES:
        if not keystore.has(name):
            keystore.create_account(name)
    return load(keystore)


def load(keystore: Keystore) -> CoordinatorKeys:
    """Opens all keys. Raises KeystoreError if an account key is missing, or one cannot be opened.

    A missing peer key is made: it owns nothing, and coordinators of earlier versions have none.
    """
    account, statement, posting = (keystore.account(name) for name in NAMES)
    peer = keystore.peer() if keystore.has(PEER) else keystore.create_peer()
    return CoordinatorKeys(account, statement, posting, peer)
