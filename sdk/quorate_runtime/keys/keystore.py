"""The keystore: one folder for each role, with one encrypted file for each key.

The keystore creates each file once with mode 0600 and never overwrites it. It refuses a file that
other users can read, because they may know its secret. The caller gives the passphrase; the command
line reads it from a prompt, a file or a systemd credential.
"""

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from quorate_protocol.limits import DEVNET, Limits
from quorate_protocol.units import Hash32
from quorate_runtime.files import sync_folder
from quorate_runtime.keys import keystore_v3
from quorate_runtime.keys.crypto import BoxKey, KeySigner, PeerKey, new_secret
from quorate_runtime.keys.key_errors import KeystoreError

__all__ = [
    "KEY_FILE_BYTES_MAX",
    "PASSPHRASE_BYTES_MAX",
    "Keystore",
    "KeystoreError",
    "Kind",
    "read_passphrase_file",
    "read_private",
]

KEY_FILE_BYTES_MAX = 16 * 1024
PASSPHRASE_BYTES_MAX = 1024


class Kind(StrEnum):
    """The kind of key that a file holds."""

    ACCOUNT = "secp256k1"
    PEER = "ed25519"
    BOX = "x25519"


@dataclass(frozen=True, slots=True)
class Keystore:
    """The keys of one role. Names are file names without `.json`: operator, payout, session, peer,
    box.
    """

    folder: Path
    passphrase: str
    kdf: keystore_v3.Kdf

    @classmethod
    def at(cls, folder: Path, passphrase: str, limits: Limits) -> "Keystore":
        """Returns the keystore in a folder. It makes the folder if it is missing. The passphrases
        of a devnet's keys are cheap to guess, so do not use such keys elsewhere.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(
            folder,
            passphrase,
            keystore_v3.CHEAP if limits.name == DEVNET.name else keystore_v3.STRONG,
        )

    def __repr__(self) -> str:
        return f"Keystore({str(self.folder)!r})"  # without the passphrase

    def has(self, name: str) -> bool:
        return self._path(name).exists()

    def create_account(self, name: str, secret: Hash32 | None = None) -> KeySigner:
        secret = secret or new_secret()
        signer = KeySigner(secret)
        self._write(name, secret, {"address": signer.address.hex(), "kind": Kind.ACCOUNT.value})
        return signer

    def account(self, name: str) -> KeySigner:
        """Opens an account key. It may be a version 3 file of another wallet."""
        return KeySigner(self._read(name))

    def create_peer(self, name: str = "peer") -> PeerKey:
        secret = new_secret()
        key = PeerKey(secret)
        self._write(name, secret, {"public": key.public.hex(), "kind": Kind.PEER.value})
        return key

    def peer(self, name: str = "peer") -> PeerKey:
        return PeerKey(self._read(name))

    def create_box(self, name: str = "box") -> BoxKey:
        secret = new_secret()
        key = BoxKey(secret)
        self._write(name, secret, {"public": key.public.hex(), "kind": Kind.BOX.value})
        return key

    def box(self, name: str = "box") -> BoxKey:
        return BoxKey(self._read(name))

    def _path(self, name: str) -> Path:
        assert name.replace("-", "").isalnum(), f"{name!r} is not a key name"
        return self.folder / f"{name}.json"

    def _write(self, name: str, secret: bytes, extra: dict[str, str]) -> None:
        """Writes a key file atomically and never over another key: losing a key loses money."""
        path = self._path(name)
        text = keystore_v3.encrypt(secret, self.passphrase, self.kdf, extra)
        draft = path.with_suffix(f".{os.getpid()}.new")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        except FileExistsError as error:
            raise KeystoreError(
                f"{path} exists. Move it away first if you really want a new key."
            ) from error
        finally:
            draft.unlink()
        sync_folder(self.folder)

    def _read(self, name: str) -> bytes:
        path = self._path(name)
        text = read_private(path, KEY_FILE_BYTES_MAX)
        try:
            return keystore_v3.decrypt(text, self.passphrase)
        except keystore_v3.WrongPassphrase as error:
            raise KeystoreError(
                f"the passphrase does not open {path}; give the one it was made with "
                f"(--password-file FILE)"
            ) from error
        except keystore_v3.Malformed as error:
            raise KeystoreError(f"{path}: {error}. Restore it from your backup.") from error


def read_passphrase_file(path: Path) -> str:
    """Returns the first line of a password file or systemd credential. Raises `KeystoreError` if
    other users can read the file or it is empty.
    """
    lines = read_private(path, PASSPHRASE_BYTES_MAX).decode().splitlines()
    if not lines or not lines[0]:
        raise KeystoreError(f"{path} is empty: write the passphrase on its first line")
    return lines[0]


def read_private(path: Path, bytes_max: int) -> bytes:
    """Returns the content of a file that only its owner can read, at most `bytes_max` bytes. Raises
    KeystoreError, with the remedy, if other users can read the file, or it is missing or too large.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_IMODE(mode) & 0o077:
                raise KeystoreError(
                    f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}). Run: chmod "
                    f"600 {path}"
                )
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise KeystoreError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > bytes_max:
        raise KeystoreError(
            f"{path} is larger than {bytes_max} bytes: it is not a file of this keystore"
        )
    return data
