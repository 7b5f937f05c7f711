"""The decision on a job from its revealed executions (PROTOCOL §5).

All functions are pure. `rules.agreement` says which results agree, and which differ for certain.
"""

from collections.abc import Sequence
from enum import Enum
from fractions import Fraction

from msgspec import Struct

from quorate_protocol.limits import DIFFERENT_RESULTS, EXECUTIONS_MAX, TIERS
from quorate_protocol.rules import agreement as agreements
from quorate_protocol.rules.agreement import EXACT, Agreement
from quorate_protocol.units import PPM_ONE, Address, Hash32, Label, VerifyTier
from quorate_protocol.values import replace

RIVAL_SHARE_MAX = Fraction(5, 1000)


class Execution(Struct, frozen=True):
    """One committed execution, as the decision needs it."""

    assignment_hash: Hash32
    provider: Address
    result: Hash32 | None  # None when it was not revealed or its ciphertext did not open
    suspicion_ppm: int = 200_000  # see `Trust.suspicion_ppm`
    is_killed: bool = False  # the time limit or the memory limit ended it
    is_alone: bool = False  # the only one in its batch; then silence is no fault

    def void(self) -> "Execution":
        """Returns the execution of a provider that contradicted itself: it counts for nothing."""
        return replace(self, result=None, is_alone=True)


class Accepted(Struct, frozen=True):
    """Enough executions agree. Both fields hold indices into the executions given."""

    group: tuple[int, ...]  # the agreeing ones; first the one whose output is the job's
    faulted: tuple[int, ...]  # those that are at fault


class More(Struct, frozen=True):
    """The job is undecided: a new batch of so many executions must be drawn."""

    count: int


class Limit(Enum):
    """Whose limit ended a job without a decision (PROTOCOL §5 Unresolved)."""

    CLIENT = "client"  # maxExecutions, or the budget
    PROGRAM = "program"  # it gave three owners three results; its client pays them too
    MARKET = "market"  # no owner is left to ask, or so many executions as the protocol allows


class Unresolved(Struct, frozen=True):
    """No decision is possible."""

    limit: Limit


class CannotVerify(Struct, frozen=True):
    """There is one result, and no owner is left to confirm it."""


Decision = Accepted | More | Unresolved | CannotVerify


def decide(
    rule: Label,
    tier: VerifyTier,
    executions: Sequence[Execution],
    cap: int,
    is_exhausted: bool,
    affordable: int = EXECUTIONS_MAX,
    is_audited: bool = False,
    agreement: Agreement = EXACT,
) -> Decision:
    """Decides over all executions so far, which are in CommitSet order.

    `cap` is the order's maxExecutions, which counts revealed executions only. `is_exhausted` says
    that no further provider can be drawn. `affordable` is `settlement.further_affordable`.
    `is_audited` says that the beacon wanted an audit: then one execution is never enough.
    """
    results = [item.result for item in executions]
    groups = agreements.groups(agreement, results)
    best = _best(rule, executions, groups)
    rivals = agreements.rivals(agreement, results, best)
    is_unchecked = rule is Label.ADAPTIVE and is_audited and len(executions) == 1
    if not is_unchecked and _suffices(rule, tier, executions, rivals, best):
        at_fault = (
            number
            for number, item in enumerate(executions)
            if number not in best and not has_lapsed(item)
            # Within a tolerance another result is no fault: honest ones may lie further apart.
            if agreement.is_exact or item.result is None
        )
        return Accepted(agreements.in_order(agreement, results, best), tuple(at_fault))
    if _has_differed(rule, agreement, results):
        return Unresolved(Limit.PROGRAM)
    revealed = len(executions) - results.count(None)
    room = min(cap - revealed, affordable)
    if room <= 0:
        return Unresolved(Limit.CLIENT)
    if is_exhausted or len(executions) >= EXECUTIONS_MAX:
        if agreements.different(agreement, results) >= DIFFERENT_RESULTS:
            return Unresolved(Limit.PROGRAM)
        return CannotVerify() if len(groups) == 1 else Unresolved(Limit.MARKET)
    room = min(room, EXECUTIONS_MAX - len(executions))
    return More(_needed(rule, tier, executions, rivals, best, room))


def _has_differed(rule: Label, agreement: Agreement, results: Sequence[Hash32 | None]) -> bool:
    """Whether three results end a job at once, as its program's doing.

    Two liars in one job can cause this, and are paid. Under quorum-2 they gain nothing by it: with
    one lie between them they would be paid too, and their lie would be the result. Under the
    adaptive rule two newcomers decide no job, so there further executions name the liars.
    """
    if rule is not Label.QUORUM_2:
        return False
    return agreements.different(agreement, results, for_certain=True) >= DIFFERENT_RESULTS


def risk(executions: Sequence[Execution], group: Sequence[int]) -> Fraction:
    """Probability that all members of a group lie in the same way: risk(G) = Πc/10."""
    product = Fraction(1, 10)
    for index in group:
        product *= Fraction(executions[index].suspicion_ppm, PPM_ONE)
    return product


def has_lapsed(execution: Execution) -> bool:
    """Whether an execution ended without a result and without a fault.

    Silence is a fault only in a batch with others. A provider that is alone in its batch and does
    not reveal is not paid, and another provider is drawn.
    """
    return execution.result is None and execution.is_alone


def _best(
    rule: Label, executions: Sequence[Execution], groups: list[tuple[int, ...]]
) -> tuple[int, ...]:
    """Returns the only group that may be accepted.

    Under the adaptive rule it is the group with the least risk, not the largest. So an attacker
    cannot outvote trusted owners by registering many newcomers.
    """
    if rule is Label.ADAPTIVE:
        return min(groups, key=lambda group: (risk(executions, group), -len(group)), default=())
    return max(groups, key=len, default=())


def _suffices(
    rule: Label,
    tier: VerifyTier,
    executions: Sequence[Execution],
    rivals: list[tuple[int, ...]],
    best: tuple[int, ...],
) -> bool:
    match rule:
        case Label.QUORUM_2:
            return len(best) >= 2
        case Label.UNVERIFIED | Label.NONE:
            return len(best) >= 1
        case Label.ADAPTIVE:
            return _adaptive_suffices(tier, executions, rivals, best)


def _adaptive_suffices(
    tier: VerifyTier,
    executions: Sequence[Execution],
    rivals: list[tuple[int, ...]],
    best: tuple[int, ...],
) -> bool:
    if len(executions) == 1:
        # Without an audit the result is provisional. A provider can claim a time-out or a memory
        # kill without running anything, so these are always audited.
        return bool(best) and not executions[0].is_killed
    if len(best) < 2:
        # An auditor that did not reveal has checked nothing, however trusted the primary is.
        return False
    alone = risk(executions, best)
    if alone > Fraction(TIERS[tier].epsilon, PPM_ONE):
        return False
    return all(
        len(best) >= 2 and alone / (alone + risk(executions, rival)) <= RIVAL_SHARE_MAX
        for rival in rivals
    )


def _needed(
    rule: Label,
    tier: VerifyTier,
    executions: Sequence[Execution],
    rivals: list[tuple[int, ...]],
    best: tuple[int, ...],
    room: int,
) -> int:
    if rule is not Label.ADAPTIVE:
        return 1
    # The new batch is so large that its agreement suffices, if all its members are newcomers.
    trial = list(executions)
    group = list(best)
    for count in range(1, room + 1):
        trial.append(Execution(Hash32(bytes(32)), Address(bytes(20)), None))
        group.append(len(trial) - 1)
        if _adaptive_suffices(tier, trial, rivals, tuple(group)):
            return count
    return room
