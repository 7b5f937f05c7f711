"""Web3 secret storage version 3: a 32-byte secret under a passphrase, as Ethereum tools read it.

Source: https://ethereum.org/developers/docs/data-structures-and-encoding/web3-secret-storage.
This is our own code (one page), because eth-account takes over a second to import, and every
command that signs would wait for it. Peer and box keys use the same `crypto` section. Tests read
these files with eth-account, and eth-account's files with this module.
"""

import hashlib
import hmac
import json
import os
import uuid
from dataclasses import dataclass
from typing import Any

from quorate_protocol.codec.hashing import keccak256

SCRYPT_R = 8
WORK_BYTES_MAX = 2 << 30  # the most memory that opening a file may take
ROUNDS_MAX = 10_000_000


class WrongPassphrase(Exception):
    """The passphrase does not open the file."""


class Malformed(Exception):
    """The file is not a version 3 keystore, or asks for absurd work."""


@dataclass(frozen=True, slots=True)
class Kdf:
    """How expensive it is to guess a passphrase: scrypt's cost N, with r = 8 and p = 1. One guess
    takes 128 × N × r bytes of memory.
    """

    scrypt_n: int


STRONG = Kdf(1 << 18)  # 256 MiB and about a second, as geth does
CHEAP = Kdf(2)  # devnet keys only (PROTOCOL §9)


def encrypt(secret: bytes, passphrase: str, kdf: Kdf, extra: dict[str, str]) -> bytes:
    """Returns the JSON text of a keystore file. `extra` are further fields (address, kind, public)
    beside the crypto section.
    """
    assert len(secret) == 32, "secrets have 32 bytes"
    salt, iv = os.urandom(32), os.urandom(16)
    params = {"dklen": 32, "n": kdf.scrypt_n, "r": SCRYPT_R, "p": 1, "salt": salt.hex()}
    key = _derive("scrypt", params, passphrase)
    ciphertext = _aes(key, iv, secret)
    crypto = {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": iv.hex()},
        "ciphertext": ciphertext.hex(),
        "kdf": "scrypt",
        "kdfparams": params,
        "mac": keccak256(key[16:] + ciphertext).hex(),
    }
    return (
        json.dumps(
            {"version": 3, "id": str(uuid.uuid4()), **extra, "crypto": crypto}, indent=1
        ).encode()
        + b"\n"
    )


def decrypt(text: bytes, passphrase: str) -> bytes:
    """Returns the 32-byte secret of a keystore file. Raises `WrongPassphrase` or `Malformed`."""
    try:
        tree = json.loads(text)
        crypto = tree["crypto"]
        if tree["version"] != 3 or crypto["cipher"] != "aes-128-ctr":
            raise Malformed("only version 3 with aes-128-ctr is known")
        ciphertext, mac = bytes.fromhex(crypto["ciphertext"]), bytes.fromhex(crypto["mac"])
        key = _derive(crypto["kdf"], crypto["kdfparams"], passphrase)
        if not hmac.compare_digest(keccak256(key[16:] + ciphertext), mac):
            raise WrongPassphrase
        secret = _aes(key, bytes.fromhex(crypto["cipherparams"]["iv"]), ciphertext)
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"not a version 3 keystore ({error})") from error
    if len(secret) != 32:
        raise Malformed("it does not hold a 32-byte secret")
    return secret


def _derive(name: str, params: dict[str, Any], passphrase: str) -> bytes:
    """Derives 32 bytes: 16 for the cipher, 16 for the mac."""
    salt = bytes.fromhex(params["salt"])
    if params["dklen"] != 32:
        raise Malformed("a derived key has 32 bytes")
    if name == "scrypt":
        n, r, p = int(params["n"]), int(params["r"]), int(params["p"])
        work = 128 * r * (n + p + 2)
        if work > WORK_BYTES_MAX or n < 2 or p > 64:
            raise Malformed(f"scrypt with n={n}, r={r}, p={p} is not derived here")
        return hashlib.scrypt(
            passphrase.encode(), salt=salt, n=n, r=r, p=p, maxmem=work + (1 << 20), dklen=32
        )
    if (
        name == "pbkdf2"
        and params.get("prf") == "hmac-sha256"
        and 0 < int(params["c"]) <= ROUNDS_MAX
    ):
        return hashlib.pbkdf2_hmac("sha256", passphrase.encode(), salt, int(params["c"]), 32)
    raise Malformed(f"key derivation {name!r} is not known")


def _aes(key: bytes, iv: bytes, data: bytes) -> bytes:
    if len(iv) != 16:
        raise Malformed("an iv has 16 bytes")
    from Crypto.Cipher import AES  # 40 ms, and most commands open no key

    return AES.new(key[:16], AES.MODE_CTR, nonce=b"", initial_value=iv).encrypt(data)
