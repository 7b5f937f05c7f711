"""`quorate node check`: checks machine, engine, coordinators and money, and names a fix for
each failure.
"""

import asyncio
import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from quorate_content.store.disk_share import disk_bytes
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_node.base.config import Config, RentalTerms, rentals_text, store_spare_bytes
from quorate_node.base.provider_keys import SigningKeys
from quorate_node.executors.base.inside import rental_problem
from quorate_node.executors.sandbox.bwrap_executor import BwrapExecutor
from quorate_node.executors.selection import choose
from quorate_node.machine.gpu_manners import power_lines
from quorate_node.machine.gpu_slots import LaidOut, lay_out
from quorate_node.machine.host_probe import (
    detect_hardware,
    detect_host,
    read_gpus,
    read_other_hardware,
)
from quorate_node.machine.nvml_probe import NvmlProbe
from quorate_node.machine.run_slots import SANDBOXES_WITH_GPUS, needs_engine
from quorate_node.market.coordinator_client import deployment_from_info, fetch_info, saved_info_path
from quorate_node.owner.registration import (
    COIN_GAS_PRICE_FLOOR,
    GAS_NEEDED,
    check_coordinator,
    missing,
    registration_state,
    slots_to_stake,
)
from quorate_node.status.gpu_container import TOOLKIT, GpuTrial, without_unreachable
from quorate_node.status.pool_market import offer_book
from quorate_protocol.limits import OWNERS_MIN_QUORUM
from quorate_protocol.messages import determinism
from quorate_protocol.messages.classes import CPUS, Host, Pool
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.ports import Clock, Sandbox
from quorate_protocol.messages.views import OfferView
from quorate_protocol.quantity_input import size_text
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Hash32, usd
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, chain_client
from quorate_runtime.http.client_sessions import plain_session

NEWER_CPU = "use a machine with a newer CPU: x86-64-v2 or ARMv8"
NO_SLOT = "quorate node init --slots 1, or what the lines about GPUs say"
RENTALS_NEED = (
    "run the daemon as root on the engine's machine, after `quorate node init --executor "
    "docker-runc`; or `init --rentals no`"
)
DISK_LEAST = 10**9
CLOCK_SECONDS_MAX = 3  # more than HTTP's whole seconds, less than a devnet's ten-second deadlines


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report: what was checked, whether it is good, what was found, how to fix
    it.
    """

    name: str
    is_good: bool
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a check found of this machine: its sandbox, its host class, and the slots to offer."""

    engine: CheckResult
    rentals: CheckResult
    sandbox: Sandbox | None
    inventory: GpuInventory
    laid_out: LaidOut
    host: Host
    pools: Mapping[Pool, int]  # run slots of each
    hosts: Mapping[Pool, Host]

    @property
    def wanted(self) -> dict[Hash32, int]:
        return {pool.id(): count for pool, count in self.pools.items()}


async def look_at_machine(config: Config, keys: SigningKeys | None, clock: Clock) -> Machine:
    inventory = await asyncio.to_thread(read_gpus, NvmlProbe())
    with TemporaryDirectory() as elsewhere:
        # A check makes no folder for a provider that does not exist
        tried = config if config.coordinators else replace(config, home=Path(elsewhere))
        engine, rentals, sandbox = await _engine(tried, keys, clock)
        laid_out = lay_out(inventory, config)
        if sandbox is not None:
            laid_out = await without_unreachable(
                laid_out, inventory, sandbox, tried.home, GpuTrial()
            )
    host = detect_host(sandbox, config)
    hosts = {CPUS: host}
    hosts |= {item.pool: item.host(host) for item in laid_out.classes}
    pools = pools_of(config, sandbox, laid_out)
    return Machine(
        engine=engine,
        rentals=rentals,
        sandbox=sandbox,
        inventory=inventory,
        laid_out=laid_out,
        host=host,
        pools=pools,
        hosts=hosts,
    )


def pools_of(config: Config, sandbox: Sandbox | None, laid_out: LaidOut) -> dict[Pool, int]:
    pools = {CPUS: config.cpu_slots} if config.cpu_slots else {}
    if sandbox in SANDBOXES_WITH_GPUS:
        pools |= {item.pool: len(item.groups) for item in laid_out.classes}
    return pools


async def check_node(config: Config, keys: SigningKeys | None, clock: Clock) -> list[CheckResult]:
    """A failed check is a result and raises nothing."""
    init = f"quorate node init --home {shlex.quote(str(config.home))} --coordinator URL"
    machine = await look_at_machine(config, keys, clock)
    found = [
        *_machine(config, machine.host, machine.inventory),
        *check_gpus(machine.laid_out, machine.sandbox, config),
        machine.engine,
        machine.rentals,
    ]
    if not machine.pools:
        found.append(CheckResult("slots", False, "no slot is on offer", NO_SLOT))
    if not config.coordinators:
        return [
            CheckResult("provider", False, f"there is no provider in {config.home}", init),
            *found,
        ]
    async with plain_session() as session:
        for url in config.coordinators:
            found.extend(await _coordinator(session, url, config, keys, machine, clock))
    lacks = [item.name for item in found if not item.is_good and item is not machine.rentals]
    text = f"cannot run yet: {', '.join(dict.fromkeys(lacks))}" if lacks else "nothing is missing"
    return [*found, CheckResult("first job", not lacks, text, "what the lines above say")]


