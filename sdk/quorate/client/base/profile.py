"""A client's profile: a folder with its keys, its coordinator, the coordinator's pinned identity,
and its ledger.

    client.json    coordinator URL, deployment constants, lead
    keys/          account.json (signs sessions), session.json (signs orders, witnesses, vouchers)
    pins.json      the coordinator's identity, from first contact
    ledger.sqlite  every order, checked charge and voucher
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quorate.base.errors import ProfileError, UsageError
from quorate_protocol.limits import BY_NAME, MAINNET
from quorate_protocol.messages.ports import Signer
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Amount
from quorate_runtime.files import private_folder, write_atomic
from quorate_runtime.http.urls import web_url
from quorate_runtime.keys.keystore import Keystore, KeystoreError

FILE_BYTES_MAX = 64 * 1024
ACCOUNT, SESSION = "account", "session"


@dataclass(frozen=True, slots=True)
class Profile:
    """An opened profile, with its keys in memory."""

    home: Path
    coordinator_url: str
    account: Signer
    session: Signer
    limits: str = ""  # of the market it was made for; "" is not checked
    lead: Amount | None = None  # how far vouchers run ahead of checked charges; None: the default

    @property
    def pins_path(self) -> Path:
        """Returns the file of the coordinator's pinned identity."""
        return self.home / "pins.json"

    @property
    def ledger_path(self) -> Path:
        """Returns the ledger's file."""
        return self.home / "ledger.sqlite"

    @property
    def outputs(self) -> Path:
        """Returns the default folder of results."""
        return self.home / "outputs"

    @property
    def receipts(self) -> Path:
        """Returns the folder of receipts."""
        return self.home / "receipts"


def default_home(environment: Mapping[str, str]) -> Path:
    """Returns `$QUORATE_HOME/client`, or else a folder in the XDG data folder."""
    if environment.get("QUORATE_HOME"):
        return Path(environment["QUORATE_HOME"]) / "client"
    data = environment.get("XDG_DATA_HOME") or str(
        Path(environment.get("HOME", "~")).expanduser() / ".local" / "share"
    )
    return Path(data) / "quorate" / "client"


def create_profile(
    home: Path, coordinator_url: str, passphrase: str, limits: str = MAINNET.name
) -> Profile:
    """Makes a new profile with fresh keys and returns it. Raises the errors of `check_new`."""
    url = check_new(home, coordinator_url, limits)
    try:
        private_folder(home)
        keys = Keystore.at(home / "keys", passphrase, BY_NAME[limits])
        account, session = keys.create_account(ACCOUNT), keys.create_account(SESSION)
        _write(home / "client.json", {"coordinator": url, "limits": limits, "version": 1})
    except (OSError, KeystoreError) as error:
        raise ProfileError(
            f"{home}: {error}; choose a folder that you may write: quorate --home FOLDER init"
        ) from error
    return Profile(home, url, account, session)


def check_new(home: Path, coordinator_url: str, limits: str) -> str:
    """Checks the inputs of a new profile, before a passphrase is asked for, and returns the URL.

    Raises UsageError for a wrong input, ProfileError if there is a profile already: its keys may
    hold money.
    """
    if limits not in BY_NAME:
        raise UsageError(f"limits: {limits[:40]!r} is not one of {', '.join(BY_NAME)}")
    url = coordinator_url_of("--coordinator", coordinator_url)
    if (home / "client.json").exists():
        raise ProfileError(
            f"{home} already holds a profile; choose another folder with --home, or move that "
            "profile away"
        )
    return url


def change_coordinator(home: Path, coordinator_url: str, limits: str) -> bool:
    """Gives a profile another coordinator, if it has never met the one that it names. Its keys
    stay. Returns False if it has met that one or names this one already, or if the folder holds no
    profile of these limits.

    Raises UsageError for a wrong URL.
    """
    if not (home / "client.json").exists() or (home / "pins.json").exists():
        return False
    url = coordinator_url_of("--coordinator", coordinator_url)
    settings = read_settings(home)
    if settings["limits"] != limits or settings["coordinator"] == url:
        return False
    _write(home / "client.json", settings | {"coordinator": url, "version": 1})
    return True


def set_lead(home: Path, lead: Amount) -> None:
    """Stores how far the profile's vouchers may run ahead of its checked charges."""
    _write(home / "client.json", read_settings(home) | {"lead": str(lead), "version": 1})


def lead_setting(settings: Mapping[str, str]) -> Amount | None:
    """Returns the lead that a profile names, or None for the default."""
    return Amount(int(settings["lead"])) if "lead" in settings else None


def open_profile(home: Path, passphrase: str) -> Profile:
    """Opens the profile in a folder. Raises ProfileError, which says what is missing, or that the
    passphrase is wrong.
    """
    settings = read_settings(home)
    try:
        private_folder(home)
        keys = Keystore.at(home / "keys", passphrase, BY_NAME[settings["limits"]])
        return Profile(
            home,
            settings["coordinator"],
            keys.account(ACCOUNT),
            keys.account(SESSION),
            lead=lead_setting(settings),
        )
    except (OSError, KeystoreError) as error:
        raise ProfileError(str(error)) from error


def account_address(home: Path) -> Address:
    """Returns the account's address from its key file, without opening the key."""
    path = home / "keys" / f"{ACCOUNT}.json"
    try:
        tree = json.loads(path.read_bytes()[:FILE_BYTES_MAX])
        address = bytes.fromhex(str(tree["address"]).removeprefix("0x"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path} cannot be read: {error}; restore it from a backup") from error
    if len(address) != 20:
        raise ProfileError(f"{path} names no address; restore it from a backup")
    return Address(address)


def read_settings(home: Path, remedy: str = "quorate init --coordinator URL") -> dict[str, str]:
    """Returns coordinator URL, limits and the lead, if it is set, of `client.json` without opening
    a key. `remedy` is the command that makes one.
    """
    path = home / "client.json"
    try:
        tree = json.loads(path.read_bytes()[:FILE_BYTES_MAX])
    except FileNotFoundError as error:
        raise ProfileError(f"there is no profile in {home}; make one with `{remedy}`") from error
    except (OSError, ValueError) as error:
        raise ProfileError(
            f"{path} cannot be read: {error}; check `ls -ld {home}`, or choose another folder "
            "with --home"
        ) from error
    settings = (
        {key: str(tree.get(key, "")) for key in ("coordinator", "limits")}
        if isinstance(tree, dict)
        else {}
    )
    if not settings.get("coordinator") or settings.get("limits") not in BY_NAME:
        raise ProfileError(
            f"{path}: coordinator (a URL) and limits ({', '.join(BY_NAME)}) are missing or "
            "wrong; restore the file from a backup"
        )
    if "lead" in tree:
        lead = str(tree["lead"])
        if not (lead.isascii() and lead.isdecimal()):
            raise ProfileError(f"{path}: lead is no number; set it with `quorate lead USD`")
        settings["lead"] = lead
    try:
        return settings | {
            "coordinator": coordinator_url_of("coordinator", settings["coordinator"])
        }
    except UsageError as error:
        raise ProfileError(f"{path}: {error}") from error


def coordinator_url_of(name: str, text: str) -> str:
    """Checks the coordinator's URL as all programs do. UsageError names the flag or the key."""
    try:
        return web_url(name, text, "http://127.0.0.1:7700")
    except Refused as refused:
        raise UsageError(refused.detail) from refused


def _write(path: Path, tree: dict[str, object]) -> None:
    text = json.dumps(tree, indent=2, sort_keys=True) + "\n"
    write_atomic(path, text.encode())
