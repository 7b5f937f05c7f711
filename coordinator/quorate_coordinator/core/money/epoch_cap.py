"""Limits an epoch to the credits for which the chain has money (PROTOCOL §6).

The chain refuses a whole epoch if its final credits exceed what vouchers brought in, or if all its
credits exceed what is allocated. Then one client's fault would stop all pay. So an epoch never
credits more than that.

There may be less money than the state credits. A voucher may not be on the chain yet, because an
epoch has room for fifty. Or it will never be, because a client got its deposit back while the
coordinator or its chain was away. Then the epoch credits the missing amount as held, not as final.
The coordinator's fee is cut first, then the audit fund, then the new part of all other accounts in
proportion. The state keeps what each account is owed. So each epoch computes this again, and later
fees and vouchers fill the gap.
"""

from collections.abc import Sequence

from quorate_coordinator.core.effects import PaidVoucher
from quorate_coordinator.core.money.ledger import chain_time
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import Amount
from quorate_protocol.values import replace

FUND = 0  # index of the audit fund's leaf


def backed(
    context: StepContext, leaves: tuple[Leaf, ...], vouchers: Sequence[PaidVoucher]
) -> tuple[Leaf, ...]:
    """Returns the leaves, limited to the money that the chain has once it has these vouchers. The
    cost is linear in accounts.
    """
    covered = {item.voucher.message.payer: item.voucher.message.cumulative for item in vouchers}
    now, margin = chain_time(context), context.rules.limits.voucher_margin
    charged = allocated = 0
    for client in context.state.clients.values():
        paid = max(client.posted, covered.get(client.account, 0))
        charged += paid
        allocated += max(paid, client.reach(now, margin))
    first = (context.state.indices.get(context.rules.coordinator), FUND)
    before = _shown(context)
    news = {leaf.index: max(0, leaf.final - before.get(leaf.index, 0)) for leaf in leaves}
    finals = _cuts(news, sum(leaf.final for leaf in leaves) - charged, first)
    leaves = tuple(_moved(leaf, finals.get(leaf.index, 0)) for leaf in leaves)
    owed = sum(leaf.final + leaf.held for leaf in leaves)
    helds = _cuts({leaf.index: leaf.held for leaf in leaves}, owed - allocated, first)
    return tuple(
        replace(leaf, held=Amount(leaf.held - helds[leaf.index])) if helds.get(leaf.index) else leaf
        for leaf in leaves
    )


def _shown(context: StepContext) -> dict[int, int]:
    """Returns the final credits by index in the newest epoch on the chain. None of them may ever
    fall.
    """
    posted = [record for record in context.state.epochs.values() if record.is_posted]
    return (
        {leaf.index: leaf.final for leaf in max(posted, key=lambda record: record.number).leaves}
        if posted
        else {}
    )


def _cuts(parts: dict[int, int], missing: int, first: Sequence[int | None]) -> dict[int, int]:
    """Returns how much to cut from each part, `missing` in total: first from the parts in `first`,
    then from the others in proportion.

    The sum is exact: each part is cut by the growth of the rounded running total.
    """
    cuts: dict[int, int] = {}
    for index in first:
        if missing > 0 and index in parts:
            cuts[index] = min(parts[index], missing)
            missing -= cuts[index]
    others = {index: part for index, part in parts.items() if index not in first and part}
    total, seen, gone = sum(others.values()), 0, 0
    missing = min(missing, total)
    for index, part in others.items() if missing > 0 else ():
        seen += part
        cuts[index] = missing * seen // total - gone
        gone += cuts[index]
    return cuts


def _moved(leaf: Leaf, amount: int) -> Leaf:
    """Returns a leaf with this amount moved from final to held."""
    return (
        replace(leaf, final=Amount(leaf.final - amount), held=Amount(leaf.held + amount))
        if amount
        else leaf
    )
