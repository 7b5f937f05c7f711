"""The settings file `<home>/node.json`.

`quorate node init` writes it, and the other commands read it.
"""

import shlex
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from quorate_node.base import gpu_settings
from quorate_node.base.config import (
    GATEWAY_EXAMPLE,
    KUBO_EXAMPLE,
    SLOTS_BY_GPUS,
    SLOTS_MAX,
    ExecutorKind,
    RentalTerms,
    Settings,
)
from quorate_node.base.schedule import schedule_of
from quorate_protocol.codec import canonical
from quorate_protocol.messages import egress
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import usd
from quorate_runtime.files import file_lock, private_folder, write_atomic
from quorate_runtime.http.urls import web_url
from quorate_runtime.process.settings_flags import check_bounds, with_named

FILE = "node.json"
HOME_MARK = "machine"  # names the machine and place of the folder
LOCK_FILE = "settings.lock"
LOCKED_SECONDS = 2.0
REGION_MAX = 64  # characters; a coordinator keeps no longer region
PUBLIC_URL_MAX = 256  # characters; the offer names it, and has little room
RENTING_EXECUTORS = (ExecutorKind.AUTO, ExecutorKind.DOCKER, ExecutorKind.DOCKER_RUNC)
FILE_BYTES_MAX = 64 * 1024
DEVNET_FILE_BYTES_MAX = 1 << 20


@contextmanager
def changing(home: Path) -> Iterator[None]:
    """One command at a time changes settings and tells the daemon. Raises Unavailable meanwhile."""
    if not home.is_dir():
        yield
        return
    place = shlex.quote(str(home))
    busy = f"another command changes the settings of {place} now: type this again"
    with file_lock(home / LOCK_FILE, Unavailable(busy, LOCKED_SECONDS)):
        yield


def write(home: Path, settings: Settings) -> None:
    private_folder(home)
    write_atomic(home / FILE, canonical.encode(settings))


def changed(home: Path, typed: Settings, named: Set[str]) -> Settings:
    """Returns the file's settings with the fields changed that the user named, or `typed` without a
    file. Raises Refused as `read` does.
    """
    settings = with_named(read(home), typed, named) if (home / FILE).exists() else typed
    _check(settings)
    return settings


def read(home: Path) -> Settings:
    """Raises Refused, with the remedy, for a missing or bad file, or what `init` would refuse."""
    path, again = home / FILE, f"`quorate node init --home {shlex.quote(str(home))}`"
    if not path.exists():
        raise Refused(Code.UNKNOWN, no_provider(home))
    try:
        settings: Settings = canonical.from_json(
            Settings, canonical.parse(path.read_bytes(), FILE_BYTES_MAX)
        )
        _check(settings)
    except Refused as refused:
        raise Refused(
            Code.MALFORMED,
            f"{path}: {refused.detail}; correct it there, or move it away and run {again} with "
            "your options: keys stay",
        ) from refused
    return settings


def no_provider(home: Path) -> str:
    init = f"quorate node init --home {shlex.quote(str(home))} --coordinator URL"
    return f"there is no provider in {home}; name another folder, or make one with `{init}`"


