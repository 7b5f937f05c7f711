"""The settings file `<home>/node.json`.

`quorate node init` writes it, and the other commands read it.
"""

import shlex
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields

from quorate_node.base import gpu_settings
from quorate_node.base.config import (
    EVERY_GPU,
    FEE_CAP_GWEI,
    AttestationChoice,
    Config,
    ExecutorKind,
    GpuLayout,
    GpuPrice,
    TransportChoice,
    store_bytes,
)
from quorate_node.core.terms import MAX_HELD_DEFAULT
from quorate_protocol.codec import canonical
from quorate_protocol.messages.offer import IMAGES_MAX
from quorate_protocol.money_input import micro_usd
from quorate_protocol.quantity_input import SIZE_MAX, size_bytes, span_seconds
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.tabs import TRUST_DEFAULT
from quorate_protocol.units import Address, Amount, Price, usd
from quorate_protocol.values import replace
from quorate_runtime.files import file_lock, private_folder, write_atomic
from quorate_runtime.http.urls import web_url

FILE = "node.json"
LOCK_FILE = "settings.lock"
LOCKED_SECONDS = 2.0
SLOTS_MAX = 16
WHOLE_DIGITS_MAX = 6  # of a typed amount of USD
REGION_MAX = 64  # characters; a coordinator keeps no longer region
FILE_BYTES_MAX = 64 * 1024
DEVNET_FILE_BYTES_MAX = 1 << 20
GATEWAYS_MAX = 8
JURY_CASES_MAX = 1_000  # a day
JOB_USER_MAX = (1 << 31) - (1 << 16)
GATEWAY_EXAMPLE, KUBO_EXAMPLE = "http://127.0.0.1:8080", "http://127.0.0.1:5001"


class Settings(Struct, frozen=True):
    """The owner's choices.

    If `owner` or `payout` is zero, it is the account that `init` made.
    """

    coordinators: tuple[str, ...]
    owner: Address
    payout: Address
    slots: int
    price: Price
    price_floor: Price
    images: tuple[str, ...]
    region: str
    executor: ExecutorKind
    is_devnet: bool
    listen_host: str
    listen_port: int
    public_url: str
    store_bytes: int = 0  # 0 = half of the disk
    chain_url: str = ""  # empty = what the first coordinator names
    second_chain_url: str = ""
    fee_cap_gwei: int = FEE_CAP_GWEI
    ipfs_gateways: tuple[str, ...] = ()  # asked for content before the coordinators' stores
    gpu_slots: tuple[GpuLayout, ...] = EVERY_GPU
    gpu_prices: tuple[GpuPrice, ...] = ()  # GPUs without a price are not offered
    ipfs_kubo: str = ""  # RPC URL of a Kubo, whose gateway is asked too
    attestation: AttestationChoice = AttestationChoice.NONE
    transport: TransportChoice = TransportChoice.AUTO
    jury_price: Price = Price(0)  # per slot-hour; a juror votes `void` on cases that pay less
    jury_slots: int = 1  # the most that take part in juries at once; 0 = none
    jury_cases: int = 24  # the most in 24 hours
    trust: Amount = TRUST_DEFAULT  # what the owner works for beyond a coordinator's guarantee
    max_held: Amount = MAX_HELD_DEFAULT  # of pay that one coordinator holds without a voucher
    job_user: int = 0  # the first user that jobs run as; 0 = derived from the provider's folder
    probation: bool = False  # starts without stake, with one run slot

    def config(
        self,
        home: Path,
        executor: ExecutorKind | None,
        port: int | None,
        stop_on_exit: bool,
        noop_milliseconds: int = 0,
        drain_seconds: int = 0,
    ) -> Config:
        """Returns the daemon's configuration.

        The arguments come from flags, and win over the file.
        """
        return Config(
            home=home,
            coordinators=self.coordinators,
            executor=executor or self.executor,
            is_devnet=self.is_devnet,
            slots=self.slots,
            gpu_slots=self.gpu_slots,
            gpu_prices=self.gpu_prices,
            price=self.price,
            price_floor=self.price_floor,
            images=self.images,
            region=self.region,
            listen_host=self.listen_host,
            listen_port=self.listen_port if port is None else port,
            public_url=self.public_url,
            stop_on_exit=stop_on_exit,
            noop_milliseconds=noop_milliseconds,
            drain_seconds=drain_seconds,
            store_quota_bytes=store_bytes(self.store_bytes, home),
            chain_url=self.chain_url,
            second_chain_url=self.second_chain_url,
            fee_cap_gwei=self.fee_cap_gwei,
            ipfs_gateways=self.ipfs_gateways,
            ipfs_kubo=self.ipfs_kubo,
            attestation=self.attestation,
            transport=self.transport,
            job_user=self.job_user,
            jury_price=self.jury_price,
            jury_slots=self.jury_slots,
            jury_cases=self.jury_cases,
            trust=self.trust,
            max_held=self.max_held,
            probation=self.probation,
        )


