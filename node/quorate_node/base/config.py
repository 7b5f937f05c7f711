"""An owner's choices and the configuration of the provider daemon.

A field of `Settings` is all that there is of a setting: flag of `quorate node init`, line of the
settings file, and field of the daemon's `Config`.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import asdict

from quorate_content.store.disk_share import disk_bytes, free_bytes, half_of_free
from quorate_node.base.gpu_settings import (
    COUNT_MAX,
    EVERY_GPU,
    GpuLayout,
    GpuPrice,
    layouts_of,
    prices_of,
)
from quorate_node.base.schedule import schedule_text
from quorate_node.base.typed_values import (
    address_of,
    bytes_of,
    egress_of,
    images_of,
    seconds_of,
    url_like,
    urls_like,
    usd_price,
)
from quorate_node.core.terms import MAX_HELD_DEFAULT
from quorate_protocol.limits import OFFER_BYTES_MAX
from quorate_protocol.messages.classes import (
    CPU_ARCHITECTURES,
    CPU_LEVELS,
    CPUS,
    GVISOR,
    SM_COUNT_MAX,
    Host,
    Pool,
)
from quorate_protocol.messages.egress import NAMES_MAX as EGRESS_MAX
from quorate_protocol.messages.job_spec import CUDA_MAX
from quorate_protocol.messages.offer import (
    ADDRESSES_MAX,
    BYTES_OF_SLOT_MAX,
    CPU_MILLIS_MAX,
    IMAGES_MAX,
    PRICE_MAX,
    Offer,
    SlotOffer,
)
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.quantity_input import SIZE_MAX
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.tabs import TRUST_DEFAULT
from quorate_protocol.units import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Amount,
    JobKind,
    Price,
    Sequence,
    Small,
    UnixSeconds,
    usd,
)
from quorate_runtime.http.urls import chain_urls
from quorate_runtime.process.settings_flags import Option

GIB = 1 << 30
STORE_BYTES_MIN = 20 * GIB  # of the content store, if the owner sets no size
STORE_SPARE_BYTES_MAX = 2 * GIB  # of disk that the content store leaves free for everything else
SLOTS_MAX = 16
SLOTS_BY_GPUS = -1  # the owner named no number of CPU slots
GATEWAYS_MAX = 8
JURY_CASES_MAX = 1_000  # a day
SPOT_PERCENT_MAX = 99
STORE_SIZE_LEAST = 10**9
KWH_PRICE_MAX = 5_000_000  # micro-USD
JOB_USER_MAX = (1 << 31) - (1 << 16)
GATEWAY_EXAMPLE, KUBO_EXAMPLE = "http://127.0.0.1:8080", "http://127.0.0.1:5001"
LOOPBACK = "127.0.0.1"
CHAIN_EXAMPLE = "http://127.0.0.1:8545"


class ExecutorKind(StrEnum):
    """Which executor runs jobs. `auto`: docker, else bwrap, else process on a devnet; `docker`:
    gVisor if the engine has it, else runc.
    """

    AUTO = "auto"
    DOCKER = "docker"
    DOCKER_RUNC = "docker-runc"
    DOCKER_RUNSC = "docker-runsc"
    BWRAP = "bwrap"
    PROCESS = "process"
    NOOP = "noop"


class AttestationChoice(StrEnum):
    """Up to which level the provider has its slots attested: not at all, or by challenges."""

    NONE = "none"
    L1 = "L1"


class RentalTerms(StrEnum):
    """Whether the owner rents run slots, and when rentals end for the owner's own use."""

    NO = "no"
    ON_DEMAND = "on-demand"
    SPOT = "spot"


class TransportChoice(StrEnum):
    """How the provider connects. `auto`: libp2p where both have it, WebSocket as stand-in."""

    AUTO = "auto"
    LIBP2P = "libp2p"
    WEBSOCKET = "websocket"


def _usd(help: str, read: Callable[[str, str], Price] = usd_price) -> Option:
    return Option(help, read=read, show=lambda value: usd(value).removesuffix(".00"))


def _kwh_price_of(text: str, flag: str) -> Price:
    price = usd_price(text, flag)
    if price > KWH_PRICE_MAX:
        raise Refused(
            Code.MALFORMED, f"{flag}: {text[:20]} USD per kWh; write USD and no cents, such as 0.30"
        )
    return price


def _store_size_of(text: str, flag: str) -> int:
    size = bytes_of(text, flag)
    if 0 < size < STORE_SIZE_LEAST:
        raise Refused(Code.MALFORMED, f"{flag}: {text[:20]} holds no job; write 1GB or more")
    return size


def cpu_level_of(text: str, flag: str) -> str:
    if text not in ("", *CPU_LEVELS[:4]):
        raise Refused(
            Code.MALFORMED, f"{flag}: {text[:20]!r} is not a level; write v1, v2, v3 or v4"
        )
    return text


