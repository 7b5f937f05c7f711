"""A provider with GPU run slots, and the assignments that it gets there."""

from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import GpuDriver, RunSlots, SlotResources, Terms
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import GIB, GpuRequest, JobSpec, Resources
from quorate_protocol.units import Address, Hash32, Small
from quorate_protocol.values import replace
from support.markets.provider_world import (
    COORDINATOR,
    DOMAIN,
    STATEMENT_KEY,
    Driver,
    make_assignment,
    make_spec,
    make_terms,
)
from support.offers import a_slot

ONE = Pool("L40S", "", Small(1))
PAIR = Pool("L40S", "", Small(2))
ROOM = SlotResources(2000, 2 * GIB, 8 * GIB, GIB, 16 * GIB)
DRIVER = GpuDriver("550.54.15", "12.4")


def gpu_slots(host: Pool, *groups: tuple[str, ...]) -> RunSlots:
    """Run slots of L40S GPUs, one for each group of UUIDs."""
    return RunSlots(a_slot(host, 100_000, len(groups)), ROOM, groups)


def gpu_terms(*classes: RunSlots) -> Terms:
    """The terms of a provider with one CPU slot and these GPU slots."""
    plain = make_terms()
    return replace(plain, classes=(*plain.classes, *classes), driver=DRIVER)


def gpu_driver(*classes: RunSlots) -> Driver:
    """A provider with these GPU slots, all of whose GPUs the driver lists."""
    driver = Driver(ProviderCore(gpu_terms(*classes)))
    driver.do(events.Configured(gpu_terms(*classes)))
    return driver


def gpu_spec(count: int = 1, model: str = "", **more: int) -> JobSpec:
    """A small job that asks for GPUs."""
    request = GpuRequest(count, model, **{"vram_bytes_min": 0, **more})
    return replace(make_spec(), resources=Resources(gpu=request))


def assigned(
    driver: Driver,
    number: int,
    host: Pool,
    spec: JobSpec,
    requirement: str = "",
    coordinator: Address = COORDINATOR,
) -> events.AssignmentReceived:
    """An assignment of a job in a pool."""
    message = make_assignment(spec, number, driver.now)
    message = replace(message, pool=host.id(), coordinator=coordinator)
    signed = seal(DOMAIN, message, STATEMENT_KEY.sign)
    signer = STATEMENT_KEY.address
    return events.AssignmentReceived(signed, spec, (), signer, cuda_requirement=requirement)


def assign(driver: Driver, number: int, host: Pool, spec: JobSpec) -> Hash32:
    """Steps an assignment of a job in a pool; returns its hash."""
    event = assigned(driver, number, host, spec)
    driver.do(event)
    return digest(DOMAIN, event.assignment.message)
