"""The settings of a devnet: one frozen `DevnetConfig`, with the folders and addresses that
follow from it, and the folder's lock.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, TypeVar

from msgspec import Struct

from quorate_node.base.config import (
    STORE_BYTES_MIN,
    AttestationChoice,
    ExecutorKind,
    TransportChoice,
    cpu_level_of,
)
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount, Price
from quorate_runtime.files import FOLDER_MODE, private_folder, write_atomic
from quorate_runtime.http.urls import web_url
from quorate_runtime.process.crash_points import CRASH_VARIABLE
from quorate_runtime.process.settings_flags import Option

MARKER = "devnet.json"
PASSWORD = "password"  # the file whose passphrase opens every key of a devnet
COORDINATOR = "coordinator"  # the process; providers are provider-0 and so on
HONEST = ""  # instead of a lie
PASSPHRASE = "devnet"  # keys of a devnet are worthless elsewhere
HONEST_PRICE = Price(3_600_000)  # micro-USD per slot-hour: a thousandth of a dollar a second
# Lower than all others, so that a liar becomes primary, until strikes rank it behind them.
LIAR_PRICE = Price(3_500_000)
CLIENT_DEPOSIT = Amount(2_000 * USD)
ACCUSATIONS = Amount(1_000 * USD)  # balance of the posting key, which pays juries
DEFAULT_PORTS = (8545, 8546, 7700, 7701)
PROVIDERS_MAX = 24
CLIENTS_MAX = 8
EARLIER = "earlier"  # what people made in the folder while earlier devnets ran
OURS = (
    "beacon",
    "chain",
    "client",
    "coordinator",
    EARLIER,
    "logs",
    "provider",
    "ready",
    MARKER,
    PASSWORD,
)
EXECUTOR_HELP = (
    "Executor of jobs: auto, docker (runc), docker-runsc (gVisor), bwrap, process, or noop (up "
    "only)."
)
Kind = TypeVar("Kind", bound=StrEnum)
_OWN_HOME = re.compile(r"(client|provider)-\d+|coordinator")
_ROLES = ("client", "coordinator", "provider")


class ChainKind(StrEnum):
    """The chain to run."""

    OWN = "own"
    ANVIL = "anvil"


class ExecutorChoice(StrEnum):
    """The executor of jobs.

    `auto`: docker if an engine answers, else bubblewrap if it works, else plain processes. `docker`
    always uses runc. gVisor takes twice as long to start a container, so a user must choose it as
    `docker-runsc`.
    """

    AUTO = "auto"
    DOCKER = "docker"
    DOCKER_RUNSC = "docker-runsc"
    BWRAP = "bwrap"
    PROCESS = "process"
    NOOP = "noop"

    @property
    def is_engine(self) -> bool:
        return self in (ExecutorChoice.DOCKER, ExecutorChoice.DOCKER_RUNSC)

    def kind(self) -> ExecutorKind:
        return (
            ExecutorKind.DOCKER_RUNC if self is ExecutorChoice.DOCKER else ExecutorKind(self.value)
        )


def one_of(kind: type[Kind], text: str, flag: str) -> Kind:
    """Returns the choice that a flag names. Raises ValueError."""
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{flag} {text!r} is unknown; choose one of {', '.join(kind)}") from error


def _gateways(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    return tuple(web_url(flag, text, "http://127.0.0.1:8080") for text in texts)


def _levels(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    return tuple(cpu_level_of(text, flag) for text in texts)


class DevnetConfig(Struct, frozen=True):
    """Settings of one devnet, of which some are flags of `quorate devnet up`.

    The first `liars` providers lie, each in its own way unless `is_colluding`.
    """

    folder: Path
    providers: Annotated[int, Option("Number of providers.")] = 5
    liars: Annotated[int, Option("Number of providers that lie; liars offer the lowest price.")] = 0
    clients: Annotated[int, Option("Number of funded client profiles.")] = 2
    slots: int = 1  # run slots of each honest provider
    store_bytes: int = STORE_BYTES_MIN  # of the coordinator's content store, and each provider's
    liar_slots: int = 2  # so that a liar can hold jobs of two clients at once
    executor: Annotated[
        ExecutorChoice, Option(EXECUTOR_HELP, read=partial(one_of, ExecutorChoice), show=str)
    ] = ExecutorChoice.AUTO
    chain: Annotated[
        ChainKind,
        Option(
            "Chain to run: own, or anvil if it is on PATH.",
            read=partial(one_of, ChainKind),
            show=str,
        ),
    ] = ChainKind.OWN
    is_colluding: Annotated[bool, Option("Make all liars tell the same lie.", "--colluding")] = (
        False
    )
    transport: Annotated[
        TransportChoice,
        Option(
            "Connections: auto (libp2p where installed), libp2p, or websocket.",
            read=partial(one_of, TransportChoice),
            show=str,
        ),
    ] = TransportChoice.AUTO
    noop_milliseconds: int = 0
    # Instead of free ports.
    has_default_ports: Annotated[
        bool, Option("Chain 8545, beacon 8546, coordinator 7700, libp2p 7701.", "--default-ports")
    ] = False
    declined_keep_seconds: int = 600  # how long a provider remembers declined leases
    ipfs_gateways: Annotated[
        tuple[str, ...],
        Option(
            "IPFS gateway that providers and coordinator ask. Repeatable.",
            "--ipfs-gateway",
            read=_gateways,
        ),
    ] = ()
    attestation: AttestationChoice = AttestationChoice.NONE  # of all providers
    cpu_levels: Annotated[
        tuple[str, ...],
        Option(
            "x86-64 level of the providers in turn, such as v3: several give several determinism "
            "classes. Repeatable.",
            "--cpu-level",
            read=_levels,
        ),
    ] = ()
    rentals: Annotated[
        bool, Option("Let providers lease machines too (`quorate rent`).", "--rentals")
    ] = False
    spot_percent: int = 0  # of the price, for spot rentals beside others
    egress: tuple[str, ...] = ()  # names that rentals may reach
    devnet_host: str = ""  # of them: NAME=ADDRESS:PORT, a server of this machine
    # For tests: a file `provider-0` in it names the crash point of that child.
    crash_folder: Path | None = None

    def __post_init__(self) -> None:
        """Raises ValueError that names the wrong setting."""
        if not 1 <= self.providers <= PROVIDERS_MAX or not 1 <= self.clients <= CLIENTS_MAX:
            raise ValueError(
                f"a devnet has 1 to {PROVIDERS_MAX} providers and 1 to {CLIENTS_MAX} clients"
            )
        if (
            not 0 <= self.liars <= self.providers
            or not 1 <= min(self.slots, self.liar_slots) <= max(self.slots, self.liar_slots) <= 16
        ):
            raise ValueError(
                "there can be at most as many liars as providers, and 1 to 16 run slots each"
            )

    def cpu_level(self, provider: int) -> str:
        """The level at which a provider runs jobs; "" is its machine's."""
        return self.cpu_levels[provider % len(self.cpu_levels)] if self.cpu_levels else ""

    def arming(self, name: str) -> dict[str, str]:
        """Returns the environment with which the coordinator or a provider finds its own crash
        point.
        """
        return {CRASH_VARIABLE: f"@{self.crash_folder / name}"} if self.crash_folder else {}

    def provider_home(self, index: int) -> Path:
        return self.folder / f"provider-{index}"

    def provider_status(self, index: int) -> Path:
        return self.provider_home(index) / "status.json"

    def client_home(self, index: int) -> Path:
        return self.folder / f"client-{index}"

    def ports(self) -> tuple[int, int, int, int]:
        """Returns the ports of chain, beacon, coordinator and its libp2p; 0 means any free one."""
        return DEFAULT_PORTS if self.has_default_ports else (0, 0, 0, 0)

    @property
    def coordinator_home(self) -> Path:
        return self.folder / "coordinator"

    @property
    def password_file(self) -> Path:
        """Returns the file whose passphrase opens every key here."""
        return self.folder / PASSWORD

    def price(self, index: int) -> Price:
        return LIAR_PRICE if index < self.liars else HONEST_PRICE

    def slots_of(self, index: int) -> int:
        return self.liar_slots if index < self.liars else self.slots

    def host(self, index: int) -> str:
        """Returns a provider's loopback address. Each has its own network (/24)."""
        return f"127.0.{index + 1}.1"

    def owner(self, index: int) -> str:
        """Returns a provider's account in hex, which labels its containers. Its keys exist."""
        path = self.provider_home(index) / "keys" / "owner.json"
        return str(json.loads(path.read_text())["address"]).removeprefix("0x")

    def lie(self, index: int) -> str:
        """Returns what a liar's lie depends on; HONEST for an honest provider."""
        if index >= self.liars:
            return HONEST
        return "0" if self.is_colluding else str(index)


