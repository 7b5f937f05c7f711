"""The provider's keys: operator (hot), peer and box; the owner's account key only where its owner left it."""

from dataclasses import dataclass

from quorate_protocol.ports import Signer
from quorate_protocol.units import Address, Hash32
from quorate_runtime.keys import Keystore


@dataclass(frozen=True, slots=True)
class ProviderKeys:
    """`account` is the provider: the address registered in `Stakes`. `owner` signs for it; None = kept elsewhere."""

    account: Address
    payout: Address
    operator: Signer
    peer_public: Hash32
    box_public: Hash32
    owner: Signer | None = None


def create(keystore: Keystore, owner: Address | None, payout: Address | None) -> ProviderKeys:
    """Makes what is missing. Without `owner` an account key is made too, and it is the payout unless that is given."""
    if owner is None and not keystore.has("owner"):
        keystore.create_account("owner")
    for name, make in (("operator", keystore.create_account), ("peer", keystore.create_peer), ("box", keystore.create_box)):
        if not keystore.has(name):
            make(name)
    return load(keystore, owner, payout)


def load(keystore: Keystore, owner: Address | None, payout: Address | None) -> ProviderKeys:
    """Opens the keys; KeystoreError says what is missing."""
    signer = keystore.account("owner") if owner is None or keystore.has("owner") else None
    account = owner if owner is not None else signer.address if signer else None
    assert account is not None
    peer, box = keystore.peer(), keystore.box()
    return ProviderKeys(account, payout or account, keystore.account("operator"), peer.public, box.public, signer)
