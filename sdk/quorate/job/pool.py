"""Names of pools (PROTOCOL §2), which owners offer them, and on which machines.

`cpu` is the pool of all CPUs. `H100 SXM` is one of GPUs, `8x H100 SXM` one with eight in a slot,
and `A100 SXM 80GB/3g.40gb` one of partitions. The id of a pool always works too.
"""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from quorate.base.errors import UsageError
from quorate_attestation.catalogue import models_called
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.views import OfferView
from quorate_protocol.refusals import Refused
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Price, Small

GPUS_MAX = 255
_NAME = re.compile(r"(?:([0-9]{1,3})x )?([^/]+)(?:/([^/]+))?")
_OLD_CLASS = re.compile(r"(x86_64|aarch64|turing|ampere|ada|hopper|blackwell|cdna[23])/.+")


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool: owners with live offers in it, their slots, and the lowest price per hour. `hosts`:
    how many owners have each kind of machine.
    """

    id: Hash32
    name: str
    owners: tuple[Address, ...]
    hosts: dict[str, int]
    slots: int
    cheapest: Price | None


def pool_name(pool: Pool) -> str:
    """Returns a name that `parse_pool` can read, or the id if a part is not a plain word."""
    try:
        is_read_back = parse_pool(str(pool)) == pool.id()
    except UsageError:  # not re-raised: a model contains a slash; the id works as well
        is_read_back = False
    return str(pool) if is_read_back else f"0x{pool.id().hex()}"


def parse_pool(text: str, field: str = "pool") -> Hash32:
    """Returns the id of a pool by its name or id; ZERO_HASH for "", any pool. UsageError names the
    field.
    """
    if not text:
        return ZERO_HASH
    if text.startswith("0x"):
        return _identity(text, field)
    if text == str(CPUS):
        return CPUS.id()
    if _OLD_CLASS.fullmatch(text):
        raise UsageError(_old(text, field))
    parts = _NAME.fullmatch(text)
    if parts is None or not 1 <= int(parts[1] or 1) <= GPUS_MAX:
        raise UsageError(_unknown(text, field))
    models = models_called(parts[2])
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:8])
        raise UsageError(f"{field}: {text[:80]!r} is several models: {names}; name one of them")
    gpu = models[0].name if models else parts[2]
    pool = Pool(gpu, parts[3] or "", Small(int(parts[1] or 1)))
    try:
        pool.validate()
    except Refused as refused:
        raise UsageError(_unknown(text, field)) from refused
    return pool.id()


def name_of(identity: Hash32) -> str:
    """Returns the name of a pool by its id; the id if it is of GPUs."""
    return str(CPUS) if identity == CPUS.id() else f"0x{identity.hex()}"


def _identity(text: str, field: str) -> Hash32:
    try:
        identity = bytes.fromhex(text[2:])
    except ValueError:
        identity = b""  # not re-raised: reported below
    if len(identity) != 32 or identity == ZERO_HASH:
        raise UsageError(
            f"{field}: {text[:80]!r} is not a pool's id (0x and 64 hex digits); `quorate pools` "
            "lists them"
        )
    old = old_class(Hash32(identity))
    if old:
        raise UsageError(_old(old, field))
    return Hash32(identity)


def old_class(identity: Hash32) -> str:
    """Returns the name of a host class of CPUs by its id, as it was before pools; "" for others."""
    levels = (f"{level}{end}" for level in ("v1", "v2", "v3", "v4", "armv8") for end in _OLD_ENDS)
    for parts in itertools.product(("x86_64", "aarch64"), levels, _OLD_VENDORS):
        if hash_tuple("cpu", *parts) == identity:
            return "/".join(parts)
    return ""


_OLD_ENDS = ("", "-gvisor")
_OLD_VENDORS = ("AuthenticAMD", "GenuineIntel", "ARM", "other")


def _old(text: str, field: str) -> str:
    return (
        f"{field}: {text[:80]} is a host class, and pools took their place: write cpu, or a model "
        "such as H100 SXM; `quorate pools` lists them"
    )


def _unknown(text: str, field: str) -> str:
    return (
        f"{field}: {text[:80]!r} is not a pool; write cpu, or a model such as H100 SXM or 8x H100 "
        "SXM; `quorate pools` lists those on offer"
    )


def pools_of(views: Iterable[OfferView]) -> tuple[PoolRow, ...]:
    """Returns the pools of live offers; those with most owners first."""
    pools: dict[Hash32, Pool] = {}
    owners: dict[Hash32, dict[Address, int]] = {}
    hosts: dict[Hash32, dict[str, set[Address]]] = {}
    prices: dict[Hash32, list[Price]] = {}
    for view in views:
        for slot in view.offer.slots if view.is_alive else ():
            if not _is_known(slot.pool):
                continue
            identity, owner = slot.pool.id(), view.offer.provider
            pools.setdefault(identity, slot.pool)
            mine = owners.setdefault(identity, {})
            mine[owner] = mine.get(owner, 0) + slot.count
            hosts.setdefault(identity, {}).setdefault(str(slot.host), set()).add(owner)
            price = slot.price
            prices.setdefault(identity, []).extend([price] if price else [])
    rows = [
        PoolRow(
            item,
            pool_name(pool),
            tuple(owners[item]),
            {name: len(found) for name, found in sorted(hosts[item].items())},
            sum(owners[item].values()),
            min(prices[item], default=None),
        )
        for item, pool in pools.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-len(row.owners), row.name)))


def _is_known(pool: Pool) -> bool:
    """A coordinator may list anything."""
    try:
        pool.validate()
    except Refused:
        return False  # not re-raised: no provider could accept a job on it
    return True


def describe_owners(row: PoolRow | None, name: str) -> str:
    """Describes a pool's owners. Users must see them before they sign, because these owners decide
    the verdict.
    """
    if row is None:
        return f"pool {name}: no provider offers it now"
    shown = ", ".join(f"0x{owner.hex()}" for owner in row.owners[:16])
    more = f" and {len(row.owners) - 16} more" if len(row.owners) > 16 else ""
    told = f"pool {name}: owners on offer: {len(row.owners)} ({shown}{more})"
    kinds = ", ".join(f"{host} ({count})" for host, count in list(row.hosts.items())[:8])
    return f"{told}; on {kinds}; owners with most slots there decide which result is accepted"
