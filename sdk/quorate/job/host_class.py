"""Host classes (PROTOCOL §2) as people name them, and who offers in them.

`x86_64/v3/AuthenticAMD` is a class of CPUs, `hopper/132/550` one of GPUs (architecture,
multiprocessors, driver branch; then the MIG profile or `-`, and how many GPUs, where there is
more to say). A class may always be named by its id, too.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from quorate.errors import UsageError
from quorate_protocol.messages.views import OfferView
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.classes import (
    CPU_ARCHITECTURES,
    CPU_LEVELS,
    CPU_VENDORS,
    GPU_ARCHITECTURES,
    HostClass,
)
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Price, Small

NO_PROFILE = "-"
WORLD_MAX = 255


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One host class: the owners whose live offers have it, how many slots they have, and the
    lowest price of an hour.
    """

    id: Hash32
    name: str
    owners: tuple[Address, ...]
    slots: int
    cheapest: Price | None


def class_name(host: HostClass) -> str:
    """The name that `parse_host_class` takes back; the id where a part of it is no plain word."""
    if not host.is_gpu:
        return f"{host.architecture}/{host.level}/{host.vendor}"
    parts = [
        host.architecture,
        str(host.sm_count),
        host.driver_branch,
        host.mig_profile or NO_PROFILE,
        str(host.world_size),
    ]
    name = "/".join(parts).removesuffix("/1").removesuffix(f"/{NO_PROFILE}")
    try:
        is_read_back = parse_host_class(name) == host.id()
    except UsageError:  # not re-raised: a profile with a slash in it; the id names it as well
        is_read_back = False
    return name if is_read_back else f"0x{host.id().hex()}"


def parse_host_class(text: str, field: str = "host_class") -> Hash32:
    """The id of a class by its name or id; ZERO_HASH for "", any. UsageError names the field."""
    if not text:
        return ZERO_HASH
    if text.startswith("0x"):
        try:
            identity = bytes.fromhex(text[2:])
        except ValueError:
            identity = b""  # not re-raised: told below
        if len(identity) != 32 or identity == ZERO_HASH:
            raise UsageError(
                f"{field}: {text[:80]!r} is not the id of a class, 0x and 64 hex digits; `quorate "
                f"classes` lists them"
            )
        return Hash32(identity)
    host = _host(text.split("/"))
    try:
        if host is None:
            raise UsageError(_unknown(text, field))
        host.validate()
    except Refused as refused:
        raise UsageError(_unknown(text, field)) from refused
    return host.id()


def name_of(identity: Hash32) -> str:
    """The name of a class that nobody may offer: a CPU's is found among all of them; a GPU's is
    not, and its id names it as well.
    """
    cpus = (
        HostClass(*parts) for parts in itertools.product(CPU_ARCHITECTURES, CPU_LEVELS, CPU_VENDORS)
    )
    return next((class_name(host) for host in cpus if host.id() == identity), f"0x{identity.hex()}")


def _host(parts: list[str]) -> HostClass | None:
    if parts[0] not in GPU_ARCHITECTURES:
        return HostClass(parts[0], parts[1], parts[2]) if len(parts) == 3 else None
    numbers = [parts[1] if len(parts) > 1 else "", parts[4] if len(parts) > 4 else "1"]
    if not 3 <= len(parts) <= 5 or not all(
        item.isascii() and item.isdecimal() and len(item) <= 5 for item in numbers
    ):
        return None
    profile, world = ("" if len(parts) < 4 or parts[3] == NO_PROFILE else parts[3]), int(numbers[1])
    if not (profile.isascii() and profile.isprintable()) or not 1 <= world <= WORLD_MAX:
        return None
    return HostClass(
        parts[0],
        sm_count=int(numbers[0]),
        driver_branch=parts[2],
        mig_profile=profile,
        world_size=Small(world),
    )


def _unknown(text: str, field: str) -> str:
    cpus = f"{'|'.join(CPU_ARCHITECTURES)}/{'|'.join(CPU_LEVELS)}/{'|'.join(CPU_VENDORS)}"
    return (
        f"{field}: {text[:80]!r} is no host class; CPUs are {cpus}, GPUs such as "
        f"hopper/132/550; `quorate classes` lists those on offer"
    )


def classes_of(views: Iterable[OfferView]) -> tuple[ClassRow, ...]:
    """The host classes of live offers, those with most owners first."""
    hosts: dict[Hash32, HostClass] = {}
    owners: dict[Hash32, dict[Address, int]] = {}
    prices: dict[Hash32, list[Price]] = {}
    for view in views:
        for slot in view.offer.slots if view.is_alive else ():
            if not _is_known(slot.host):
                continue
            identity = slot.host.id()
            hosts.setdefault(identity, slot.host)
            mine = owners.setdefault(identity, {})
            mine[view.offer.provider] = mine.get(view.offer.provider, 0) + slot.count
            price = slot.on_demand or slot.spot  # as jobs are matched
            prices.setdefault(identity, []).extend([price] if price else [])
    rows = [
        ClassRow(
            item,
            class_name(host),
            tuple(owners[item]),
            sum(owners[item].values()),
            min(prices[item], default=None),
        )
        for item, host in hosts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-len(row.owners), row.name)))


def _is_known(host: HostClass) -> bool:
    """Whether it stands in the catalogue; a coordinator may list anything."""
    try:
        host.validate()
    except Refused:
        return False  # not re-raised: no provider could accept a job on it
    return True


def owners_told(row: ClassRow | None, name: str) -> str:
    """What whoever names a class has to know before it signs: they decide what is right there."""
    if row is None:
        return f"host class {name}: nobody offers it now"
    shown = ", ".join(f"0x{owner.hex()}" for owner in row.owners[:16])
    more = f" and {len(row.owners) - 16} more" if len(row.owners) > 16 else ""
    told = f"host class {name}: owners on offer: {len(row.owners)} ({shown}{more})"
    return f"{told}; whoever owns most of it decides what is right there"