async def wanted_slots(config: Config, keys: SigningKeys, clock: Clock) -> Mapping[Hash32, int]:
    return (await look_at_machine(config, keys, clock)).wanted


def _machine(config: Config, host: Host, inventory: GpuInventory) -> list[CheckResult]:
    home = _existing(config.home)
    hardware = detect_hardware(home, inventory)
    spare = store_spare_bytes(home, config.is_store_sized)
    quota = min(config.store_bytes, max(0, hardware.disk_bytes - spare))
    size = (
        f"{hardware.cores} cores, {size_text(hardware.memory_bytes)} memory, "
        f"{size_text(hardware.disk_bytes)} disk free, of which contents of jobs may take "
        f"{size_text(quota)} and {size_text(hardware.disk_bytes - quota)} stay free"
    )
    gpus = "; ".join(
        f"{gpu.model} {size_text(gpu.vram_bytes)}, driver {gpu.driver}" for gpu in hardware.gpus
    )
    sized = config.job_disk_bytes + (config.store_bytes if config.is_store_sized else 0)
    lacks = CheckResult(
        "disk",
        False,
        f"--job-disk and --store-size name {size_text(sized)}, and "
        f"the disk has {size_text(disk_bytes(home))}, {size_text(hardware.disk_bytes)} of it free",
        "quorate node init --job-disk SIZE --store-size SIZE",
    )
    is_modern = host.level in ("v2", "v3", "v4", "armv8")
    return [
        CheckResult("machine", hardware.disk_bytes > DISK_LEAST, size, "free 1 GB of disk"),
        *((lacks,) if sized > disk_bytes(home) else ()),
        CheckResult("gpu", True, gpus or "none; CPU slots are offered"),
        *(CheckResult("accelerator", True, said) for said in read_other_hardware()),
        CheckResult("host", is_modern, f"{host} ({host.digest().hex()[:16]})", NEWER_CPU),
        CheckResult("profiles", True, profiles_text(determinism.digests())),
    ]


def profiles_text(digests: Mapping[str, str]) -> str:
    """Returns each determinism profile with the beginning of its digest."""
    return ", ".join(f"{name} {digest[:14]}" for name, digest in digests.items())


def _existing(home: Path) -> Path:
    return next((place for place in (home, *home.parents) if place.exists()), home)


def check_gpus(laid_out: LaidOut, sandbox: Sandbox | None, config: Config) -> list[CheckResult]:
    """What is offered of the GPUs and at which price, and why the rest is not offered."""
    found = [
        CheckResult("gpu slots", False, problem, "quorate node init --gpu-price USD, --gpu-slots")
        for problem in laid_out.problems
    ]
    if laid_out.classes and sandbox is not None and sandbox not in SANDBOXES_WITH_GPUS:
        found.append(CheckResult("gpu slots", False, needs_engine(sandbox), "install Docker"))
        return found
    if laid_out.unreachable:
        found.append(CheckResult("gpu container", False, laid_out.unreachable, TOOLKIT))
    elif laid_out.classes and sandbox is not Sandbox.NOOP:
        told = "nvidia-smi in a container lists the GPUs of each slot and no others"
        found.append(CheckResult("gpu container", True, told))
    uuids = [uuid for item in laid_out.classes for group in item.groups for uuid in group]
    for line in power_lines(uuids, config.power_limit, may_set=False) if config.power_limit else []:
        found.append(CheckResult("power limit", True, line))
    for item in laid_out.classes:
        text = (
            f"{len(item.groups)} slots of {item.pool} at {usd(item.price)} USD/h each "
            f"({item.pool.id().hex()[:16]})"
        )
        found.append(CheckResult("gpu slots", True, text))
    return found


async def _engine(
    config: Config, keys: SigningKeys | None, clock: Clock
) -> tuple[CheckResult, CheckResult, Sandbox | None]:
    """Results about engine and rentals, and the sandbox."""
    try:
        executor = await choose(config, keys.account.hex() if keys else "check", clock)
    except (Unavailable, Refused) as error:
        # Not re-raised: it is the result of this check.
        remedy = "systemctl start docker; or apt-get install docker.io, or bubblewrap"
        engine = CheckResult("engine", False, str(error), remedy)
        return engine, rentals_result(config, "no engine answers"), None
    problem = rental_problem(executor)
    await executor.close()
    limits = f" ({executor.limits})" if isinstance(executor, BwrapExecutor) else ""
    text = f"jobs run in the sandbox {executor.sandbox.value}{limits}"
    engine = CheckResult("engine", True, text)
    return engine, rentals_result(config, problem), executor.sandbox


