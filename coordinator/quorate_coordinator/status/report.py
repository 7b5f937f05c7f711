"""Computes `quorate coordinator report` from the tables.

A job counts if its order came in the period, which begins at the full hour before its first moment.
Python computes the sums, because amounts have 128 bits.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from quorate_coordinator.status.migrations.models import VOLUME_COLUMNS
from quorate_coordinator.status.projection import cases, classes, periods, transactions
from quorate_coordinator.status.volume import HOUR_SECONDS
from quorate_protocol.codec import canonical
from quorate_protocol.messages.classes import Pool


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """`pool` is None while the tables do not know what the id means."""

    pool_id: str
    pool: Pool | None
    jobs: int
    unmatched: int


@dataclass(frozen=True, slots=True)
class GasSpent:
    """Mined transactions of one kind (payroll, redeem ...) and what their gas cost, in wei."""

    kind: str
    transactions: int
    gas_used: int
    cost_wei: int


@dataclass(frozen=True, slots=True)
class Report:
    """Totals of a period. `figures` has the columns of `models.VOLUME_COLUMNS`, and those of the
    court cases that were first seen in the period. Amounts are millionths of a USD.
    """

    since: int
    until: int
    figures: dict[str, int]
    gas: tuple[GasSpent, ...]
    demand: tuple[ClassDemand, ...]


async def read_report(engine: AsyncEngine, since: int, until: int) -> Report:
    """Raises one of `database.DATABASE_ERRORS`."""
    since -= since % HOUR_SECONDS
    async with engine.connect() as connection:
        by_class = await _volume_by_class(connection, since, until)
        total = {name: sum(item[name] for item in by_class.values()) for name in VOLUME_COLUMNS}
        return Report(
            since,
            until,
            total | await _disputes(connection, since, until),
            await _gas(connection, since, until),
            await _demand(connection, by_class),
        )


async def _volume_by_class(
    connection: AsyncConnection, since: int, until: int
) -> dict[str, Counter[str]]:
    columns = [periods.c.pool, *(periods.c[name] for name in VOLUME_COLUMNS)]
    query = select(*columns).where(
        periods.c.unit == "hour",
        periods.c.start >= since,
        periods.c.start < until,
        periods.c.jobs > 0,
    )
    found: dict[str, Counter[str]] = defaultdict(Counter)
    async for row in await connection.stream(query):
        values = dict(row._mapping)
        found[str(values.pop("pool"))].update(values)
    return found


async def _disputes(connection: AsyncConnection, since: int, until: int) -> dict[str, int]:
    query = select(cases.c.is_convicted, cases.c.burned, cases.c.taken).where(
        cases.c.seen_at >= since, cases.c.seen_at < until
    )
    rows = (await connection.execute(query)).all()
    results = Counter(row.is_convicted for row in rows)
    return {
        "opened": len(rows),
        "convicted": results[1],
        "acquitted": results[0],
        "undecided": results[None],
        "burned": sum(row.burned for row in rows),
        "taken": sum(row.taken for row in rows),
    }


async def _gas(connection: AsyncConnection, since: int, until: int) -> tuple[GasSpent, ...]:
    query = select(transactions.c.kind, transactions.c.gas_used, transactions.c.cost_wei).where(
        transactions.c.at >= since, transactions.c.at < until
    )
    found: dict[str, tuple[int, int, int]] = {}
    for row in await connection.execute(query):
        count, gas_used, cost_wei = found.get(row.kind, (0, 0, 0))
        found[row.kind] = count + 1, gas_used + row.gas_used, cost_wei + row.cost_wei
    return tuple(GasSpent(kind, *spent) for kind, spent in sorted(found.items()))


async def _demand(
    connection: AsyncConnection, by_class: dict[str, Counter[str]]
) -> tuple[ClassDemand, ...]:
    hosts = {
        str(row.pool): canonical.decode(Pool, row.body.encode())
        for row in await connection.execute(select(classes))
        if row.pool in by_class
    }
    rows = (
        ClassDemand(name, hosts.get(name), item["jobs"], item["unmatched"])
        for name, item in by_class.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.unmatched, -row.jobs, row.pool)))