def _check(settings: Settings) -> None:
    check_bounds(settings)
    least = SLOTS_BY_GPUS if settings.gpu_prices or settings.slots == SLOTS_BY_GPUS else 1
    if not least <= settings.slots <= SLOTS_MAX:
        raise Refused(Code.MALFORMED, f"slots: {settings.slots} is not between 1 and {SLOTS_MAX}")
    if settings.probation and settings.cpu_slots + bool(settings.gpu_prices) != 1:
        raise Refused(
            Code.MALFORMED,
            "probation: without stake one run slot is offered; name --slots 1 and no --gpu-price, "
            "or --slots 0 and one slot of GPUs",
        )
    if fault := egress.fault_of(settings.egress):
        raise Refused(Code.MALFORMED, f"egress: {fault}")
    if settings.egress and settings.rentals is RentalTerms.NO:
        raise Refused(
            Code.MALFORMED,
            "egress: only rentals have it; add --rentals on-demand, or --egress none",
        )
    _check_spot(settings)
    schedule_of(settings.schedule)
    gpu_settings.check(settings.gpu_slots, settings.gpu_prices, settings.price_floor)
    if not settings.coordinators:
        raise Refused(
            Code.MALFORMED,
            "coordinators: the list is empty; name the market to join: --coordinator URL, or "
            "--devnet devnet.json",
        )
    for url in settings.coordinators:
        web_url("coordinators", url, "http://127.0.0.1:7700")
    for url in settings.ipfs_gateways:
        web_url("ipfsGateways", url, GATEWAY_EXAMPLE)
    if settings.ipfs_kubo:
        web_url("ipfsKubo", settings.ipfs_kubo, KUBO_EXAMPLE)
    if len(settings.region) > REGION_MAX or not settings.region.isprintable():
        raise Refused(
            Code.MALFORMED,
            f"region {settings.region[:80]!r}: at most {REGION_MAX} letters, on one line",
        )
    if len(settings.public_url) > PUBLIC_URL_MAX:
        raise Refused(
            Code.MALFORMED,
            f"publicUrl {settings.public_url[:300]!r}: at most {PUBLIC_URL_MAX} characters",
        )
    if not settings.price:
        raise Refused(Code.MALFORMED, "price: no job is matched at 0; name one above 0")
    if settings.price < settings.price_floor:
        floor = f"the price floor of {usd(settings.price_floor)}"
        raise Refused(
            Code.MALFORMED,
            f"price: {usd(settings.price)} is below {floor}: the provider would decline every job",
        )


def check_renting(settings: Settings) -> None:
    """Only for `init`: a daemon with such a file runs jobs, and says that it offers no rentals."""
    if settings.rentals is RentalTerms.NO:
        return
    if settings.probation:
        raise Refused(
            Code.MALFORMED,
            "rentals: only providers with stake get them; name --no-probation, or --rentals no",
        )
    if settings.executor not in RENTING_EXECUTORS:
        raise Refused(
            Code.MALFORMED,
            f"rentals: they need Docker with runc, not {settings.executor}; name --executor "
            "docker-runc, or --rentals no",
        )


def _check_spot(settings: Settings) -> None:
    if not settings.spot_percent:
        return
    if settings.rentals is not RentalTerms.ON_DEMAND:
        raise Refused(
            Code.MALFORMED,
            "spotPercent: only rentals on demand have it; add --rentals on-demand, or "
            "--spot-percent 0",
        )
    prices = (settings.price, *(item.price for item in settings.gpu_prices))
    least = min(prices) * settings.spot_percent // 100
    if least < max(1, settings.price_floor):
        raise Refused(
            Code.MALFORMED,
            f"spotPercent: a spot price of {usd(least)} is below the price floor of "
            f"{usd(settings.price_floor)}: raise it, or lower --price-floor",
        )


def devnet_coordinator(path: Path) -> str:
    """Reads the URL from a devnet.json, or from a devnet's folder. Raises Refused if it is none."""
    path = path / "devnet.json" if path.is_dir() else path
    try:
        tree = canonical.parse(path.read_bytes(), DEVNET_FILE_BYTES_MAX)
    except OSError as error:
        raise Refused(
            Code.UNKNOWN, f"{path}: {error.strerror}; start a devnet with `quorate devnet up`"
        ) from error
    except Refused as error:
        raise Refused(
            Code.MALFORMED,
            f"{path} is no devnet.json ({error.detail}); `quorate devnet up` writes one",
        ) from error
    coordinator = tree.get("coordinator") if isinstance(tree, dict) else None
    url = coordinator.get("url") if isinstance(coordinator, dict) else None
    if not isinstance(url, str):
        raise Refused(Code.MALFORMED, f"{path} is no devnet.json: coordinator.url is missing")
    return url.rstrip("/")


def check_not_copied(home: Path, machine: Path = Path("/etc/machine-id")) -> None:
    """Two daemons with the same keys contradict each other. So the folder remembers its machine and
    its place, which a copy has not. Raises Refused.
    """
    name = machine.read_text().strip() if machine.exists() else ""
    here, file = f"{name} {home.stat().st_ino}", home / HOME_MARK
    if not file.exists():
        write_atomic(file, here.encode(), 0o600)
    elif file.read_text() != here:
        raise Refused(
            Code.UNSUPPORTED,
            f"{home} was copied: two daemons with the same keys contradict each other, and lose "
            f"stake. If the other one never runs again, remove {file}",
        )