def rentals_result(config: Config, problem: str) -> CheckResult:
    """Jobs come without rentals too, so a problem stops nothing else."""
    is_good = config.rentals is RentalTerms.NO or not problem
    return CheckResult("rentals", is_good, rentals_text(config, problem), RENTALS_NEED)


async def _coordinator(
    session: aiohttp.ClientSession,
    url: str,
    config: Config,
    keys: SigningKeys | None,
    machine: Machine,
    clock: Clock,
) -> list[CheckResult]:
    try:
        info = await fetch_info(
            session, url, saved_info_path(config.path("coordinators"), url), config.home
        )
        contracts = Contracts.of(deployment_from_info(info))
        client = chain_client(config.chain_urls(info.chain_url), session)
        await check_coordinator(client, contracts, info)
        found = [
            CheckResult(
                "coordinator",
                True,
                f"{url} (0x{info.coordinator.hex()}), fee {info.fee_bps / 100:.2f} %",
            )
        ]
        found.append(await check_clock(session, url, clock))
        book = await offer_book(session, url)
        for pool in machine.pools:
            owners = await ask(client, contracts.stakes.owner_count(pool.id()))
            found.append(pool_result(book, pool, machine.hosts[pool], owners, info.limits))
        return found + (
            await _money(client, contracts, config, keys, machine.wanted) if keys else []
        )
    except (Unavailable, Refused) as error:
        # Not re-raised: it is the result of this check.
        words = (error.detail if isinstance(error, Refused) else "") or str(error)
        text = words if url in words else f"{url}: {words}"
        return [
            CheckResult(
                "coordinator",
                False,
                text,
                "start it, or name another with quorate node init "
                f"--home {shlex.quote(str(config.home))} --coordinator URL",
            )
        ]


async def check_clock(session: aiohttp.ClientSession, url: str, clock: Clock) -> CheckResult:
    """Signed messages have the time: with a wrong clock the provider misses every deadline."""
    try:
        async with session.get(f"{url}/v1/health") as response:
            theirs = parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
        raise Unavailable(
            f"{url} does not send the time ({str(error) or type(error).__name__})"
        ) from error
    ahead = round(clock.now() - theirs)
    words = f"{abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the coordinator's"
    return CheckResult("clock", abs(ahead) <= CLOCK_SECONDS_MAX, words, "timedatectl set-ntp true")


def pool_result(
    book: list[OfferView], pool: Pool, host: Host, owners: int, limits: str
) -> CheckResult:
    """Results are compared inside a class, so owners of this host's class matter too."""
    slots = [
        (item.offer.provider, slot)
        for item in book
        for slot in item.offer.slots
        if slot.pool == pool and slot.price
    ]
    prices = [slot.price for _, slot in slots]
    price = (
        f"median price {usd(int(statistics.median(prices)))} USD/h" if prices else "no offer yet"
    )
    alike = len({provider for provider, slot in slots if slot.host == host})
    text = (
        f"{pool}: {owners} staked owners in this pool on {limits}, {alike} on offer with this "
        f"host's class, {price}"
    )
    if owners < OWNERS_MIN_QUORUM:
        text += f"; only unverified jobs come before {OWNERS_MIN_QUORUM} owners have staked"
    return CheckResult("pool", True, text)


async def _money(
    client: ChainClient,
    contracts: Contracts,
    config: Config,
    keys: SigningKeys,
    wanted: Mapping[Hash32, int],
) -> list[CheckResult]:
    fees = await client.fees()
    wanted = await slots_to_stake(client, contracts, keys, config, wanted)
    found = await registration_state(client, contracts, keys, wanted)
    lacks = missing(found, keys, fees.base_fee_wei + fees.tip_wei)
    slots = f"{found.open_slots} of {sum(wanted.values())} stake slots open"
    if not wanted:
        slots = "on probation: no stake slot is needed yet"
    stake = f"{slots}, {usd(found.stake_missing)} USD to add, {usd(found.tokens)} USD held"
    faucet = (
        f"; on a devnet: quorate devnet fund {shlex.quote(str(config.home))}"
        f"; after `chain deploy`: quorate chain fund {shlex.quote(str(config.home))} --key KEYFILE"
        if config.is_devnet
        else ""
    )
    how = "registered" if found.is_registered else "not registered yet (`quorate node up` does it)"
    registered = f"provider 0x{keys.account.hex()} is {how}"
    gas_price = max(fees.base_fee_wei + fees.tip_wei, COIN_GAS_PRICE_FLOOR)
    each = usd(contracts.deployment.constants().slot_stake)
    stake += (
        f"; {each} USD for each slot, {found.currency.coins(GAS_NEEDED * gas_price)} for gas in all"
    )
    lacking = (CheckResult("missing", False, item.what, item.remedy + faucet) for item in lacks)
    return [CheckResult("money", not lacks, f"{registered}; {stake}"), *lacking]