def clear_folder(folder: Path, now: float) -> list[str]:
    """Makes the folder, and removes what an earlier devnet wrote. Homes that a person made there,
    and clients with outputs, are moved to `earlier/TIME/`. Returns their names.

    `now` is in seconds since 1970. Raises ValueError if the folder holds other files.

    File names alone do not show that: other programs may have `logs`, and a real provider has the
    same key files. So a non-empty folder counts as a devnet's only with its `devnet.json`, or with
    the password that every devnet writes first.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    held = sorted(path.name for path in folder.iterdir())
    strangers = [name for name in held if not name.startswith(OURS)] or (
        [] if _is_devnets(folder) else held
    )
    if strangers:
        raise ValueError(
            f"{folder} holds {strangers[0]!r}, which no devnet wrote; choose another folder "
            "with --dir"
        )
    private_folder(folder)
    kept = [path for path in sorted(folder.iterdir()) if _is_of_a_person(path)]
    if kept:
        at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H.%M.%S")
        place = folder / EARLIER / at
        place.mkdir(parents=True)
        for path in kept:
            path.rename(place / path.name)
    for path in sorted(
        folder.iterdir(), key=lambda path: path.name in (MARKER, PASSWORD)
    ):  # the files that mark it as a devnet's are removed last
        if path.name == EARLIER:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [path.name for path in kept]


def _is_of_a_person(path: Path) -> bool:
    if not path.name.startswith(_ROLES) or not path.is_dir() or path.is_symlink():
        return False
    return _OWN_HOME.fullmatch(path.name) is None or (path / "outputs").is_dir()


def _is_devnets(folder: Path) -> bool:
    if (folder / MARKER).exists():
        return True
    try:
        with (folder / PASSWORD).open("rb") as file:
            return file.read(64).strip() == PASSPHRASE.encode()
    except OSError:
        return False  # not a devnet's folder: it has no readable password file


class Lock:
    """Allows one devnet per folder.

    Raises ValueError if another one runs there. The kernel drops the lock with its process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def __enter__(self) -> "Lock":
        self._folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        # Locks the folder itself. A lock file inside would be deleted when the folder is emptied,
        # and one beside it would stay.
        self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            remedy = (
                f"end it: quorate devnet down --dir {shlex.quote(str(self._folder))}; or "
                "choose another folder with --dir"
            )
            raise ValueError(f"another devnet runs in {self._folder}; {remedy}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)


def write_devnet_file(facts: dict[str, object], config: DevnetConfig) -> None:
    """Writes `devnet.json` whole or not at all. Its presence says that everything is up."""
    text = json.dumps(facts, indent=2, sort_keys=True) + "\n"
    write_atomic(config.folder / MARKER, text.encode())
