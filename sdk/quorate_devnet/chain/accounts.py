"""Funded development accounts, from the well-known test mnemonic that all tools share.

Never hold value with them.

This module derives the keys itself (BIP-39 and BIP-32), because eth-account takes half a second to
import and a devnet starts several programs.
"""

import hmac
from functools import cache, lru_cache
from hashlib import pbkdf2_hmac

from coincurve import PrivateKey

from quorate_runtime.keys.crypto import KeySigner

MNEMONIC = "test test test test test test test test test test test junk"
HARDENED = 1 << 31
HD_PATH = (HARDENED + 44, HARDENED + 60, HARDENED, 0)  # m/44'/60'/0'/0
FUNDED = 64
BALANCE_WEI = 1_000_000 * 10**18


@lru_cache(maxsize=256)
def dev_account(index: int) -> bytes:
    """Returns the private key (32 bytes) of the development account at m/44'/60'/0'/0/index.

    Indices below `FUNDED` hold coins at genesis.
    """
    assert 0 <= index < HARDENED, f"no account {index}"
    return _child(*_parent(), index)[0]


def dev_address(index: int) -> bytes:
    return KeySigner(dev_account(index)).address


@cache
def _parent() -> tuple[bytes, bytes]:
    """Returns (key, chain code) at `HD_PATH`."""
    seed = pbkdf2_hmac("sha512", MNEMONIC.encode(), b"mnemonic", 2048)
    root = hmac.digest(b"Bitcoin seed", seed, "sha512")
    key, code = root[:32], root[32:]
    for index in HD_PATH:
        key, code = _child(key, code, index)
    return key, code


def _child(key: bytes, code: bytes, index: int) -> tuple[bytes, bytes]:
    """Returns the (key, chain code) of a child (BIP-32, CKDpriv)."""
    private = PrivateKey(key)
    public = b"\0" + key if index >= HARDENED else private.public_key.format(compressed=True)
    digest = hmac.digest(code, public + index.to_bytes(4, "big"), "sha512")
    return private.add(digest[:32]).secret, digest[32:]
