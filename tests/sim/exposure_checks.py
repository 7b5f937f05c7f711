"""I3: what an owner accepts is covered by its coordinator's guarantee and by its own trust."""

from quorate_node.core.events import AssignmentReceived
from quorate_node.core.phases import Declined, Execution
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import DeclineReason, Hash32
from sim.coverage import Coverage
from sim.parties import DOMAIN
from sim.provider import Provider


class ExposureChecks:
    """Computes again what each owner would lose if its coordinator vanished."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._seen: set[bytes] = set()

    def accepted(self, provider: Provider, event: AssignmentReceived) -> None:
        """Checks an Assignment that was just accepted or declined."""
        lease, core = event.assignment.digest(DOMAIN), provider.core
        item = core.executions.get(lease)
        if item is None or lease in self._seen:
            return
        self._seen.add(lease)
        if isinstance(item.phase, Declined):
            reason = item.phase.decline.reason
            self._coverage.facts["declined as unsecured"] += reason is DeclineReason.UNSECURED
            return
        debt, policy = core.debt(item.coordinator), core.terms.policy
        live = [
            other
            for other in core.executions.values()
            if other.coordinator == item.coordinator and not other.is_ended
        ]
        going = [other for other in live if not is_funded(provider, other.assignment_hash)]
        self._coverage.facts["accepted beside a funded execution"] += len(going) < len(live)
        least = sum(_least(other) for other in going)
        guarantee = 0 if debt.tab.closes_at else debt.tab.locked - debt.tab.paid
        held = max(0, debt.earned - max(debt.vouched, debt.tab.paid))
        exposed = max(0, debt.vouched - debt.tab.paid) + held + least
        assert exposed <= guarantee + policy.trust, (
            f"I3: {provider.name} risks {exposed}, with {guarantee} guaranteed"
        )
        assert held <= policy.max_held, f"I3: {provider.name} accepts while {held} is held"


def is_funded(provider: Provider, lease: Hash32) -> bool:
    """Whether final blocks show the escrow of the lease's order (6.83): it pays, no coordinator."""
    kept = provider.money.kept.get(lease)
    if kept is None:
        return False
    funded = provider.chain.final_money().jobs.jobs
    job = funded.get((kept.order.client, digest(DOMAIN, kept.order)))
    return job is not None and job.budget >= kept.order.budget


def _price(item: Execution) -> int:
    return item.assignment.message.price_per_hour


def _most(item: Execution) -> int:
    body = item.assignment.message
    return body.max_duration * body.price_per_hour // 3600


def _least(item: Execution) -> int:
    """What a lease may still pay: the whole duration, or the run time that was committed."""
    commit = item.commit()
    if item.is_rental:
        return 0 if item.is_ended else DEVNET.rental_ahead * _price(item) // 3_600
    if commit is None:
        return _most(item)
    usage = min(commit.usage_ms, item.assignment.message.max_duration * 1000)
    return usage * item.assignment.message.price_per_hour // 3_600_000
