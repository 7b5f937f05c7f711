"""What a devnet is made of: one frozen `DevnetConfig`, and the places and addresses that follow
from it.
"""

import hashlib
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from quorate_node.config import ExecutorKind
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount, Price
from quorate_runtime.process.crash_points import CRASH_VARIABLE

MARKER = "devnet.json"
PASSWORD = "password"  # the file that opens every key of a devnet
PASSPHRASE = "devnet"  # keys of a devnet are worthless elsewhere
HONEST_PRICE = Price(3_600_000)  # micro-USD per slot-hour: a thousandth of a dollar a second
LIAR_PRICE = Price(2_400_000)  # cheaper than everybody, so that a primary is a liar
CLIENT_DEPOSIT = Amount(2_000 * USD)
BONDS = Amount(1_000 * USD)  # of the posting key, for cases
DEFAULT_PORTS = (8545, 8546, 7700)
PROVIDERS_MAX = 24
CLIENTS_MAX = 8
OURS = ("beacon", "chain", "client", "coordinator", "logs", "provider", "ready", MARKER, PASSWORD)


class ChainKind(StrEnum):
    """Which chain runs."""

    OWN = "own"
    ANVIL = "anvil"


class ExecutorChoice(StrEnum):
    """What runs jobs; `auto`: docker when an engine answers, else bubblewrap when it makes
    sandboxes, else plain processes.

    `docker` is runc even where the engine knows gVisor, which takes twice as long to start a
    container: `docker-runsc` asks for it.
    """

    AUTO = "auto"
    DOCKER = "docker"
    DOCKER_RUNSC = "docker-runsc"
    BWRAP = "bwrap"
    PROCESS = "process"
    NOOP = "noop"

    @property
    def is_engine(self) -> bool:
        """Whether a container engine runs the jobs."""
        return self in (ExecutorChoice.DOCKER, ExecutorChoice.DOCKER_RUNSC)

    def kind(self) -> ExecutorKind:
        """What the provider daemons are told."""
        return (
            ExecutorKind.DOCKER_RUNC if self is ExecutorChoice.DOCKER else ExecutorKind(self.value)
        )


@dataclass(frozen=True, slots=True)
class DevnetConfig:
    """One devnet. Providers 0 to liars - 1 lie, each in its own way unless `is_colluding`."""

    folder: Path
    providers: int = 5
    liars: int = 0
    clients: int = 2
    slots: int = 1  # run slots of each honest provider
    liar_slots: int = 2  # a liar can hold jobs of two clients at once
    executor: ExecutorChoice = ExecutorChoice.AUTO
    chain: ChainKind = ChainKind.OWN
    is_colluding: bool = False
    noop_milliseconds: int = 0
    has_default_ports: bool = (
        False  # chain 8545, beacon 8546, coordinator 7700 instead of free ones
    )
    claims_for_all: bool = True  # whether the coordinator claims for its providers
    declined_keep_seconds: int = 600  # how long a provider remembers what it declined
    crash_folder: Path | None = (
        None  # tests: a file `provider-0` there says at which crash point that child dies
    )

    def __post_init__(self) -> None:
        """ValueError names what cannot be."""
        if not 1 <= self.providers <= PROVIDERS_MAX or not 1 <= self.clients <= CLIENTS_MAX:
            raise ValueError(
                f"1 to {PROVIDERS_MAX} providers and 1 to {CLIENTS_MAX} clients, please"
            )
        if (
            not 0 <= self.liars <= self.providers
            or not 1 <= min(self.slots, self.liar_slots) <= max(self.slots, self.liar_slots) <= 16
        ):
            raise ValueError(
                "there are at most as many liars as providers, and 1 to 16 run slots each"
            )

    def arming(self, name: str) -> dict[str, str]:
        """Environment of the coordinator or a provider: where it looks for the crash point that
        is meant for it alone.
        """
        return {CRASH_VARIABLE: f"@{self.crash_folder / name}"} if self.crash_folder else {}

    def provider_home(self, index: int) -> Path:
        """A provider daemon's folder."""
        return self.folder / f"provider-{index}"

    def client_home(self, index: int) -> Path:
        """A funded client profile."""
        return self.folder / f"client-{index}"

    def ports(self) -> tuple[int, int, int]:
        """Of chain, beacon and coordinator; 0 = any free one."""
        return DEFAULT_PORTS if self.has_default_ports else (0, 0, 0)

    @property
    def coordinator_home(self) -> Path:
        """The coordinator's folder."""
        return self.folder / "coordinator"

    @property
    def password_file(self) -> Path:
        """Opens every key here."""
        return self.folder / PASSWORD

    def price(self, index: int) -> Price:
        """What a provider asks: liars bid lowest."""
        return LIAR_PRICE if index < self.liars else HONEST_PRICE

    def slots_of(self, index: int) -> int:
        """Run slots of a provider, each with its stake slot."""
        return self.liar_slots if index < self.liars else self.slots

    def host(self, index: int) -> str:
        """Loopback address of a provider: a network (/24) of its own."""
        return f"127.0.{index + 1}.1"

    def label(self) -> str:
        """Names this devnet's containers."""
        return "devnet-" + hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]


def clear_folder(folder: Path) -> None:
    """Makes the folder, without what an earlier devnet left in it. ValueError when it holds
    something else.

    The names alone do not tell: somebody's own `logs`, or the keys of a real provider, are
    called the same. So a folder that is not empty is a devnet's only with its `devnet.json`, or
    with the password that every devnet writes before anything else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = sorted(path.name for path in folder.iterdir())
    strangers = [name for name in held if not name.startswith(OURS)] or (
        [] if _is_devnets(folder) else held
    )
    if strangers:
        raise ValueError(
            f"{folder} holds {strangers[0]!r}, which no devnet wrote; name another folder with "
            f"--dir"
        )
    for path in sorted(
        folder.iterdir(), key=lambda path: path.name in (MARKER, PASSWORD)
    ):  # what tells whose it is goes last
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_devnets(folder: Path) -> bool:
    if (folder / MARKER).exists():
        return True
    try:
        with (folder / PASSWORD).open("rb") as file:
            return file.read(64).strip() == PASSPHRASE.encode()
    except OSError:
        return False  # there is none that could be read: whoever made the folder, it was no devnet
