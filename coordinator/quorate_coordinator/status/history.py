"""Answers GET /v1/market/history: reads which periods a request asks for, and queries them."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import RowMapping, Select, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from quorate_coordinator.status.projection import classes, periods
from quorate_coordinator.status.volume import DAY_SECONDS, UNITS
from quorate_protocol.codec import canonical
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.market_history import MarketHistory, MarketPeriodView, PriceBand
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import PPM_ONE, Amount, Hash32, Price, UnixSeconds

DAYS_MAX = {"hour": 31, "day": 400}  # in one request
DEFAULT_DAYS = 7
ROWS_MAX = 1_000
DIGITS_MAX = 12


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Periods from `since` on and before `until`, both Unix seconds; `after` is a cursor."""

    unit: str
    since: int
    until: int
    pool: str = ""  # hex without 0x; "" = all
    limit: int = ROWS_MAX
    after: tuple[int, str] | None = None


def query_of(given: Mapping[str, str], now: int) -> HistoryQuery:
    """Raises `Refused` with the parameter and the remedy."""
    unit = given.get("by", "hour")
    if unit not in UNITS:
        raise Refused(Code.MALFORMED, f"by: {unit[:20]!r} is neither hour nor day")
    until = _moment(given, "until", now)
    since = _moment(given, "since", max(0, until - DEFAULT_DAYS * DAY_SECONDS))
    if since >= until:
        raise Refused(
            Code.MALFORMED, f"since: {since} is not before until, {until}; give an earlier moment"
        )
    most = DAYS_MAX[unit]
    if until - since > most * DAY_SECONDS:
        other = "or ask by=day" if unit == "hour" else "and ask again for the rest"
        raise Refused(
            Code.MALFORMED,
            f"since: one request by {unit} covers at most {most} days; set since and until closer "
            f"together, {other}",
        )
    limit = given.get("limit", str(ROWS_MAX))
    if not _is_number(limit) or not 1 <= int(limit) <= ROWS_MAX:
        raise Refused(Code.MALFORMED, f"limit: a number from 1 to {ROWS_MAX} is needed")
    seconds = UNITS[unit]
    return HistoryQuery(
        unit,
        since - since % seconds,
        until,
        _pool_id(given.get("pool", "")),
        int(limit),
        _cursor(given.get("after", "")),
    )


def _moment(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not _is_number(text):
        raise Refused(
            Code.MALFORMED,
            f"{name}: {text[:40]!r} is no moment; give Unix seconds, such as 1767225600",
        )
    return int(text)


def _pool_id(text: str) -> str:
    name = text.removeprefix("0x")
    if text and not _is_hash(name):
        raise Refused(
            Code.MALFORMED,
            f"pool: {text[:80]!r} is not the id of a pool; give 0x and 64 hex digits",
        )
    return name


def _cursor(text: str) -> tuple[int, str] | None:
    if not text:
        return None
    start, _, name = text.partition("-")
    if not _is_number(start) or not _is_hash(name):
        raise Refused(Code.MALFORMED, "after: give the `next` of the page before, unchanged")
    return int(start), name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX


def _is_hash(text: str) -> bool:
    return len(text) == 64 and all(sign in "0123456789abcdef" for sign in text)


async def read_history(engine: AsyncEngine, query: HistoryQuery) -> MarketHistory:
    """Reads one row more than wanted, to know whether there is a next page."""
    async with engine.connect() as connection:
        found = (await connection.execute(_select(query))).mappings().all()
    rows = found[: query.limit]
    is_more = len(found) > query.limit
    return MarketHistory(
        by=query.unit,
        since=UnixSeconds(query.since),
        until=UnixSeconds(query.until),
        periods=tuple(_view(row) for row in rows),
        next=f"{rows[-1]['start']}-{rows[-1]['pool']}" if is_more else None,
    )


def _select(query: HistoryQuery) -> Select[tuple[object, ...]]:
    wanted = and_(
        periods.c.unit == query.unit,
        periods.c.start >= query.since,
        periods.c.start < query.until,
        or_(periods.c.slots > 0, periods.c.jobs > 0),
    )
    if query.pool:
        wanted = and_(wanted, periods.c.pool == query.pool)
    if query.after is not None:
        start, name = query.after
        same = and_(periods.c.start == start, periods.c.pool > name)
        wanted = and_(wanted, or_(periods.c.start > start, same))
    joined = periods.outerjoin(classes, periods.c.pool == classes.c.pool)
    return (
        select(periods, classes.c.body)
        .select_from(joined)
        .where(wanted)
        .order_by(periods.c.start, periods.c.pool)
        .limit(query.limit + 1)
    )


def _view(row: RowMapping) -> MarketPeriodView:
    prices = None
    if row["price_least"] is not None:
        prices = PriceBand(
            Price(row["price_least"]), Price(row["price_median"]), Price(row["price_p90"])
        )
    jobs = int(row["jobs"])
    return MarketPeriodView(
        start=UnixSeconds(row["start"]),
        pool_id=Hash32(bytes.fromhex(row["pool"])),
        pool=canonical.decode(Pool, row["body"].encode()) if row["body"] else None,
        slots=row["slots"],
        providers=row["providers"],
        prices=prices,
        jobs=jobs,
        executions=row["executions"],
        executions_per_job_ppm=int(row["executions"]) * PPM_ONE // jobs if jobs else 0,
        unmatched=row["unmatched"],
        charged=Amount(row["charged"]),
    )
