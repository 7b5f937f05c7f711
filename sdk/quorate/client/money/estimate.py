"""What an order will probably cost, beside the worst case that its budget must cover, and how long
its verified result will probably take.

The worst case is the highest price for the longest run. Most runs are far shorter and cheaper, so
people see an expected cost too: what earlier runs of the same job cost, or else today's prices. It
binds nobody. Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quorate.client.base.client_ledger import OrderRecord
from quorate.job.quantities import format_amount, format_duration
from quorate_protocol.limits import BEACON_AHEAD_MIN
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.views import PlanView
from quorate_protocol.rules import rentals, settlement
from quorate_protocol.units import (
    Amount,
    Bps,
    Hash32,
    Label,
    Milliseconds,
    Seconds,
    pay_for,
    share_bps,
)

RUNS_MAX = 5  # earlier runs that count
RECORDS_MAX = 200  # newest orders that are looked at
MINUTE = 60
UNBOUNDED = Amount(2**127)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected cost of one run, in millionths of a USD.

    `runs` earlier runs of the same job cost `expected` on average. With 0 runs, `expected` is for a
    run of the whole `seconds` at today's prices, and `a_minute` for one minute of it.
    """

    expected: Amount
    a_minute: Amount
    seconds: int
    runs: int
    run_seconds: int = 0  # of one execution, as earlier runs took; 0 = not known

    def text(self) -> str:
        cost = format_amount(self.expected)
        if self.runs:
            return f"{cost}, as {'the last run' if self.runs == 1 else f'{self.runs} earlier runs'}"
        longest = f"{cost} if it runs for {format_duration(self.seconds)}"
        if self.seconds <= MINUTE:
            return f"{longest} at today's prices"
        return f"{format_amount(self.a_minute)} a minute at today's prices; {longest}"

    def time_text(self, rule: Label, is_fast: bool, period: int) -> str:
        """Says how long a verified result takes, with and without `speed: fast`."""
        took = self.run_seconds or self.seconds
        about = "about" if self.run_seconds else "at most about"
        longest = f"if it runs for {format_duration(self.seconds)}"
        basis = "as earlier runs" if self.run_seconds else longest
        one = seconds_to_result(Label.QUORUM_2, True, took, period)
        two = seconds_to_result(Label.QUORUM_2, False, took, period)
        usual = seconds_to_result(rule, is_fast, took, period)
        said = f"{about} {format_duration(usual)}, {basis}"
        if rule is Label.ADAPTIVE:
            return f"{said}; {format_duration(two)} if it is audited"
        if rule is not Label.QUORUM_2:
            return said
        other = f"{format_duration(two)} without" if is_fast else f"{format_duration(one)} with"
        return f"{said}; {other} speed: fast"

    def short(self) -> str:
        if self.runs:
            return f"about {format_amount(self.expected)}"
        if self.seconds <= MINUTE:
            return f"about {format_amount(self.expected)}"
        return f"about {format_amount(self.a_minute)} a minute"


Took = Callable[[Hash32], int | None]
"""Job id -> the seconds of one execution by its receipt; None without one here."""


def seconds_to_result(rule: Label, is_fast: bool, run_seconds: int, period: int) -> int:
    """How long a job takes whose executions take so long, if providers are free and agree."""
    draw = (BEACON_AHEAD_MIN + 1) * period
    match rule:
        case Label.UNVERIFIED | Label.NONE:
            return run_seconds
        case Label.QUORUM_2 if not is_fast:
            return 2 * run_seconds + draw
        case _:
            return run_seconds + draw


def estimate(
    view: PlanView,
    name: str,
    spec: JobSpec,
    premium_bps: Bps,
    earlier: Iterable[OrderRecord],
    is_fast: bool = False,
    took: Took = lambda _: None,
) -> Estimate | None:
    """Returns what one run will probably cost, or None if no offer fits and none ran before.

    `name` is the job's. `earlier` has this client's orders, newest first.
    """
    longest = Milliseconds(spec.paid_seconds() * 1000)
    full = _charge(view, longest, premium_bps, is_fast)
    minute = _charge(view, Milliseconds(min(longest, 60_000)), premium_bps, is_fast)
    found = _same_job(name, spec, earlier)
    if found:
        times = [seconds for record in found if (seconds := took(record.job_id)) is not None]
        mean = Amount(-(-sum(record.charged or 0 for record in found) // len(found)))
        one = -(-sum(times) // len(times)) if times else 0
        return Estimate(mean, minute, spec.max_duration, len(found), one)
    if view.cheapest is None:
        return None
    return Estimate(full, minute, spec.max_duration, 0)


def estimate_of_rental(view: PlanView, seconds: Seconds) -> Estimate | None:
    """Returns what so much time costs at the cheapest free offer, or None if no offer fits."""
    if view.price is None:
        return None
    minute = rentals.cost_of(Seconds(MINUTE), view.price, view.fee_bps)
    return Estimate(rentals.cost_of(seconds, view.price, view.fee_bps), minute, seconds, 0)


def _charge(view: PlanView, usage: Milliseconds, premium_bps: Bps, is_fast: bool) -> Amount:
    """Returns the charge of a witnessed job of this run time: the cheapest offer runs it, and the
    beacon draws the auditors from all offers. Of a fast job it draws all.
    """
    if view.cheapest is None:
        return Amount(0)
    one = pay_for(usage, view.auditor_price if is_fast else view.cheapest, UNBOUNDED)
    auditors = settlement.executions_expected(view.rule) - 1
    pays = one + auditors * pay_for(usage, view.auditor_price, UNBOUNDED)
    premium = share_bps(one, premium_bps) if view.rule is Label.ADAPTIVE else 0
    return Amount(pays + premium + share_bps(Amount(pays), view.fee_bps))


def _same_job(name: str, spec: JobSpec, earlier: Iterable[OrderRecord]) -> list[OrderRecord]:
    """Returns the newest charged runs of the same name, image and command."""
    found: list[OrderRecord] = []
    for _, record in zip(range(RECORDS_MAX), earlier):
        if not record.charged or record.name != name:
            continue
        other = job_spec.decode(record.spec)
        if (other.image, other.command()) == (spec.image, spec.command()):
            found.append(record)
        if len(found) == RUNS_MAX:
            break
    return found
