"""Computes how one run changes the volume of its market periods.

Not every database can sum a period's totals exactly, since amounts have 128 bits. So Python adds
each change of a run to its hour and its day.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from quorate_coordinator.base.operator_view import ENDINGS
from quorate_coordinator.status.migrations.models import VOLUME_COLUMNS

HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400
UNITS = {"hour": HOUR_SECONDS, "day": DAY_SECONDS}
COUNTED = ("executions", "audits", "outvoted", "charged", "fee")
PeriodKey = tuple[str, int, str]
"""(unit, start, pool)"""
RunRow = Mapping[str, object]


def changes_of(
    before: Iterable[RunRow], after: Iterable[RunRow]
) -> dict[PeriodKey, dict[str, int]]:
    found: dict[PeriodKey, dict[str, int]] = defaultdict(lambda: dict.fromkeys(VOLUME_COLUMNS, 0))
    for rows, sign in ((before, -1), (after, 1)):
        for row in rows:
            for unit, seconds in UNITS.items():
                created_at = _integer(row["created_at"])
                key = unit, created_at - created_at % seconds, str(row["pool"])
                _add(found[key], row, sign)
    return {key: change for key, change in found.items() if any(change.values())}


def _add(change: dict[str, int], row: RunRow, sign: int) -> None:
    change["jobs"] += sign
    for name in COUNTED:
        change[name] += sign * _integer(row[name])
    if row["ending"] in ENDINGS:
        change[str(row["ending"])] += sign


def _integer(value: object) -> int:
    assert isinstance(value, int), "counts and amounts are integers"
    return value