def slots_of(text: str, flag: str) -> int:
    if not text.isdecimal() or len(text) > 2 or int(text) > SLOTS_MAX:
        raise Refused(Code.MALFORMED, f"{flag}: {text[:20]!r} is not between 0 and {SLOTS_MAX}")
    return int(text)


class Settings(Struct, frozen=True):
    """The owner's choices, in bytes and micro-USD per slot-hour. A zero account is `init`'s."""

    coordinators: tuple[str, ...]  # base URLs
    is_devnet: bool = False  # allows the process executor
    devnet_host: str = ""  # NAME=ADDRESS:PORT, which rentals of a devnet reach as a public host
    price: Annotated[Price, _usd("USD per slot-hour")] = Price(100_000)
    price_floor: Annotated[Price, _usd("Decline jobs that pay less, in USD per slot-hour")] = Price(
        0
    )
    slots: Annotated[
        int,
        Option(
            "CPU run slots, each with a stake slot of its own (default: 1, or 0 beside GPUs that "
            "have a price)",
            read=slots_of,
        ),
    ] = SLOTS_BY_GPUS
    cpu_level: Annotated[
        str,
        Option(
            "Run jobs as on CPUs of this x86-64 level at most: v1 to v4 (default: this CPU's)",
            read=cpu_level_of,
        ),
    ] = ""
    probation: Annotated[
        bool, Option("Start without stake: one run slot, whose pay becomes the first stake")
    ] = False
    rentals: Annotated[
        RentalTerms,
        Option(
            "Rent run slots by the minute too: on-demand, or spot, which ends within 30 s when you "
            "use the GPU or the schedule closes"
        ),
    ] = RentalTerms.NO
    spot_percent: Annotated[
        int,
        Option(
            "With --rentals on-demand: also rent at so many percent of the price, to rentals that "
            "end within 30 s for others (default: none)",
            most=SPOT_PERCENT_MAX,
        ),
    ] = 0
    egress: Annotated[
        tuple[str, ...],
        Option(
            "Host that rentals may reach, such as huggingface.co, *.hf.co, or * for every "
            "public host; repeatable; none for no host",
            most=EGRESS_MAX,
            read=egress_of,
        ),
    ] = ()
    gpu_slots: Annotated[
        tuple[GpuLayout, ...],
        Option(
            "GPU run slots as [MODEL:]GPUS[xSLOTS], such as 2x4, H100:8 or none; repeatable "
            "(default: each GPU is a slot)",
            read=lambda texts, _: layouts_of(texts),
        ),
    ] = EVERY_GPU
    gpu_prices: Annotated[
        tuple[GpuPrice, ...],
        Option(
            "USD per GPU-hour as [MODEL=]USD, such as 1.20 or H100=2.50; repeatable. GPUs "
            "without a price are not offered",
            "--gpu-price",
            read=lambda texts, _: prices_of(texts),
        ),
    ] = ()
    owner: Annotated[
        Address,
        Option(
            "Owner account, if its key is kept elsewhere (default: a key made here)",
            read=address_of,
        ),
    ] = ZERO_ADDRESS
    payout: Annotated[
        Address, Option("Account that receives the pay (default: the owner)", read=address_of)
    ] = ZERO_ADDRESS
    refused_images: Annotated[
        tuple[str, ...],
        Option(
            "Never run this image; repeatable", "--refuse-image", most=IMAGES_MAX, read=images_of
        ),
    ] = ()
    images: Annotated[
        tuple[str, ...],
        Option("Run only this image; repeatable", "--image", most=IMAGES_MAX, read=images_of),
    ] = ()  # empty = any
    region: Annotated[str, Option("Region to show in the offer")] = ""
    executor: Annotated[ExecutorKind, Option("Sandbox that jobs run in")] = ExecutorKind.AUTO
    listen_host: Annotated[str, Option("Address that the gateway listens on", "--host")] = LOOPBACK
    listen_port: Annotated[int, Option("Gateway port; 0 = any free port", "--port", most=65535)] = (
        7710
    )
    public_url: Annotated[
        str,
        Option("URL at which others reach the gateway", read=url_like("http://203.0.113.7:7710")),
    ] = ""  # http://host:port as it listens
    # Of the content store: inputs, and outputs until two weeks after their pay.
    store_bytes: Annotated[
        int,
        Option(
            "Disk for inputs, and for outputs, which are kept for two weeks, such as 200GB "
            "(default: half of what is free)",
            "--store-size",
            most=SIZE_MAX,
            read=_store_size_of,
        ),
    ] = 0  # half of what is free
    job_disk_bytes: Annotated[
        int,
        Option(
            "Disk for outputs and scratch files of all run slots, such as 200GB (default: half of "
            "what is free); a third is for outputs",
            "--job-disk",
            most=SIZE_MAX,
            read=bytes_of,
        ),
    ] = 0  # half of what is free
    ipfs_gateways: Annotated[
        tuple[str, ...],
        Option(
            "IPFS gateway to fetch content from before the coordinator's store; repeatable",
            "--ipfs-gateway",
            most=GATEWAYS_MAX,
            read=urls_like(GATEWAY_EXAMPLE),
        ),
    ] = ()
    ipfs_kubo: Annotated[
        str, Option("RPC URL of your Kubo, whose gateway is asked too", read=url_like(KUBO_EXAMPLE))
    ] = ""
    attestation: Annotated[
        AttestationChoice,
        Option(
            "L1: verifiers challenge the GPUs on offer (without a GPU, the CPU) for some seconds, "
            "while no job runs"
        ),
    ] = AttestationChoice.NONE
    transport: Annotated[
        TransportChoice, Option("How to reach coordinators; auto: libp2p where it works")
    ] = TransportChoice.AUTO
    job_user: Annotated[
        int,
        Option(
            "First of 1,024 user ids that jobs run as (0 = from the folder's name)",
            most=JOB_USER_MAX,
            is_range_shown=False,
        ),
    ] = 0
    # A juror votes `void` on cases that pay less.
    jury_price: Annotated[Price, _usd("Judge no case that pays less, in USD per slot-hour")] = (
        Price(0)
    )
    jury_slots: Annotated[
        int, Option("Most run slots that juries take at once", most=SLOTS_MAX)
    ] = 1  # 0 = no juries
    jury_cases: Annotated[int, Option("Most cases judged in 24 hours", most=JURY_CASES_MAX)] = 24
    stake_agreed: Annotated[
        Amount,
        Option(
            "`up` stakes up to so many USD in all without asking; a service needs it",
            "--stake",
            read=usd_price,
            show=lambda value: usd(value).removesuffix(".00"),
        ),
    ] = Amount(0)
    schedule: Annotated[
        str,
        Option(
            "Hours of the machine's time in which jobs are taken, such as \"mon-fri 19:00-08:00, "
            'sat-sun" (default: always)',
            read=schedule_text,
        ),
    ] = ""
    max_temperature: Annotated[
        int, Option("Degrees Celsius above which a GPU takes no new job (0: any)", most=120)
    ] = 0
    power_limit: Annotated[
        int, Option("Watts that each GPU may draw; setting it needs root (0: any)", most=2_000)
    ] = 0
    electricity: Annotated[
        Price, _usd("USD per kWh, for what jobs earn after electricity", _kwh_price_of)
    ] = Price(0)
    trust: Annotated[
        Amount, _usd("USD of unpaid work for each coordinator beyond what its tab guarantees")
    ] = TRUST_DEFAULT
    max_held: Annotated[Amount, _usd("Take no work of a coordinator that holds back more USD")] = (
        MAX_HELD_DEFAULT  # of pay that one coordinator holds without a voucher
    )
    chain_url: Annotated[
        str,
        Option(
            "Your chain node (default: the coordinator's). Name two: only what both say counts",
            "--rpc --chain-url",
            read=lambda texts, _: chain_urls(texts, CHAIN_EXAMPLE)[0],
            is_repeated=True,
        ),
    ] = ""
    second_chain_url: Annotated[
        str, Option(read=lambda texts, _: chain_urls(texts, CHAIN_EXAMPLE)[1], flag_of="chain_url")
    ] = ""
    fee_cap_gwei: Annotated[
        int, Option("The most that a transaction may pay per gas", least=1, most=1_000_000)
    ] = 500

    @property
    def cpu_slots(self) -> int:
        """A slot that nobody named would need stake, and a part of the machine beside GPUs."""
        return int(not self.gpu_prices) if self.slots == SLOTS_BY_GPUS else self.slots


