"""What every command shares: finding and opening the profile, and printing results."""

import asyncio
import getpass
import json
import os
import shlex
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quorate.base.errors import ProfileError
from quorate.cli.terminal_text import plain

if TYPE_CHECKING:
    from quorate.client.base.profile import Profile
    from quorate.client.devnet_file import DevnetClient
    from quorate.client.market import Market

T = TypeVar("T")
JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on standard output and nothing else."),
]
CREDENTIAL = "quorate-client"


@dataclass(slots=True)
class Context:
    """The global options, and the environment at start."""

    home: Path | None = None
    devnet: Path | None = None
    client: str = ""
    password_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    is_json: bool = False

    def command(self, words: str) -> str:
        """Returns `quorate WORDS` as this user must type it: with the profile options that came
        from flags.
        """
        known = self.environment.get
        named = (
            ("--home", self.home, None),
            ("--devnet", self.devnet, known("QUORATE_DEVNET")),
            ("--client", self.client, None),
            ("--password-file", self.password_file, known("QUORATE_PASSWORD_FILE")),
        )
        flags = [
            f"{flag} {shlex.quote(str(value))} "
            for flag, value, environment in named
            if value and str(value) != environment
        ]
        return f"quorate {''.join(flags)}{words}"

    def profile_home(self) -> Path:
        from quorate.client.base.profile import default_home

        return self.home or default_home(self.environment)

    def readable_home(self) -> Path:
        from quorate.client.base.profile import read_settings

        home = self.profile_home() if self.devnet is None else self._devnet_client(self.devnet).home
        read_settings(home, self.command("init --coordinator URL"))
        return home

    def profile(self) -> "Profile":
        """Opens the devnet's profile or the folder's. The first signature asks for the passphrase:
        a file, a credential or the prompt, if no agent has the keys.
        """
        from quorate.client.base.locked_profile import open_locked

        if self.devnet is not None:
            return self._devnet_client(self.devnet).locked()
        home = self.profile_home()
        remedy = self.command("init --coordinator URL")
        return open_locked(
            home,
            lambda: self.passphrase(f"Passphrase of {home}"),
            remedy,
            lambda: self._passphrase_file() is not None,
        )

    def passphrase(self, prompt: str, is_new: bool = False) -> str:
        """Returns the passphrase from `--password-file`, a systemd credential or the keyboard."""
        from quorate_runtime.keys.keystore import KeystoreError, read_passphrase_file

        path = self._passphrase_file()
        if path is not None:
            try:
                return read_passphrase_file(path)
            except KeystoreError as error:
                raise ProfileError(str(error)) from error
        if not sys.stdin.isatty():
            raise ProfileError(
                "no passphrase: use a terminal, or give quorate --password-file FILE (mode "
                "0600) or QUORATE_PASSWORD_FILE"
            )
        return _typed(prompt, is_new)

    def _passphrase_file(self) -> Path | None:
        """Returns the file that has the passphrase: the flag's, or a systemd credential."""
        credentials = self.environment.get("CREDENTIALS_DIRECTORY")
        path = self.password_file
        if path is None and credentials and (Path(credentials) / CREDENTIAL).exists():
            path = Path(credentials) / CREDENTIAL
        return path

    def market(self) -> "Market":
        """Returns a Market of the profile that signs. Its notices go to standard error."""
        from quorate.client.market import Market
        from quorate.sources.resolution import Endpoints

        return Market(self.profile(), notice=note, endpoints=Endpoints.of(self.environment))

    def reading_market(self) -> "Market":
        """Returns a Market that never asks for a passphrase."""
        from quorate.client.market import Market

        return Market(self.profile(), notice=note, is_reading=True)

    def profile_flags(self) -> list[str]:
        """The words by which another process of this user opens the same profile."""
        home, file = self.home_in_use(), self._passphrase_file()
        if self.devnet is not None:
            file = self._devnet_client(self.devnet).password_file
        words = ["--home", str(home.absolute())]
        return words if file is None else [*words, "--password-file", str(file.absolute())]

    def home_in_use(self) -> Path:
        return self.profile_home() if self.devnet is None else self._devnet_client(self.devnet).home

    def passphrase_in_use(self, prompt: str) -> str:
        """Returns the passphrase of `home_in_use`. A devnet's client has it in a file."""
        if self.devnet is None:
            return self.passphrase(prompt)
        return self._devnet_client(self.devnet).passphrase()

    def _devnet_client(self, path: Path) -> "DevnetClient":
        from quorate.client.devnet_file import read_devnet

        clients = read_devnet(path)
        chosen = (
            [item for item in clients if item.name == self.client]
            if self.client
            else list(clients[:1])
        )
        if not chosen:
            raise ProfileError(
                f"{path}: there is no client {self.client!r}; it has "
                f"{', '.join(item.name for item in clients)}"
            )
        return chosen[0]


def _typed(prompt: str, is_new: bool) -> str:
    """Asks for a passphrase; for a new one until it is typed twice alike.

    typer asks first and hides then: what is typed in between would be shown, and lost.
    """
    try:
        while True:
            while not (typed := getpass.getpass(f"{prompt}: ")):
                pass
            if not is_new or getpass.getpass("Repeat for confirmation: ") == typed:
                return typed
            note("the two passphrases differ; type both again")
    except (KeyboardInterrupt, EOFError):
        note("")  # the next line begins below the question
        raise typer.Abort from None


def context_of(ctx: typer.Context) -> Context:
    """Returns the shared context of a command."""
    found = ctx.find_object(Context)
    assert found is not None, "main made it"
    return found


def run_async(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def note(sentence: str) -> None:
    """Prints a sentence on standard error, without control characters."""
    typer.echo(plain(sentence), err=True)


def emit(tree: Any) -> None:
    typer.echo(json.dumps(tree, sort_keys=True))


def from_environment(
    home: Path | None, devnet: Path | None, client: str, password_file: Path | None
) -> Context:
    """Builds the context: flags before environment before defaults."""
    environment = dict(os.environ)
    if devnet is None and home is None and environment.get("QUORATE_DEVNET"):
        devnet = Path(environment["QUORATE_DEVNET"])
    if password_file is None and environment.get("QUORATE_PASSWORD_FILE"):
        password_file = Path(environment["QUORATE_PASSWORD_FILE"])
    return Context(home, devnet, client, password_file, environment)
