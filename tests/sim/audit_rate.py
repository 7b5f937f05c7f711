"""The audit rate of PROTOCOL §5, computed a second time from public data."""

from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.lease import Closed, Committed
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import Address, Hash32, Label, VerifyTier
from sim.workload import paid_seconds


def rate_of(
    core: CoordinatorCore,
    job: Job,
    held: dict[Address, int],
    known: dict[Address, Trusts],
    trust_class: Hash32,
) -> int:
    """auditPpm of PROTOCOL §5 for a job's primary, from held pay and trust before the round."""
    order, rule = job.submission.order.message, job.ack.message.rule
    if rule is not Label.ADAPTIVE:
        return 1_000_000 if rule is Label.QUORUM_2 else 0
    primary = next(
        core.state.leases[item]
        for item in job.leases
        if isinstance(core.state.leases[item].phase, Committed | Closed)
    )
    trusts = known.get(primary.provider)
    trust = (trusts.by_class.get(trust_class) if trusts else None) or Trust()
    is_watched = job.witness is not None or order.accept_unwitnessed
    if order.verify_tier is VerifyTier.CRITICAL or not is_watched:
        return 1_000_000
    error = (750_000 if trust.strikes else 300_000) // (15 + trust.passed)
    least = {VerifyTier.LEAN: 20_000, VerifyTier.STANDARD: 30_000}[order.verify_tier]
    gain = min(
        paid_seconds(job.submission.spec)
        * 1000
        * primary.assignment.message.price_per_hour
        // 3_600_000,
        order.budget,
    )
    has_stake = any(slot.owner == primary.provider for slot in core.state.eligible(job))
    stake = core.rules.limits.slot_stake if has_stake else 0
    loss = gain + min(stake, 7 * (gain + 500_000) // 2) + held.get(primary.provider, 0)
    economic = gain * 10**12 // (loss * 800_000) if loss else 0
    expected = 1_000_000 - 1000 * 1_000_000 // error if error > 1000 else 0
    return max(least, min(950_000, economic), expected)