class Config(Settings, frozen=True, kw_only=True):
    """All settings of one daemon: the owner's, and those below."""

    home: Path
    store_bytes: int = STORE_BYTES_MIN
    is_store_sized: bool = True  # by the owner
    stop_on_exit: Annotated[
        bool, Option("End running jobs at exit (by default they go on)", "--stop-on-exit")
    ] = False
    # Noop executor only: how long a task takes.
    noop_milliseconds: Annotated[int, Option("", "--noop-ms", is_hidden=True)] = 0
    drain_seconds: Annotated[
        int,
        Option(
            "At exit, wait so long at most for running jobs, such as 30s",
            "--drain-time",
            read=seconds_of,
        ),
    ] = 0  # jobs go on without the daemon
    # How long the core remembers a declined Assignment.
    declined_keep_seconds: Annotated[int, Option("", "--declined-keep", is_hidden=True)] = 600
    # Per run slot; 0 = the machine divided by the slots.
    cpu_millis: Annotated[int, Option("", "--cpu-millis", is_hidden=True)] = 0

    @classmethod
    def of(cls, settings: Settings, home: Path, **now: object) -> "Config":
        sized = {
            "store_bytes": store_bytes(settings.store_bytes, home),
            "is_store_sized": settings.store_bytes > 0,
        }
        values = {**asdict(settings), **sized, **now}
        return cls(home=home, **values)

    def chain_urls(self, named: str) -> list[str]:
        """Returns the chain nodes to use: the owner's, else the one that a coordinator names."""
        return [url for url in (self.chain_url or named, self.second_chain_url) if url]

    def path(self, name: str) -> Path:
        return self.home / name


