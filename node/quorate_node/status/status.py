"""The daemon's status: GET /v1/status on its gateway, and `<home>/status.json`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from quorate_node.core.phases import Declined, Execution
from quorate_node.core.provider_core import ProviderCore
from quorate_node.owner.account_state import AccountState
from quorate_node.rentals.egress_proxy import Traffic
from quorate_node.status.income import DayIncome, Income
from quorate_protocol.codec import canonical
from quorate_protocol.messages import determinism
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import SlotOffer, price_per_gpu_hour
from quorate_protocol.messages.signed import FreeSlots, Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import tabs
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, Price, UnixSeconds
from quorate_runtime.process.health import Problem

UNSELLABLE = ("stake", "engine", "disk", "room", "coordinator", "rotation", "stopping")
"""The problems with which a provider can take no job, the one to solve first in front."""
NO_SLOT_IS_FREE = ("stake", "engine", "disk", "room")
"""The problems with which heartbeats announce no free slot."""


def why_nothing_is_on_offer(
    core: ProviderCore, problems: Iterable[Problem], facts: "OwnerFacts", is_connected: bool
) -> str:
    """Empty if some slot is on offer."""
    if facts.is_leaving:
        return "leaving: `quorate node leave` goes on, `quorate node resume` takes it back"
    known = {problem.name: problem.text for problem in problems}
    if core.scalars.is_draining and "stopping" not in known:
        return "paused: `quorate node resume` takes work again"
    if facts.closed_until:
        return f"outside of your schedule, which opens at {facts.closed_until}"
    for name in UNSELLABLE:
        if name in known and not (name == "coordinator" and is_connected):
            return f"{name}: {known[name]}"
    if not facts.is_on_offer:
        return "not registered yet: the daemon has not finished its start"
    if not core.offered_slots() and facts.kept_back:
        return "; ".join(f"GPU {uuid}: {why}" for uuid, why in sorted(facts.kept_back.items()))
    if not core.offered_slots():
        return "every GPU on offer is gone: the driver does not list it any more"
    return ""


def offered_count(core: ProviderCore, pool: Hash32) -> int:
    return sum(int(slot.count) for slot in core.offered_slots() if slot.pool.id() == pool)


SHOWN_MAX = 50
DAYS_SHOWN = 14


class LeaseStatus(Struct, frozen=True):
    """One live execution: `lease` is its `assignment_hash`, `gpus` UUIDs, `closed` why its result
    is not revealed. `bytes_in` and `bytes_out`: a rental's egress, since the daemon began.
    """

    lease: Hash32
    coordinator: Address
    phase: str
    commit_by: UnixSeconds
    gpus: tuple[str, ...] = ()
    pool: Hash32 = ZERO_HASH
    closed: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    is_rental: bool = False


class EarningStatus(Struct, frozen=True):
    """The pay of one coordinator, in sums since the beginning; `held` has no voucher yet. Anybody
    may redeem `voucher`.
    """

    coordinator: Address
    earned: Amount
    held: Amount
    vouched: Amount
    locked: Amount  # in its tab, by final blocks
    paid: Amount
    closes_at: UnixSeconds  # of its tab; 0 = open
    room: Amount  # the greatest pay of a further job that the provider accepts
    voucher: Envelope[Voucher] | None = None


class DeclineStatus(Struct, frozen=True):
    """Why a recent job was declined."""

    reason: str
    text: str


class UnpaidStatus(Struct, frozen=True):
    """Ended without pay. Shown for ten minutes, or for seven days if it was committed."""

    lease: Hash32
    why: str


class SlotStatus(Struct, frozen=True):
    """Run slots of one pool. Prices: millionths of a USD by the hour. `gpu` is "" for CPU
    slots; `offered` really now; `level` of attestation.
    """

    pool: Hash32
    gpu: str
    gpus: int
    count: int
    free: int
    price: Price
    price_per_gpu: Price
    offered: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """What the status shows beside the core. `is_on_offer`: registered and staked."""

    is_on_offer: bool = True
    is_leaving: bool = False
    attested: tuple[SlotOffer, ...] = ()
    income: Income = Income()
    account: AccountState = AccountState()
    kept_back: Mapping[str, str] = field(default_factory=dict)  # GPU -> why it takes no new job
    closed_until: str = ""  # when the owner's schedule opens again
    electricity: Price = Price(0)  # of a kWh
    egress: Mapping[str, Traffic] = field(default_factory=dict)  # by lease id
    rentals: str = ""


class Status(Struct, frozen=True):
    """The whole status. Empty `problems`: nothing keeps the provider from working."""

    provider: Address
    operator: Address
    gateway: str
    executor: str
    pid: int
    is_draining: bool
    pools: tuple[Hash32, ...]
    free_slots: tuple[int, ...]
    connected: tuple[Address, ...]
    leases: tuple[LeaseStatus, ...]
    declined: tuple[DeclineStatus, ...]
    jury: tuple[Hash32, ...]  # case ids of duties that go on
    earnings: tuple[EarningStatus, ...]
    problems: tuple[Problem, ...] = ()
    unpaid: tuple[UnpaidStatus, ...] = ()
    bytes_by_source: dict[str, int] = {}  # verified bytes of content, since the daemon started
    slots: tuple[SlotStatus, ...] = ()
    transports: dict[str, str] = {}  # connected coordinator (0x-hex) -> libp2p or websocket
    not_on_offer: str = ""  # why no slot is on offer; "" = some are
    is_leaving: bool = False
    income: tuple[DayIncome, ...] = ()  # of the newest days, oldest first
    jobs_paid: int = 0  # of all days that are kept
    jobs_unpaid: int = 0
    account: AccountState = AccountState()
    profiles: dict[str, str] = {}  # determinism profile -> its digest (2.37)
    kept_back: dict[str, str] = {}  # GPU -> why it takes no new job
    electricity: Price = Price(0)  # of a kWh
    is_closed: bool = False  # outside of the owner's schedule
    rentals: str = ""  # on what terms they are offered, or why not


def status_of(
    core: ProviderCore,
    operator: Address,
    gateway: str,
    transports: Mapping[Address, str],
    problems: tuple[Problem, ...] = (),
    bytes_by_source: dict[str, int] | None = None,
    facts: OwnerFacts | None = None,
) -> Status:
    """Pure, except for the process id. `transports`: of connected coordinators."""
    facts = facts or OwnerFacts()
    not_on_offer = why_nothing_is_on_offer(core, problems, facts, is_connected=bool(transports))
    terms, live = core.terms, core.live()[:SHOWN_MAX]
    over = [
        core.executions[lease]
        for table in (core.ended, core.done)
        for lease in list(table)[-SHOWN_MAX:]
    ]
    declined = [core.executions[lease].phase for lease in list(core.declined)[-SHOWN_MAX:]]
    offered = core.offered(can_work=all(item.name not in NO_SLOT_IS_FREE for item in problems))
    return Status(
        provider=terms.provider,
        operator=operator,
        gateway=gateway,
        executor=terms.sandbox.value,
        pid=os.getpid(),
        is_draining=core.scalars.is_draining,
        pools=tuple(slot.pool.id() for slot in terms.slots),
        free_slots=tuple(int(item.free) for item in offered),
        connected=tuple(transports),
        transports={f"0x{address.hex()}": name for address, name in transports.items()},
        leases=tuple(_lease(item, facts.egress) for item in live),
        declined=tuple(
            DeclineStatus(item.decline.reason.name.lower(), item.text)
            for item in declined
            if isinstance(item, Declined)
        ),
        jury=tuple(case for case, duty in core.jury.items() if not duty.is_ended),
        earnings=tuple(_earning(core, address) for address in core.debts),
        problems=problems,
        unpaid=tuple(
            UnpaidStatus(item.assignment_hash, item.unpaid()) for item in over if item.unpaid()
        )[-SHOWN_MAX:],
        bytes_by_source=bytes_by_source or {},
        slots=_slots(core, offered, facts.attested, is_offered=not not_on_offer),
        not_on_offer=not_on_offer,
        is_leaving=facts.is_leaving,
        income=facts.income.days[-DAYS_SHOWN:],
        jobs_paid=sum(day.paid for day in facts.income.days),
        jobs_unpaid=sum(day.unpaid for day in facts.income.days),
        account=facts.account,
        profiles=determinism.digests(),
        kept_back=dict(facts.kept_back),
        electricity=facts.electricity,
        is_closed=bool(facts.closed_until),
        rentals=facts.rentals,
    )


def _earning(core: ProviderCore, coordinator: Address) -> EarningStatus:
    debt, owed, policy = core.debt(coordinator), core.owed(coordinator), core.terms.policy
    tab = debt.tab
    limit = tabs.accept_limit(tab, owed, policy.trust)
    return EarningStatus(
        coordinator=coordinator,
        earned=debt.earned,
        held=debt.held,
        vouched=debt.vouched,
        locked=tab.locked,
        paid=tab.paid,
        closes_at=tab.closes_at,
        room=limit if owed.held <= policy.max_held else Amount(0),
        voucher=debt.voucher,
    )


def _lease(item: Execution, egress: Mapping[str, Traffic]) -> LeaseStatus:
    traffic = egress.get(item.assignment_hash.hex(), Traffic())
    gpus = item.gpus if item.occupies_slot else ()
    phase = type(item.phase).__name__
    return LeaseStatus(
        lease=item.assignment_hash,
        coordinator=item.coordinator,
        phase=phase,
        commit_by=item.commit_by,
        gpus=gpus,
        pool=item.pool,
        closed=item.closed(),
        bytes_in=traffic.bytes_in,
        bytes_out=traffic.bytes_out,
        is_rental=item.is_rental,
    )


def _slots(
    core: ProviderCore,
    free: tuple[FreeSlots, ...],
    attested: tuple[SlotOffer, ...],
    is_offered: bool,
) -> tuple[SlotStatus, ...]:
    by_class = {item.pool: int(item.free) for item in free}
    levels = {slot.pool.id(): int(slot.attestation_level) for slot in attested}
    return tuple(
        SlotStatus(
            pool=slot.pool.id(),
            gpu=slot.gpu,
            gpus=slot.pool.gpus if slot.gpu else 0,
            count=int(slot.count),
            free=by_class.get(slot.pool.id(), 0),
            price=slot.price,
            price_per_gpu=price_per_gpu_hour(slot, slot.price) if slot.gpu else Price(0),
            offered=offered_count(core, slot.pool.id()) if is_offered else 0,
            level=levels.get(slot.pool.id(), 0),
        )
        for slot in core.terms.slots
    )


def write_status(path: Path, status: Status) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(canonical.encode(status))
    os.replace(part, path)


def read_status(path: Path) -> Status | None:
    """None if the daemon never ran. Raises Refused if the file is damaged."""
    try:
        return canonical.decode(Status, path.read_bytes()) if path.exists() else None
    except Refused as refused:
        raise Refused(
            Code.MALFORMED,
            f"{path} is damaged ({refused.detail}); a running daemon writes it again",
        ) from refused
