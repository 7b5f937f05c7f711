"""Names of pools (PROTOCOL §2), and which owners offer them.

`x86_64/v3/AuthenticAMD` is a class of CPUs. `hopper/132/550` is one of GPUs: architecture,
multiprocessors, driver branch, then optionally the MIG profile or `-`, and the number of GPUs. The
id of a class always works too.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from quorate.base.errors import UsageError
from quorate_protocol.messages.classes import (
    CPU_ARCHITECTURES,
    CPU_LEVELS,
    CPU_VENDORS,
    GPU_ARCHITECTURES,
    Pool,
)
from quorate_protocol.messages.views import OfferView
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Price, Small

NO_PROFILE = "-"
WORLD_MAX = 255


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One pool: owners with live offers in it, their number of slots, and the lowest price
    per hour.
    """

    id: Hash32
    name: str
    owners: tuple[Address, ...]
    slots: int
    cheapest: Price | None


def class_name(host: Pool) -> str:
    """Returns a name that `parse_pool` can read, or the id if a part is not a plain word."""
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
        is_read_back = parse_pool(name) == host.id()
    except UsageError:  # not re-raised: a profile contains a slash; the id works as well
        is_read_back = False
    return name if is_read_back else f"0x{host.id().hex()}"


def parse_pool(text: str, field: str = "pool") -> Hash32:
    """Returns the id of a class by its name or id; ZERO_HASH for "", any class. UsageError names
    the field.
    """
    if not text:
        return ZERO_HASH
    if text.startswith("0x"):
        try:
            identity = bytes.fromhex(text[2:])
        except ValueError:
            identity = b""  # not re-raised: reported below
        if len(identity) != 32 or identity == ZERO_HASH:
            raise UsageError(
                f"{field}: {text[:80]!r} is not a class id (0x and 64 hex digits); `quorate "
                "classes` lists them"
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
    """Returns the name of a class by its id. CPU classes are searched; for a GPU class not on
    offer, the id is returned.
    """
    cpus = (Pool(*parts) for parts in itertools.product(CPU_ARCHITECTURES, CPU_LEVELS, CPU_VENDORS))
    return next((class_name(host) for host in cpus if host.id() == identity), f"0x{identity.hex()}")


def _host(parts: list[str]) -> Pool | None:
    if parts[0] not in GPU_ARCHITECTURES:
        return Pool(parts[0], parts[1], parts[2]) if len(parts) == 3 else None
    numbers = [parts[1] if len(parts) > 1 else "", parts[4] if len(parts) > 4 else "1"]
    if not 3 <= len(parts) <= 5 or not all(
        item.isascii() and item.isdecimal() and len(item) <= 5 for item in numbers
    ):
        return None
    profile, world = ("" if len(parts) < 4 or parts[3] == NO_PROFILE else parts[3]), int(numbers[1])
    if not (profile.isascii() and profile.isprintable()) or not 1 <= world <= WORLD_MAX:
        return None
    return Pool(
        parts[0],
        sm_count=int(numbers[0]),
        driver_branch=parts[2],
        mig_profile=profile,
        world_size=Small(world),
    )


def _unknown(text: str, field: str) -> str:
    cpus = f"{'|'.join(CPU_ARCHITECTURES)}/{'|'.join(CPU_LEVELS)}/{'|'.join(CPU_VENDORS)}"
    return (
        f"{field}: {text[:80]!r} is not a pool; CPUs are {cpus}, GPUs such as "
        "hopper/132/550; `quorate classes` lists those on offer"
    )


def classes_of(views: Iterable[OfferView]) -> tuple[ClassRow, ...]:
    """Returns the pools of live offers; those with most owners first."""
    hosts: dict[Hash32, Pool] = {}
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
            price = slot.on_demand or slot.spot  # the price at which jobs are matched
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


def _is_known(host: Pool) -> bool:
    """Returns whether the catalogue has the class. A coordinator may list anything."""
    try:
        host.validate()
    except Refused:
        return False  # not re-raised: no provider could accept a job on it
    return True


def describe_owners(row: ClassRow | None, name: str) -> str:
    """Describes a named class's owners. Users must see them before they sign, because these owners
    decide the verdict.
    """
    if row is None:
        return f"pool {name}: no provider offers it now"
    shown = ", ".join(f"0x{owner.hex()}" for owner in row.owners[:16])
    more = f" and {len(row.owners) - 16} more" if len(row.owners) > 16 else ""
    told = f"pool {name}: owners on offer: {len(row.owners)} ({shown}{more})"
    return f"{told}; owners with most slots there decide which result is accepted"
