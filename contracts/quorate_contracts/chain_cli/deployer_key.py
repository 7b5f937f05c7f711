"""The key that pays for a deployment: a wallet's key file, or a file with the key in hex.

The deployer has no rights in the market that it makes, so the key matters only for its coins.
"""

import os
from pathlib import Path

from quorate_protocol.limits import MAINNET
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.keys.keystore import KEY_FILE_BYTES_MAX, Keystore, KeystoreError, read_private
from quorate_runtime.keys.passphrase import passphrase_of

WHOSE = "deployer"


def open_key(path: Path, password_file: Path | None) -> KeySigner:
    """Opens the key. Raises KeystoreError, which names the file and the remedy. A version 3 file
    needs its passphrase; a file with 64 hex digits needs none.
    """
    if not path.exists():
        raise KeystoreError(f"--key {path}: no such file; make one: quorate chain key {path}")
    text = read_private(path, KEY_FILE_BYTES_MAX).strip()
    if not text.startswith(b"{"):
        return _from_hex(path, text)
    passphrase = passphrase_of(password_file, os.environ, WHOSE)
    _check_name(path)
    return Keystore.at(path.parent, passphrase, MAINNET).account(path.stem)


def create_key(path: Path, password_file: Path | None) -> KeySigner:
    _check_name(path)
    if path.exists():
        raise KeystoreError(f"{path} exists. Move it away first if you really want a new key.")
    passphrase = passphrase_of(password_file, os.environ, WHOSE, is_new=True)
    return Keystore.at(path.parent, passphrase, MAINNET).create_account(path.stem)


def _check_name(path: Path) -> None:
    if path.suffix != ".json" or not path.stem.replace("-", "").isalnum():
        raise Refused(
            Code.MALFORMED,
            f"{path}: a key file's name has letters, digits and dashes, and ends in .json",
        )


def _from_hex(path: Path, text: bytes) -> KeySigner:
    try:
        secret = bytes.fromhex(text.decode("ascii").removeprefix("0x"))
        if len(secret) == 32:
            return KeySigner(secret)
    except ValueError:
        pass  # the sentence below says what the file should hold
    raise KeystoreError(
        f"--key {path}: it holds neither a wallet's key file (JSON, version 3) nor 64 hex digits"
    )
