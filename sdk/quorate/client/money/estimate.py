"""What an order will probably cost, beside the worst case that its budget must cover.

The worst case is the highest price for the longest run. Most runs are far shorter and cheaper, so
people see an expected cost too: what earlier runs of the same job cost, or else today's prices. It
binds nobody. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from quorate.client.base.client_ledger import OrderRecord
from quorate.job.quantities import format_amount, format_duration
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.views import PlanView
from quorate_protocol.rules import settlement
from quorate_protocol.units import Amount, Bps, Label, Milliseconds, pay_for, share_bps

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

    def text(self) -> str:
        cost = format_amount(self.expected)
        if self.runs:
            return f"{cost}, as {'the last run' if self.runs == 1 else f'{self.runs} earlier runs'}"
        longest = f"{cost} if it runs for {format_duration(self.seconds)}"
        if self.seconds <= MINUTE:
            return f"{longest} at today's prices"
        return f"{format_amount(self.a_minute)} a minute at today's prices; {longest}"

    def short(self) -> str:
        if self.runs:
            return f"about {format_amount(self.expected)}"
        if self.seconds <= MINUTE:
            return f"about {format_amount(self.expected)}"
        return f"about {format_amount(self.a_minute)} a minute"


def estimate(
    view: PlanView, name: str, spec: JobSpec, premium_bps: Bps, earlier: Iterable[OrderRecord]
) -> Estimate | None:
    """Returns what one run will probably cost, or None if no offer fits and none ran before.

    `name` is the job's. `earlier` has this client's orders, newest first.
    """
    longest = Milliseconds(spec.paid_seconds() * 1000)
    full = _charge(view, longest, premium_bps)
    minute = _charge(view, Milliseconds(min(longest, 60_000)), premium_bps)
    charges = _charges(name, spec, earlier)
    if charges:
        mean = Amount(-(-sum(charges) // len(charges)))
        return Estimate(mean, minute, spec.max_duration, len(charges))
    if view.cheapest is None:
        return None
    return Estimate(full, minute, spec.max_duration, 0)


def _charge(view: PlanView, usage: Milliseconds, premium_bps: Bps) -> Amount:
    """Returns the charge of a witnessed job of this run time: the cheapest offer runs it, and the
    beacon draws the auditors from all offers.
    """
    if view.cheapest is None:
        return Amount(0)
    one = pay_for(usage, view.cheapest, UNBOUNDED)
    auditors = settlement.executions_expected(view.rule) - 1
    pays = one + auditors * pay_for(usage, view.auditor_price, UNBOUNDED)
    premium = share_bps(one, premium_bps) if view.rule is Label.ADAPTIVE else 0
    return Amount(pays + premium + share_bps(Amount(pays), view.fee_bps))


def _charges(name: str, spec: JobSpec, earlier: Iterable[OrderRecord]) -> list[Amount]:
    """Returns what the newest runs of the same name, image and command were charged."""
    found: list[Amount] = []
    for _, record in zip(range(RECORDS_MAX), earlier):
        if not record.charged or record.name != name:
            continue
        other = job_spec.decode(record.spec)
        if (other.image, other.command()) == (spec.image, spec.command()):
            found.append(record.charged)
        if len(found) == RUNS_MAX:
            break
    return found
