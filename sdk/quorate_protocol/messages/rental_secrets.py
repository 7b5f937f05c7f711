"""What a client sends to its rental in a box that only the provider opens (PROTOCOL 12.33)."""

import re

from quorate_protocol.codec import canonical
from quorate_protocol.messages.document import Document
from quorate_protocol.messages.job_spec import ENV_MAX, RESERVED_ENV
from quorate_protocol.messages.ports import RegistryLogin
from quorate_protocol.readable import Readable
from quorate_protocol.refusals import Code, Refused

BOX_BYTES_MAX = 64 << 10
DOCUMENT_BYTES_MAX = BOX_BYTES_MAX - 40  # a box has a nonce and a tag
FILES_MAX = 64
TEXT_MAX = 32 << 10
ENV_FILE = "env"  # of the variables, beside the files
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_URL = re.compile(r"https?://[a-z0-9.-]{1,253}(:[0-9]{1,5})?")
_HOST = re.compile(r"[a-z0-9.-]{1,253}(:[0-9]{1,5})?")


class _Hidden(Readable, frozen=True):
    """Shows no value: a secret must not reach a log by an error that prints it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class SecretFile(_Hidden, frozen=True):
    """A file below /run/secrets."""

    name: str
    content: bytes


class SecretVariable(_Hidden, frozen=True):
    """An environment variable of what the client starts over its streams."""

    name: str
    value: str


class RentalSecrets(Document, frozen=True):
    """The document in the box."""

    files: tuple[SecretFile, ...] = ()  # sorted by name
    variables: tuple[SecretVariable, ...] = ()  # sorted by name
    registry: RegistryLogin | None = None
    hub_token: str = ""  # for inputs hf://, sent to `hub` only
    hub: str = ""  # base URL of the hub

    def __repr__(self) -> str:
        return "RentalSecrets(...)"

    def headers_for(self, source: str) -> tuple[tuple[str, str], ...]:
        """Of a request for an input."""
        is_of_hub = bool(self.hub_token) and source.startswith(f"{self.hub}/")
        return (("Authorization", f"Bearer {self.hub_token}"),) if is_of_hub else ()

    def environment(self) -> dict[str, str]:
        return {item.name: item.value for item in self.variables}


def decode(data: bytes) -> RentalSecrets:
    """Raises Refused, which names a field and no value."""
    try:
        found = canonical.decode(RentalSecrets, data, BOX_BYTES_MAX)
    except Refused as refused:
        raise Refused(refused.code, "secrets: this is no document of secrets") from None
    validate(found)
    return found


def validate(secrets: RentalSecrets) -> None:
    names = [item.name for item in secrets.files]
    _check(
        len(names) <= FILES_MAX
        and names == sorted(set(names))
        and all(_FILE.fullmatch(name) and name != ENV_FILE for name in names),
        f"files: at most {FILES_MAX}, sorted, each named by 1 to 100 of A-Z a-z 0-9 . _ -, none "
        f"named {ENV_FILE}",
    )
    variables = [item.name for item in secrets.variables]
    _check(
        len(variables) <= ENV_MAX
        and variables == sorted(set(variables))
        and all(_VARIABLE.fullmatch(name) for name in variables)
        and not any(name.startswith(RESERVED_ENV) for name in variables),
        f"variables: at most {ENV_MAX}, sorted by name, none of {', '.join(RESERVED_ENV)}",
    )
    _check(all(map(_is_text, secrets.environment().values())), "variables: a value is too long")
    login = secrets.registry
    if login is not None:
        _check(_HOST.fullmatch(login.host) is not None, "registry: its host, such as ghcr.io")
        _check(_is_line(login.user) and ":" not in login.user, "registry: user: one line, no colon")
        _check(_is_line(login.password), "registry: password: one line")
    _check(not secrets.hub_token or _is_line(secrets.hub_token), "hubToken: one line")
    is_hub = _URL.fullmatch(secrets.hub) is not None
    _check(is_hub if secrets.hub_token else not secrets.hub, "hub: such as https://huggingface.co")


def _is_text(value: str) -> bool:
    return len(value) <= TEXT_MAX and "\0" not in value


def _is_line(value: str) -> bool:
    return 0 < len(value) <= TEXT_MAX and value.isascii() and value.isprintable()


def _check(good: bool, remedy: str) -> None:
    if not good:
        raise Refused(Code.MALFORMED, f"secrets.{remedy}")
