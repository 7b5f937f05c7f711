"""Reads a daemon's passphrase from a file, a systemd credential or the keyboard."""

import getpass
import sys
from collections.abc import Mapping
from pathlib import Path

from quorate_runtime.keys.keystore import KeystoreError, read_passphrase_file

CREDENTIAL = "passphrase"


def passphrase_of(
    path: Path | None, environment: Mapping[str, str], whose: str, is_new: bool = False
) -> str:
    """Returns the passphrase from the first source that is there.

    The sources are `path`, the file $QUORATE_PASSWORD_FILE, the credential `passphrase`, and the
    keyboard. For a new key it is typed twice, because a typing error would lock its money away.
    Raises KeystoreError if there is no terminal to ask at, or the two differ.
    """
    if path is None and environment.get("QUORATE_PASSWORD_FILE"):
        path = Path(environment["QUORATE_PASSWORD_FILE"])
    folder = environment.get("CREDENTIALS_DIRECTORY")
    if path is None and folder and (Path(folder) / CREDENTIAL).exists():
        path = Path(folder) / CREDENTIAL
    if path is not None:
        return read_passphrase_file(path)
    if not sys.stdin.isatty():
        raise KeystoreError(
            "no passphrase: run this in a terminal, or give --password-file FILE (mode 0600) or "
            "QUORATE_PASSWORD_FILE"
        )
    typed = getpass.getpass(f"Passphrase of the {whose}'s keys: ")
    if not typed:
        raise KeystoreError("the passphrase is empty")
    if is_new and getpass.getpass("Again: ") != typed:
        raise KeystoreError("the two passphrases differ; nothing was made")
    return typed
