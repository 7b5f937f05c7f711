"""Checks of rentals: what meters may charge, and how far each party is exposed (PROTOCOL §12).

The formulas are its own. They look at the events that both cores took.
"""

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Ended, Job
from quorate_coordinator.core.model.lease import Live, Returned
from quorate_node.core import phases, rental
from quorate_protocol.limits import Limits
from quorate_protocol.units import DeclineReason, Hash32
from sim.account_checks import ReceiptLedger
from sim.coordinator import FEE_BPS
from sim.coverage import Coverage
from sim.provider import Provider


class RentalChecks:
    """Follows the rentals of one coordinator. It adds what they charge to the ledger."""

    def __init__(self, coverage: Coverage, limits: Limits, ledger: ReceiptLedger) -> None:
        self._coverage, self._limits, self._ledger = coverage, limits, ledger
        self._accepted: dict[Hash32, int] = {}  # lease -> when its Accept was taken
        self._stopped: dict[Hash32, int] = {}  # job -> when its Stop was taken
        self._charged: dict[Hash32, tuple[int, int]] = {}  # job -> pay and fee so far
        self._allowed: dict[Hash32, int] = {}  # job -> the most that its client named

    def took(self, core: CoordinatorCore, event: ev.Event, at: int) -> None:
        """Checks one step of the coordinator."""
        match event:
            case ev.AcceptReceived(accept):
                self._accepted.setdefault(accept.message.assignment_hash, at)
            case ev.StopReceived(stop):
                job = core.state.jobs[stop.message.job_id]
                if job.is_rental and not isinstance(job.phase, Ended):
                    self._stopped.setdefault(job.id, at)
            case ev.AllowanceNamed(job_id, _, most):
                job = core.state.jobs[job_id]
                if not isinstance(job.phase, Ended):
                    before = self._allowed.get(job_id, job.split.charged + job.reserved)
                    self._allowed[job_id] = max(most, before)
            case ev.MeterReceived(lease):
                self._metered(core, core.state.jobs[core.state.leases[lease].job_id], lease, at)
            case _:
                pass

    def _metered(self, core: CoordinatorCore, job: Job, name: Hash32, at: int) -> None:
        lease = core.state.leases[name]
        assert isinstance(lease.phase, Live | Returned), "a meter of what does not run is taken"
        until = min(at, self._stopped.get(job.id, at))
        passed = max(0, until - self._accepted[name] + 1)
        usage = lease.phase.usage_ms
        assert usage <= passed * 1000, f"I4: {usage} ms count, and {passed} s have passed"
        longest = int(job.submission.spec.max_duration) * 1000
        usage = min(max(usage, self._limits.meter_every * 1000), longest)
        whole = usage * lease.assignment.message.price_per_hour // 3_600_000
        pay, fee = sum(item.amount for item in job.split.credits), job.split.fee
        assert pay <= whole and fee <= pay * FEE_BPS // 10_000, "I4: a rental costs too much"
        assert job.split.charged == pay + fee <= job.order.budget, "I1: a charge has other parts"
        is_cut = pay < whole
        assert not is_cut or isinstance(job.phase, Ended), "I3: a rental goes on unpaid"
        lacks = isinstance(job.phase, Ended) and "voucher" in job.phase.reason
        self._coverage.facts["rentals that no voucher covered"] += lacks
        self._move(core, job, lease.provider, pay, fee)

    def _move(self, core: CoordinatorCore, job: Job, owner: bytes, pay: int, fee: int) -> None:
        before = self._charged.get(job.id, (0, 0))
        more, fees = pay - before[0], fee - before[1]
        self._charged[job.id] = pay, fee
        most = self._allowed.get(job.id)
        if most is not None and (more or fees):
            self._coverage.facts["meters within an allowance"] += 1
            assert pay + fee <= most, "I4: a rental costs more than its client allows"
        if more or fees:
            client = core.state.clients[job.order.client]
            others = client.reserved - job.reserved
            assert client.charged + others <= client.vouched + client.fees_paid, (
                "I4: a rental is charged beyond what its client signed"
            )
        account, ledger = job.order.client, self._ledger
        ledger.charged[account] = ledger.charged.get(account, 0) + more + fees
        provider = next(item for item in core.state.providers if item == owner)
        ledger.earned[provider] = ledger.earned.get(provider, 0) + more
        ledger.fees += fees
        self._coverage.facts["meters that charged"] += more > 0

    def ticked(self, provider: Provider, at: int) -> None:
        """I11: no owner works on for a coordinator that does not pay."""
        for item in provider.core.executions.values():
            match item.phase:
                case phases.Live(started_at, covered_ms=covered):
                    ahead = at - started_at - covered // 1000
                    assert ahead <= self._limits.rental_ahead + 1, f"I11: {ahead} s are not covered"
                case phases.Over(why=rental.ON_DEMAND) | phases.Lapsed(why=rental.ON_DEMAND):
                    self._coverage.facts["spot rentals that gave way"] += 1
                case phases.Over(decline=decline) if decline is not None:
                    is_own = decline.reason is DeclineReason.UNSECURED
                    self._coverage.facts["rentals that their owner ended"] += is_own
                case _:
                    pass
