"""Signatures and encrypted boxes.

Accounts use secp256k1 (coincurve), peers use Ed25519, and sealed boxes use X25519 (PyNaCl). One CPU
core makes or recovers about ten thousand account signatures a second.
"""

import os
from functools import lru_cache

from coincurve import PrivateKey, PublicKey
from nacl.exceptions import BadSignatureError, CryptoError
from nacl.public import Box, SealedBox
from nacl.public import PrivateKey as NaClPrivateKey
from nacl.public import PublicKey as NaClPublicKey
from nacl.signing import SigningKey, VerifyKey

from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.envelope import check_signature_form
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Signature

STREAM_BLOCK = 128  # values


def recover(digest: Hash32, sig: Signature) -> Address:
    """Raises Refused(BAD_SIGNATURE) for a malleable, malformed or impossible signature."""
    check_signature_form(sig)
    try:
        key = PublicKey.from_signature_and_message(
            sig[:64] + bytes([sig[64] - 27]), digest, hasher=None
        )
    except ValueError as error:
        raise Refused(Code.BAD_SIGNATURE, "no key makes this signature") from error
    return address_of(key.format(compressed=False))


@lru_cache(maxsize=1024)
def recover_again(digest: Hash32, sig: Signature) -> Address:
    """Recovers as `recover` does, with a cache, for signatures that repeat. A client sends its
    session with each order and its token with each request.
    """
    return recover(digest, sig)


def address_of(public_key: bytes) -> Address:
    assert len(public_key) == 65 and public_key[0] == 4, "an uncompressed point is needed"
    return Address(keccak256(public_key[1:])[12:])


def new_secret() -> Hash32:
    """Returns 32 fresh random bytes. They serve as a secp256k1 secret (out of range once in 2^128),
    an Ed25519 seed or an X25519 secret.
    """
    return Hash32(os.urandom(32))


class SecretStream:
    """Fresh random values for the steps of an actor. Not for keys.

    It reads the system's randomness in blocks, because each read releases the interpreter's lock
    and waits to get it back. A forked child reads a block of its own.
    """

    __slots__ = ("_block", "_pid")

    def __init__(self) -> None:
        self._block: list[Hash32] = []
        self._pid = os.getpid()

    def __call__(self) -> Hash32:
        """Returns the next 32 unpredictable bytes. No value is given twice."""
        if not self._block or self._pid != os.getpid():
            self._pid, data = os.getpid(), os.urandom(32 * STREAM_BLOCK)
            self._block = [Hash32(data[at : at + 32]) for at in range(0, len(data), 32)]
        return self._block.pop()


class KeySigner:
    """A signer (`ports.Signer`) with its key in memory."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ValueError("an account secret has 32 bytes")
        self._key = PrivateKey(secret)
        self.address = address_of(self._key.public_key.format(compressed=False))

    def sign(self, digest: bytes) -> Signature:
        assert len(digest) == 32, "sign digests, not messages"
        raw = self._key.sign_recoverable(digest, hasher=None)
        return Signature(raw[:64] + bytes([raw[64] + 27]))


class PeerKey:
    """The Ed25519 key of one node's p2p identity. `seed` is its 32-byte secret."""

    def __init__(self, seed: bytes) -> None:
        self._key = SigningKey(seed)
        self.seed = bytes(self._key)
        self.public = Hash32(bytes(self._key.verify_key))

    def sign(self, message: bytes) -> Signature:
        return Signature(self._key.sign(message).signature)


def verify_peer(public: Hash32, message: bytes, sig: Signature) -> None:
    """Raises `Refused(BAD_SIGNATURE)` unless the Ed25519 key signed the message."""
    try:
        _verify_key(public).verify(message, sig)
    except (BadSignatureError, ValueError) as error:
        raise Refused(Code.BAD_SIGNATURE, "the peer key did not sign this") from error


@lru_cache(maxsize=4096)
def _verify_key(public: Hash32) -> VerifyKey:
    return VerifyKey(public)


class BoxKey:
    """An X25519 key that opens messages sealed to it, and seals them to another one."""

    def __init__(self, secret: bytes) -> None:
        self._key = NaClPrivateKey(secret)
        self.public = Hash32(bytes(self._key.public_key))

    def open_sealed(self, sealed: bytes) -> bytes:
        """Returns the message that an anonymous sender sealed with `seal_to`. Raises
        Refused(DOES_NOT_OPEN) for anything else.
        """
        try:
            return SealedBox(self._key).decrypt(sealed)
        except CryptoError as error:
            raise Refused(
                Code.DOES_NOT_OPEN, "it was not sealed to this box key, or it was changed"
            ) from error

    def seal(self, receiver: Hash32, plain: bytes) -> bytes:
        """Returns a box that only the receiver's key opens, and that only this key can have made.
        It is 40 bytes longer than the message.
        """
        return bytes(Box(self._key, NaClPublicKey(receiver)).encrypt(plain))

    def open(self, sender: Hash32, box: bytes) -> bytes:
        """Raises Refused(DOES_NOT_OPEN) unless `sender` sealed it to this key."""
        try:
            return Box(self._key, NaClPublicKey(sender)).decrypt(box)
        except (CryptoError, ValueError) as error:
            raise Refused(
                Code.DOES_NOT_OPEN, "it was not sealed to this box key by that sender"
            ) from error


def seal_to(public: Hash32, plain: bytes) -> bytes:
    """Returns a libsodium sealed box: anyone can make it, and only the key's owner opens it. It is
    48 bytes longer than the message.
    """
    return SealedBox(NaClPublicKey(public)).encrypt(plain)
