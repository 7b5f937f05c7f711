"""Tests that the state holds only jobs under way after thousands of jobs."""

from quorate_coordinator.core.money import ledger
from quorate_protocol.codec.tables import Table
from quorate_protocol.units import Hash32
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party

JOBS = 3_000
PER_BEAT = 50
WARM_BEATS = 20  # the first seconds, until as many jobs end as begin
STAKE_SLOT_BYTES = 200  # of a snapshot
NOT_OF_JOBS = {"blocks", "counters", "own_record"}


class BusyMarket(ArchivingMarket):
    """A market whose providers have room for every job."""

    slots = 100


def rows_of(market: ArchivingMarket) -> int:
    """Returns the number of rows of all tables that hold parts of jobs."""
    tables = {
        name: table for name, table in vars(market.core.state).items() if isinstance(table, Table)
    }
    return sum(len(table) for name, table in tables.items() if name not in NOT_OF_JOBS)


def test_state_and_snapshot_do_not_grow_with_finished_jobs() -> None:
    market = BusyMarket(*[Party(number) for number in range(5)])
    market.core._check = None  # the check of sums is slow, and once at the end is enough
    ordered: list[Hash32] = []
    rows: list[int] = []
    sizes: list[int] = []
    while len(ordered) < JOBS:
        for _ in range(PER_BEAT):
            ordered.append(market.order(len(ordered) % 2, len(ordered) + 1))
        market.beat()
        rows.append(rows_of(market))
        if len(rows) % 10 == 0:
            sizes.append(len(market.core.snapshot()))
    early, late = rows[WARM_BEATS : WARM_BEATS + 10], rows[-10:]
    assert max(late) <= 1.05 * max(early), f"rows grow: {early} ... {late}"
    # Each client keeps a bounded list of used nonces; all else in a snapshot is of jobs under way
    # and of accounts.
    nonces = 14 * sum(len(used.listed) for used in market.core.state.nonces.values())
    assert sizes[-1] - nonces <= 1.05 * max(sizes[WARM_BEATS // 10 - 1 : WARM_BEATS // 10 + 1]), (
        f"snapshots grow: {sizes}"
    )
    market.until_archived(*ordered[-10 * PER_BEAT :])
    assert (
        not market.core.state.jobs
        and not market.core.state.leases
        and market.archive.count() == JOBS
    )
    ledger.check(market.context())
    staked = len(market.parties) * market.slots * STAKE_SLOT_BYTES
    assert rows_of(market) < 50 and len(market.core.snapshot()) < 60_000 + staked, (
        "accounts, nonces and stake slots"
    )
    print(
        f"rows {max(late)} under load, {rows_of(market)} at rest; snapshot {sizes[-1]} and "
        f"{len(market.core.snapshot())} bytes"
    )
