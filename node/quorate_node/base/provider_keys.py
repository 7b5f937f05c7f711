"""The provider's keys: operator (hot), peer and box, and the owner's key if it is kept here.

The peer key identifies the provider in connections, and the box key opens what is encrypted for it.
`quorate node rotate` only adds operator keys: `operator.json`, then `operator-2.json` and so on.
The newest is the one to use. So a rotation that stops halfway keeps both the old key and the new
one. The daemon moves a key that no job needs any more into `retired/`, and never deletes it. It no
longer opens that key, and the owner can still get the coins of its account.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.keys.crypto import BoxKey, PeerKey
from quorate_runtime.keys.keystore import KEY_FILE_BYTES_MAX, Keystore, read_private
from quorate_runtime.keys.locked_keys import LockedKeys

OPERATORS_MAX = 8  # a coordinator remembers as many
RETIRED = "retired"
_OPERATOR_FILE = re.compile(r"operator(?:-([1-9][0-9]{0,5}))?\.json")


@dataclass(frozen=True, slots=True)
class OwnerKeys:
    """The keys that the owner's commands use. They are opened when they sign."""

    account: Address
    payout: Address
    operator: Signer
    owner: Signer | None = None
    past: tuple[Signer, ...] = ()

    def operators(self) -> tuple[Signer, ...]:
        return (*self.past, self.operator)


@dataclass(frozen=True, slots=True)
class ProviderKeys:
    """The opened keys. `account` is registered in `Stakes`; `owner` signs for it, None = kept
    elsewhere. `operator` is the newest operator key, `past` older ones, oldest first.
    """

    account: Address
    payout: Address
    operator: Signer
    peer: PeerKey
    box_public: Hash32
    owner: Signer | None = None
    past: tuple[Signer, ...] = ()
    box: BoxKey | None = None  # of `box_public`

    def operators(self) -> tuple[Signer, ...]:
        return (*self.past, self.operator)

    @property
    def peer_public(self) -> Hash32:
        return self.peer.public


SigningKeys = OwnerKeys | ProviderKeys
"""What signs for a provider: the daemon's opened keys, or those of a command."""


def create(keystore: Keystore, owner: Address | None, payout: Address | None) -> ProviderKeys:
    """Makes the missing keys and opens all. Without `owner` it also makes an account key."""
    if owner is None and not keystore.has("owner"):
        keystore.create_account("owner")
    if not operator_names(keystore.folder):
        keystore.create_account("operator")
    for name, make in (("peer", keystore.create_peer), ("box", keystore.create_box)):
        if not keystore.has(name):
            make(name)
    return load(keystore, owner, payout)


def load(keystore: Keystore, owner: Address | None, payout: Address | None) -> ProviderKeys:
    """Opens the keys. Raises KeystoreError if one is missing."""
    signer = keystore.account("owner") if owner is None or keystore.has("owner") else None
    account = owner if owner is not None else signer.address if signer else None
    assert account is not None
    *past, operator = [
        keystore.account(name) for name in operator_names(keystore.folder) or ("operator",)
    ]
    peer, box = keystore.peer(), keystore.box()
    return ProviderKeys(
        account=account,
        payout=payout or account,
        operator=operator,
        peer=peer,
        box_public=box.public,
        owner=signer,
        past=tuple(past),
        box=box,
    )


def locked(
    folder: Path, keys: LockedKeys, owner: Address | None, payout: Address | None
) -> OwnerKeys:
    is_here = owner is None or (folder / "owner.json").exists()
    signer = keys.signer("owner") if is_here else None
    account = owner if owner is not None else signer.address if signer else None
    assert account is not None
    *past, operator = [keys.signer(name) for name in operator_names(folder) or ("operator",)]
    return OwnerKeys(account, payout or account, operator, signer, tuple(past))


def account_names(folder: Path) -> tuple[str, ...]:
    owner = ("owner",) if (folder / "owner.json").exists() else ()
    return (*owner, *operator_names(folder))


def operator_names(folder: Path) -> tuple[str, ...]:
    """Oldest first."""
    found = {
        int(match[1] or 1): path.stem
        for path in folder.glob("operator*.json")
        if (match := _OPERATOR_FILE.fullmatch(path.name))
    }
    return tuple(found[number] for number in sorted(found))


def add_operator(keystore: Keystore) -> Signer:
    names = operator_names(keystore.folder)
    if len(names) >= OPERATORS_MAX:
        raise Refused(
            Code.BUSY,
            f"{keystore.folder} holds {len(names)} operator keys, which is the most: "
            "`quorate node up` retires those that no job needs",
        )
    match = _OPERATOR_FILE.fullmatch(f"{names[-1]}.json") if names else None
    return keystore.create_account(f"operator-{int(match[1] or 1) + 1}" if match else "operator")


def retire_operator(folder: Path, address: Address) -> Path | None:
    """Moves a key into `retired/`, never the newest. Returns its new path; None: no such key."""
    for name in operator_names(folder)[:-1]:
        path = folder / f"{name}.json"
        if json.loads(read_private(path, KEY_FILE_BYTES_MAX)).get("address") == address.hex():
            place = folder / RETIRED / path.name
            place.parent.mkdir(mode=0o700, exist_ok=True)
            path.rename(place)
            return place
    return None
