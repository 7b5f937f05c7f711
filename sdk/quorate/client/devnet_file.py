"""Reads the part of `devnet.json` that clients need: the coordinator and the funded profiles."""

import json
from dataclasses import dataclass
from pathlib import Path

from quorate.base.errors import ProfileError, UsageError
from quorate.client.base.locked_profile import open_locked
from quorate.client.base.profile import Profile, open_profile
from quorate_runtime.keys.keystore import KeystoreError, read_passphrase_file

FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class DevnetClient:
    """One funded profile."""

    name: str
    home: Path
    password_file: Path

    def open(self) -> Profile:
        return open_profile(self.home, self.passphrase())

    def locked(self) -> Profile:
        """Opens the profile; its keys are opened by the first signature."""
        return open_locked(self.home, self.passphrase, has_file=self.password_file.exists)

    def passphrase(self) -> str:
        """Returns the passphrase, which a devnet keeps in a file."""
        try:
            return read_passphrase_file(self.password_file)
        except KeystoreError as error:
            raise ProfileError(str(error)) from error


def profile_of(given: Profile | str | Path, client: str = "") -> Profile:
    """Returns an opened profile, or that of a devnet's client by the path of its devnet.json.

    Raises UsageError for anything else, ProfileError if the devnet has no such client.
    """
    if isinstance(given, Profile) and not client:
        return given
    if not isinstance(given, str | Path):
        raise UsageError(
            f"profile: give an opened profile or the path of a devnet.json, not "
            f"{type(given).__name__}"
            if not isinstance(given, Profile)
            else "client: it names a client of a devnet; an opened profile is one already"
        )
    path = Path(given).expanduser()
    if (path / "client.json").is_file():
        raise UsageError(
            f"profile: {path} needs its passphrase; write Market(open_profile({str(path)!r}, "
            "passphrase))"
        )
    clients = read_devnet(path / "devnet.json" if path.is_dir() else path)
    found = next((item for item in clients if client in ("", item.name)), None)
    if found is None:
        names = ", ".join(item.name for item in clients)
        raise ProfileError(f"{path}: there is no client {client!r}; it has {names}")
    return found.open()


def read_devnet(path: Path) -> tuple[DevnetClient, ...]:
    """Returns the clients of a running devnet in their order. Raises ProfileError if the file is
    absent or invalid.
    """
    try:
        tree = json.loads(path.read_bytes()[:FILE_BYTES_MAX])
        clients = tuple(
            DevnetClient(
                str(item["name"]),
                path.parent / str(item["home"]),
                path.parent / str(item["passwordFile"]),
            )
            for item in tree["clients"]
        )
    except FileNotFoundError as error:
        raise ProfileError(
            f"{path} does not exist; start a devnet with `quorate devnet up`"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        cause = (
            error.strerror
            if isinstance(error, OSError)
            else "not JSON"
            if isinstance(error, ValueError)
            else "it names no clients"
        )
        raise ProfileError(
            f"{path} is not a valid devnet.json ({cause}); `quorate devnet up` writes one, "
            "such as devnet/devnet.json"
        ) from error
    if not clients:
        raise ProfileError(f"{path}: it names no clients")
    return clients
