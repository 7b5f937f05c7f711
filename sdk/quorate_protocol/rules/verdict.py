"""How a job is decided from its revealed executions (PROTOCOL §5). Pure; the comparator groups
results beforehand.

Under `exact` two results agree when their result digests are equal, so a group is a digest.
"""

from collections.abc import Sequence
from fractions import Fraction

from msgspec import Struct

from quorate_protocol.limits import EXECUTIONS_MAX, TIERS
from quorate_protocol.units import PPM_ONE, Address, Hash32, Label, VerifyTier

RIVAL_SHARE_MAX = Fraction(5, 1000)


class Execution(Struct, frozen=True):
    """One committed execution; `result` is None when it was not revealed or its ciphertext did
    not open.
    """

    assignment_hash: Hash32
    provider: Address
    result: Hash32 | None
    suspicion_ppm: int = 200_000
    is_killed: bool = False  # by the time limit or for its memory
    is_alone: bool = False  # in its batch: there silence is no fault


class Accepted(Struct, frozen=True):
    """Enough executions agree. Indices into the executions given."""

    group: tuple[int, ...]
    faulted: tuple[int, ...]


class More(Struct, frozen=True):
    """Undecided: so many further executions, drawn as a fresh batch."""

    count: int


class Unresolved(Struct, frozen=True):
    """Cap reached or nobody left. `is_clients_doing`: three different results from three owners,
    so the program is not deterministic.
    """

    is_clients_doing: bool


Decision = Accepted | More | Unresolved


def decide(
    rule: Label, tier: VerifyTier, executions: Sequence[Execution], cap: int, is_exhausted: bool
) -> Decision:
    """The decision over all executions so far, in CommitSet order. `cap` = order.maxExecutions;
    at most 7 whatever it says.
    """
    groups = _groups(executions)
    best = _best(rule, executions, groups)
    if _suffices(rule, tier, executions, groups, best):
        inside = set(best)
        outside = (i for i in range(len(executions)) if i not in inside)
        return Accepted(best, tuple(i for i in outside if not _has_lapsed(executions[i])))
    if rule is Label.ADAPTIVE and len(executions) == 1:
        cap = max(
            cap,
            2,
            # a kill that is not audited yet: whatever the client allows for disagreement, it is
            # looked at once
        )
    if len(executions) >= min(cap, EXECUTIONS_MAX) or is_exhausted:
        different = {execution.result for execution in executions if execution.result is not None}
        return Unresolved(is_clients_doing=len(different) >= 3)
    return More(_needed(rule, tier, executions, best, min(cap, EXECUTIONS_MAX)))


def risk(executions: Sequence[Execution], group: Sequence[int]) -> Fraction:
    """risk(G) = Πc/10: how likely everybody in the group lies alike."""
    product = Fraction(1, 10)
    for index in group:
        product *= Fraction(executions[index].suspicion_ppm, PPM_ONE)
    return product


def _has_lapsed(execution: Execution) -> bool:
    """In a larger batch silence is a fault. Who is alone in one and silent is unpaid, and the
    next is drawn.
    """
    return execution.result is None and execution.is_alone


def _best(
    rule: Label, executions: Sequence[Execution], groups: list[tuple[int, ...]]
) -> tuple[int, ...]:
    """The one group that may be accepted. Under the adaptive rule the one that least likely lies
    alike, however many agree on another: owners who have passed many audits are not outvoted by
    as many newcomers as somebody cares to register.
    """
    if rule is Label.ADAPTIVE:
        return min(groups, key=lambda group: (risk(executions, group), -len(group)), default=())
    return max(groups, key=len, default=())


def _groups(executions: Sequence[Execution]) -> list[tuple[int, ...]]:
    by_result: dict[Hash32, list[int]] = {}
    for index, execution in enumerate(executions):
        if execution.result is not None:
            by_result.setdefault(execution.result, []).append(index)
    return [tuple(group) for group in by_result.values()]


def _suffices(
    rule: Label,
    tier: VerifyTier,
    executions: Sequence[Execution],
    groups: list[tuple[int, ...]],
    best: tuple[int, ...],
) -> bool:
    match rule:
        case Label.QUORUM_2:
            return len(best) >= 2
        case Label.UNVERIFIED | Label.NONE:
            return len(best) >= 1
        case Label.ADAPTIVE:
            return _adaptive_suffices(tier, executions, groups, best)


def _adaptive_suffices(
    tier: VerifyTier,
    executions: Sequence[Execution],
    groups: list[tuple[int, ...]],
    best: tuple[int, ...],
) -> bool:
    if len(executions) == 1:
        # Not audited: provisional. But a time-out or a memory kill can be claimed without running
        # anything: it is always audited.
        return bool(best) and not executions[0].is_killed
    if len(best) < 2:
        # an auditor that says nothing has checked nothing, however trusted the primary is
        return False
    rivals = [group for group in groups if group != best]
    alone = risk(executions, best)
    if alone > Fraction(TIERS[tier].epsilon, PPM_ONE):
        return False
    return all(
        len(best) >= 2 and alone / (alone + risk(executions, rival)) <= RIVAL_SHARE_MAX
        for rival in rivals
    )


def _needed(
    rule: Label, tier: VerifyTier, executions: Sequence[Execution], best: tuple[int, ...], cap: int
) -> int:
    room = cap - len(executions)
    if rule is not Label.ADAPTIVE:
        return 1
    # Sized so that its agreement suffices, every newcomer counted with c = .2.
    trial = list(executions)
    group = list(best)
    for count in range(1, room + 1):
        trial.append(Execution(Hash32(bytes(32)), Address(bytes(20)), None))
        group.append(len(trial) - 1)
        rivals = [other for other in _groups(executions) if other != best]
        if _adaptive_suffices(tier, trial, [tuple(group), *rivals], tuple(group)):
            return count
    return room