def store_bytes(given: int, home: Path) -> int:
    """Returns the quota. 0 means half of what is free where `home` is, now and with the content
    that the store has; at least 20 GiB.
    """
    return given or half_of_free(home / "store", STORE_BYTES_MIN)


def store_spare_bytes(home: Path, is_sized: bool) -> int:
    """Returns how much of the disk the content store leaves free, whatever its quota is. Without a
    size it leaves more, because the disk may fill up with the owner's files.
    """
    least = min(STORE_SPARE_BYTES_MAX, disk_bytes(home) // 20)
    return least if is_sized else max(least, free_bytes(home) // 4)


def offer_addresses(
    own: str, coordinators: tuple[str, ...], attestation: AttestationChoice
) -> tuple[str, ...]:
    """Where others fetch what a provider publishes: at its gateway `own`. The coordinators have its
    attestations too, because nobody reaches a gateway behind a router.
    """
    kept_at = coordinators if attestation is AttestationChoice.L1 else ()
    return (own, *kept_at)[:ADDRESSES_MAX]


def offer_room_bytes(settings: Settings) -> int:
    """Returns how many bytes of the offer are left to GPU slots, whatever becomes of its numbers.

    A coordinator takes no longer offer, and then the provider would have no work at all.
    """
    listens_at = f"http://{settings.listen_host}:65535"
    offer = Offer(
        provider=ZERO_ADDRESS,
        seq=Sequence((1 << 64) - 1),
        expires=UnixSeconds((1 << 53) - 1),
        slots=(largest_slot(CPUS, settings),) if settings.cpu_slots else (),
        inventory=ZERO_HASH,
        sandboxes=(max(Sandbox, key=len).value,),
        kinds=kinds_of(settings),
        region=settings.region,
        peer_key=ZERO_HASH,
        box_key=ZERO_HASH,
        addresses=offer_addresses(
            settings.public_url or listens_at, settings.coordinators, settings.attestation
        ),
        images=(ZERO_HASH,) * len(settings.images),
        store_bytes=BYTES_OF_SLOT_MAX,
        bandwidth=BYTES_OF_SLOT_MAX,
        egress=settings.egress,
    )
    return OFFER_BYTES_MAX - len(offer.encode())


def kinds_of(settings: Settings) -> tuple[JobKind, ...]:
    if settings.rentals is RentalTerms.NO:
        return (JobKind.TASK,)
    return (JobKind.TASK, JobKind.SERVICE, JobKind.DEV_ENVIRONMENT)


def rentals_text(config: Settings, problem: str) -> str:
    """What is offered: "on-demand, egress huggingface.co". `problem`: why none can be."""
    if config.rentals is RentalTerms.NO:
        return "not offered"
    if problem:
        return f"not offered: {problem}"
    spot = f" and spot at {config.spot_percent} %" if config.spot_percent else ""
    return f"{config.rentals.value}{spot}, egress {', '.join(config.egress) or 'none'}"


def largest_slot(pool: Pool, settings: Settings) -> SlotOffer:
    """The slots of a pool in the most bytes that an offer may need for them."""
    gpu = ("12.0", SM_COUNT_MAX, "999999") if pool.is_gpu else ("", 0, "")
    return SlotOffer(
        pool=pool,
        host=Host(max(CPU_ARCHITECTURES, key=len), max(CPU_LEVELS, key=len), GVISOR, *gpu),
        count=Small(COUNT_MAX),
        vram_bytes=BYTES_OF_SLOT_MAX,
        cpu_millis=CPU_MILLIS_MAX,
        memory_bytes=BYTES_OF_SLOT_MAX,
        scratch_bytes=BYTES_OF_SLOT_MAX,
        output_bytes=BYTES_OF_SLOT_MAX,
        input_bytes=BYTES_OF_SLOT_MAX,
        spot=Price(PRICE_MAX * (settings.spot_percent > 0)),
        on_demand=Price(PRICE_MAX),
        reserved=Price(0),
        cuda=CUDA_MAX,
    )
