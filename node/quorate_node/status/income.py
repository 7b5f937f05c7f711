"""What the provider has earned by day, in `<home>/income.json`.

The file is for people only. If it is lost, only the past days are lost: no payment depends on it.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Amount, Hash32
from quorate_protocol.values import replace
from quorate_runtime.files import write_atomic

FILE = "income.json"
FILE_BYTES_MAX = 64 << 20
DAYS_MAX = 400
COUNTED_MAX = 200_000  # ended executions that the core still has

log = logging.getLogger(__name__)


class DayIncome(Struct, frozen=True):
    """One day (UTC), in token units; `paid` and `unpaid` count jobs. `earned` includes held pay;
    `taken_back` is what a later verdict or receipt took back.
    """

    day: str  # such as 2026-01-31
    paid: int = 0
    unpaid: int = 0
    earned: Amount = Amount(0)
    taken_back: Amount = Amount(0)
    gpu_millijoules: int = 0  # that GPUs took while they were in leases


class Credited(Struct, frozen=True):
    """The pay of a coordinator that was counted."""

    coordinator: Address
    amount: Amount


class Income(Struct, frozen=True):
    """`counted`: ended executions that the core still has; a restart counts none twice."""

    days: tuple[DayIncome, ...] = ()  # oldest first
    credited: tuple[Credited, ...] = ()
    counted: tuple[Hash32, ...] = ()


def with_job(income: Income, day: str, lease: Hash32, is_paid: bool) -> Income:
    """Returns the income with one more ended job. Pure."""
    today = _day(income, day)
    today = (
        replace(today, paid=today.paid + 1) if is_paid else replace(today, unpaid=today.unpaid + 1)
    )
    counted = (*income.counted, lease)[-COUNTED_MAX:]
    return replace(_with_day(income, today), counted=counted)


def with_earned(income: Income, day: str, coordinator: Address, total: Amount) -> Income:
    """Returns the income with what a coordinator's pay adds to what was counted. Pure."""
    known = {item.coordinator: item.amount for item in income.credited}
    more = total - known.get(coordinator, 0)
    if not more:
        return income
    today = _day(income, day)
    if more > 0:
        today = replace(today, earned=Amount(today.earned + more))
    else:
        today = replace(today, taken_back=Amount(today.taken_back - more))
    known[coordinator] = total
    credited = tuple(Credited(address, amount) for address, amount in known.items())
    return replace(_with_day(income, today), credited=credited)


def with_energy(income: Income, day: str, millijoules: int) -> Income:
    """Returns the income with more energy of GPUs in leases. Pure."""
    today = _day(income, day)
    return _with_day(income, replace(today, gpu_millijoules=today.gpu_millijoules + millijoules))


def without_forgotten(income: Income, kept: Iterable[Hash32]) -> Income:
    """Returns the income without counted executions that the core has forgotten. Pure."""
    there = set(kept)
    return replace(income, counted=tuple(item for item in income.counted if item in there))


def _day(income: Income, day: str) -> DayIncome:
    newest = income.days[-1] if income.days else None
    return newest if newest is not None and newest.day == day else DayIncome(day)


def _with_day(income: Income, today: DayIncome) -> Income:
    earlier = tuple(item for item in income.days if item.day != today.day)
    return replace(income, days=(*earlier, today)[-DAYS_MAX:])


def read_income(home: Path) -> Income:
    path = home / FILE
    if not path.exists():
        return Income()
    try:
        return canonical.decode(Income, path.read_bytes(), FILE_BYTES_MAX)
    except (Refused, OSError) as error:
        # Not re-raised: it is a display, and the money is on chain.
        log.warning("%s cannot be read, so the income by day starts again: %s", path, error)
        return Income()


def write_income(home: Path, income: Income) -> None:
    write_atomic(home / FILE, canonical.encode(income), 0o600)
