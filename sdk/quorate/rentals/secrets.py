"""A client's secrets for a rental: read once, sealed to its provider, and sent until it runs.

Until then they lie in the profile, in a file that only its owner reads, because the rental may get
another provider. They are in no order, spec or log.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorate.base.errors import UsageError
from quorate_protocol.messages import rental_secrets
from quorate_protocol.messages.offer import Offer
from quorate_protocol.messages.ports import RegistryLogin
from quorate_protocol.messages.rental_secrets import RentalSecrets, SecretFile, SecretVariable
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Hash32
from quorate_runtime.files import private_folder, write_atomic
from quorate_runtime.keys.crypto import BoxKey

HUB = "https://huggingface.co"
FOLDER = "secrets"
_SEED_BYTES = 32
_FROM_ENV = "env:"


@dataclass(frozen=True, slots=True, repr=False)
class OrderSecrets:
    """The secrets of one order, and the key under which they are sealed."""

    document: RentalSecrets
    seed: bytes = field(default_factory=lambda: os.urandom(_SEED_BYTES))

    def __repr__(self) -> str:
        return "OrderSecrets(...)"

    @property
    def seal_key(self) -> Hash32:
        return BoxKey(self.seed).public

    def box_for(self, offer: Offer) -> bytes:
        return BoxKey(self.seed).seal(offer.box_key, self.document.encode())


def read_secrets(
    named: Sequence[str], login: str, hub_token: str, environ: Mapping[str, str]
) -> OrderSecrets | None:
    """`named`: NAME=FILE, or NAME=env:VARIABLE for a variable; `login`: HOST=USER:FILE, or
    HOST=USER:env:VARIABLE; `hub_token`: FILE or env:VARIABLE. Raises UsageError, without a value.
    """
    files: dict[str, bytes] = {}
    variables: dict[str, str] = {}
    for text in named:
        name, equals, source = text.partition("=")
        if not equals or not source:
            raise UsageError("--secret: write NAME=FILE, or NAME=env:VARIABLE")
        if name in files or name in variables:
            raise UsageError(f"--secret: {name[:80]} is given twice")
        value = _value(source, "--secret", environ)
        if source.startswith(_FROM_ENV):
            variables[name] = _text(value, "--secret")
        else:
            files[name] = value
    document = RentalSecrets(
        files=tuple(SecretFile(name, files[name]) for name in sorted(files)),
        variables=tuple(SecretVariable(name, variables[name]) for name in sorted(variables)),
        registry=_login(login, environ) if login else None,
        hub_token=_line(hub_token, "--hub-token", environ) if hub_token else "",
        hub=environ.get("HF_ENDPOINT", HUB).rstrip("/") if hub_token else "",
    )
    if document == RentalSecrets():
        return None
    try:
        rental_secrets.validate(document)
    except Refused as refused:
        raise UsageError(refused.detail) from refused
    if len(document.encode()) > rental_secrets.DOCUMENT_BYTES_MAX:
        most = rental_secrets.DOCUMENT_BYTES_MAX // 2
        raise UsageError(f"--secret: all of them together have at most {most} bytes")
    return OrderSecrets(document)


def _login(text: str, environ: Mapping[str, str]) -> RegistryLogin:
    host, equals, rest = text.partition("=")
    user, colon, source = rest.partition(":")
    if not (equals and colon and host and user and source):
        raise UsageError("--registry-login: write HOST=USER:FILE, or HOST=USER:env:VARIABLE")
    return RegistryLogin(host, user, _line(source, "--registry-login", environ))


def _line(source: str, flag: str, environ: Mapping[str, str]) -> str:
    return _text(_value(source, flag, environ), flag).strip()


def _text(value: bytes, flag: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{flag}: the value is no UTF-8 text; give a file instead") from None


def _value(source: str, flag: str, environ: Mapping[str, str]) -> bytes:
    if source.startswith(_FROM_ENV):
        name = source.removeprefix(_FROM_ENV)
        if name not in environ:
            raise UsageError(f"{flag}: this program's environment has no {name[:80]}")
        return environ[name].encode("utf-8", "surrogateescape")
    try:
        with Path(source).expanduser().open("rb") as file:
            return file.read(rental_secrets.BOX_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"{flag}: {source[:80]}: {error.strerror}") from error


def keep(home: Path, job_id: Hash32, secrets: OrderSecrets) -> None:
    """Until the rental runs, so that any command of this profile can send them."""
    folder = home / FOLDER
    private_folder(folder)
    write_atomic(folder / job_id.hex(), secrets.seed + secrets.document.encode(), 0o600)


def waiting(home: Path) -> dict[Hash32, OrderSecrets]:
    """Of rentals that do not run yet."""
    found: dict[Hash32, OrderSecrets] = {}
    for path in sorted((home / FOLDER).glob("?" * 64)):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # another program of this client has delivered it meanwhile
        document = rental_secrets.decode(data[_SEED_BYTES:])
        found[Hash32(bytes.fromhex(path.name))] = OrderSecrets(document, data[:_SEED_BYTES])
    return found


def forget(home: Path, job_id: Hash32) -> None:
    (home / FOLDER / job_id.hex()).unlink(missing_ok=True)
