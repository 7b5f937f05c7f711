"""The coordinator's keys (PROTOCOL §2). The account key owns the bond, the statement key signs
messages, the posting key sends transactions, and the peer key proves who it is on libp2p.
"""

import os
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from quorate_protocol.messages.ports import Signer
from quorate_protocol.units import Address
from quorate_runtime.files import sync_folder
from quorate_runtime.keys.crypto import KeySigner, PeerKey
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.locked_keys import LockedKeys


@dataclass(frozen=True, slots=True)
class CoordinatorKeys:
    """The opened keys. A stolen posting key can neither sign debt nor take the bond."""

    account: KeySigner
    statement: KeySigner
    posting: KeySigner
    peer: PeerKey


@dataclass(frozen=True, slots=True)
class MoneyKeys:
    """The keys that the operator's money commands use. They are opened when they sign."""

    account: Signer
    posting: Signer


NAMES = ("account", "statement", "posting")
PEER = "peer"
MONEY = ("account", "posting")


def create(keystore: Keystore) -> CoordinatorKeys:
    for name in NAMES:
        if not keystore.has(name):
            keystore.create_account(name)
    return load(keystore)


NEXT = "-next"  # the name of a key that replaces another one, until the chain knows it


def made_next(keystore: Keystore, name: str) -> KeySigner:
    """Makes the key that is to replace another one, unless an earlier try made it."""
    draft = f"{name}{NEXT}"
    return keystore.account(draft) if keystore.has(draft) else keystore.create_account(draft)


def put_next(folder: Path, name: str, replaced: Address) -> Path:
    """Returns where the replaced key is kept."""
    kept = folder / f"{name}-{replaced.hex()[:12]}.json"
    path = folder / f"{name}.json"
    if not kept.exists():
        os.link(path, kept)
    (folder / f"{name}{NEXT}.json").replace(path)
    sync_folder(folder)
    return kept


def locked(keys: LockedKeys) -> MoneyKeys:
    """Opens none of them. Raises KeystoreError if one is missing."""
    return MoneyKeys(*(keys.signer(name) for name in MONEY))


def account_of(folder: Path) -> Address:
    """Opens no key. Raises KeystoreError if it is missing."""
    return locked(LockedKeys(folder, _never)).account.address


def _never() -> str:
    raise AssertionError("an address needs no passphrase")


def load(keystore: Keystore) -> CoordinatorKeys:
    """Raises KeystoreError if an account key is missing, or is the same as another one, or one
    cannot be opened. A missing peer key is made: it owns nothing.
    """
    account, statement, posting = (keystore.account(name) for name in NAMES)
    _check_differ(keystore.folder, (account, statement, posting))
    peer = keystore.peer() if keystore.has(PEER) else keystore.create_peer()
    return CoordinatorKeys(account, statement, posting, peer)


def _check_differ(folder: Path, signers: tuple[KeySigner, ...]) -> None:
    for (name, one), (again, other) in combinations(zip(NAMES, signers, strict=True), 2):
        if one.address == other.address:
            raise KeystoreError(
                f"{folder}: {name}.json and {again}.json hold the same key; restore what was "
                "replaced, or move the copy away: `quorate coordinator init` makes a new key"
            )
