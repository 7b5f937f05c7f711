"""Checks which network keys belong to which account (PROTOCOL 2.7, 3.6, 3.51).

A binding carries two signatures over one EIP-712 digest: the account's key names the peer key, and
the peer key names the account. So nobody can claim a peer key that is not its own.
"""

from collections.abc import Callable

from msgspec import Struct

from quorate_protocol.codec import eip712
from quorate_protocol.messages.envelope import Recover
from quorate_protocol.messages.signed import KeyBinding
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Signature

BINDINGS_MAX = 65_536  # accounts of which one program remembers the newest binding

VerifyPeer = Callable[[Hash32, bytes, Signature], None]
"""(Ed25519 public key, message, signature). Raises `Refused(BAD_SIGNATURE)` if it does not verify.

`quorate_runtime.keys.crypto.verify_peer` implements it.
"""


class SignedBinding(Struct, frozen=True):
    """A binding with both signatures over its EIP-712 digest."""

    binding: KeyBinding
    key: Address  # the operator key, or a coordinator's statement key, that signed
    sig: Signature  # 65 bytes, made by `key`
    peer_sig: Signature  # 64 bytes, made by the Ed25519 peer key


def sign_binding(
    domain: eip712.Domain,
    binding: KeyBinding,
    key: Address,
    sign: Callable[[Hash32], Signature],
    sign_as_peer: Callable[[bytes], Signature],
) -> SignedBinding:
    digest = eip712.digest(domain, binding)
    return SignedBinding(binding, key, sign(digest), sign_as_peer(digest))


def check_binding(
    domain: eip712.Domain,
    signed: SignedBinding,
    peer_key: Hash32,
    recover: Recover,
    verify_peer: VerifyPeer,
) -> None:
    """Checks both signatures, and that the binding names the peer key of the connection.

    Refused(WRONG_SIGNER) for another peer key, Refused(BAD_SIGNATURE) for a false signature. The
    caller still asks whether `signed.key` may speak for the account now.
    """
    if signed.binding.peer_key != peer_key:
        raise Refused(
            Code.WRONG_SIGNER,
            f"binding.peerKey: 0x{signed.binding.peer_key.hex()} is not the key of this connection",
        )
    digest = eip712.digest(domain, signed.binding)
    if recover(digest, signed.sig) != signed.key:
        raise Refused(
            Code.BAD_SIGNATURE, "sig: another key signed the binding, or for another deployment"
        )
    verify_peer(peer_key, digest, signed.peer_sig)


class KnownBindings:
    """The newest binding of each account. It is kept in memory only. After a restart an older
    binding counts once more, which harms nobody: its sender has proved the peer key in it.
    """

    def __init__(self, accounts_max: int = BINDINGS_MAX) -> None:
        self._accounts_max = accounts_max
        self._newest: dict[Address, KeyBinding] = {}
        self._owners: dict[Hash32, Address] = {}  # peer key -> account of its newest binding

    def learn(self, binding: KeyBinding) -> None:
        """Takes a checked binding as the account's newest.

        Refused(STALE) for a lower sequence number than seen before, Refused(EQUIVOCATION) for
        another binding with the same number, Refused(NOT_YOURS) for a peer key that is bound to
        another account now, and Refused(BUSY) when too many accounts are known.
        """
        known = self._newest.get(binding.account)
        if known is not None and binding.seq < known.seq:
            raise Refused(
                Code.STALE, f"binding.seq: {binding.seq} is lower than {known.seq}, seen before"
            )
        if known is not None and binding.seq == known.seq and binding != known:
            raise Refused(
                Code.EQUIVOCATION, f"binding.seq: another binding with number {known.seq} is known"
            )
        owner = self._owners.get(binding.peer_key, binding.account)
        if owner != binding.account:
            raise Refused(
                Code.NOT_YOURS, f"binding.peerKey: it is bound to 0x{owner.hex()}; use a new key"
            )
        if known is None and len(self._newest) >= self._accounts_max:
            raise Refused(Code.BUSY, f"bindings of {self._accounts_max} accounts are known")
        if known is not None:
            del self._owners[known.peer_key]
        self._newest[binding.account] = binding
        self._owners[binding.peer_key] = binding.account

    def newest(self, account: Address) -> KeyBinding | None:
        return self._newest.get(account)