@contextmanager
def changing(home: Path) -> Iterator[None]:
    """Lets one command at a time change a provider's settings and tell its daemon.

    Raises Unavailable while another one does. A home that does not exist is not made.
    """
    if not home.is_dir():
        yield
        return
    place = shlex.quote(str(home))
    busy = f"another command changes the settings of {place} now: type this again"
    with file_lock(home / LOCK_FILE, busy, LOCKED_SECONDS):
        yield


def write(home: Path, settings: Settings) -> None:
    """Replaces the file atomically.

    So the old file is still there after a full disk or a power cut.
    """
    private_folder(home)
    write_atomic(home / FILE, canonical.encode(settings))


def changed(home: Path, typed: Settings, named: Set[str]) -> Settings:
    """Returns the settings after a new `init`: the file's, with the fields that the user named
    changed.

    So naming another coordinator changes neither price nor owner. Without a readable file it
    returns `typed`. Raises Refused for settings that `read` would refuse.
    """
    try:
        kept = read(home)
    except Refused:
        settings = typed
    else:
        settings = replace(
            kept,
            **{
                field.name: getattr(typed, field.name)
                for field in fields(Settings)
                if field.name in named
            },
        )
    _check(settings)
    return settings


def read(home: Path) -> Settings:
    """Returns the settings of a provider's home.

    Raises Refused, with the remedy, if there is no file, if it cannot be read, or if somebody
    edited it to settings that `init` would refuse.
    """
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
            f"{path}: {refused.detail}; repair it, or run {again} with your options: keys stay",
        ) from refused
    return settings


def no_provider(home: Path) -> str:
    """The sentence about a folder in which no provider was made."""
    init = f"quorate node init --home {shlex.quote(str(home))} --coordinator URL"
    return f"there is no provider in {home}; name another folder, or make one with `{init}`"


def _check(settings: Settings) -> None:
    bounds = (
        ("slots", settings.slots, 0 if settings.gpu_prices else 1, SLOTS_MAX),
        ("listenPort", settings.listen_port, 0, 65535),
        ("storeBytes", settings.store_bytes, 0, SIZE_MAX),
        ("ipfsGateways", len(settings.ipfs_gateways), 0, GATEWAYS_MAX),
        ("images", len(settings.images), 0, IMAGES_MAX),
        ("jobUser", settings.job_user, 0, JOB_USER_MAX),
        ("jurySlots", settings.jury_slots, 0, SLOTS_MAX),
        ("juryCases", settings.jury_cases, 0, JURY_CASES_MAX),
        ("feeCapGwei", settings.fee_cap_gwei, 1, 1_000_000),
    )
    for name, value, least, most in bounds:
        if not least <= value <= most:
            raise Refused(Code.MALFORMED, f"{name}: {value} is not between {least} and {most}")
    if settings.probation and settings.slots + bool(settings.gpu_prices) != 1:
        raise Refused(
            Code.MALFORMED,
            "probation: without stake one run slot is offered; name --slots 1 and no --gpu-price, "
            "or --slots 0 and one slot of GPUs",
        )
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
    if not settings.price:
        raise Refused(Code.MALFORMED, "price: no job is matched at 0; name one above 0")
    if settings.price < settings.price_floor:
        floor = f"the price floor of {usd(settings.price_floor)}"
        raise Refused(
            Code.MALFORMED,
            f"price: {usd(settings.price)} is below {floor}: the provider would decline every job",
        )


def devnet_coordinator(path: Path) -> str:
    """Returns the coordinator's URL in a devnet.json, or in that of a devnet's folder.

    Raises Refused if the file is not one.
    """
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


def usd_price(text: str, field: str = "price") -> Price:
    """Returns micro-USD of a decimal text such as 0.10.

    Raises Refused, which names the field, for more than six decimals, a negative or a very large
    number.
    """
    try:
        return Price(micro_usd(text, WHOLE_DIGITS_MAX))
    except ValueError as error:
        raise Refused(Code.BAD_AMOUNT, f"{field}: {error}") from error


def bytes_of(text: str, field: str) -> int:
    """Returns the bytes of a size such as 200GB. Raises Refused, which names the field."""
    try:
        return size_bytes(text)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{field}: {error}") from error


def seconds_of(text: str, field: str) -> int:
    """Returns the seconds of a span such as 30s. Raises Refused, which names the field."""
    try:
        return span_seconds(text)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"{field}: {error}") from error
