"""Limits an epoch to the credits that the chain has money for (PROTOCOL §6).

The chain refuses a whole epoch if its final credits exceed what vouchers brought in, or all of its
credits exceed what is allocated. Then one client's fault would stop all pay. So an epoch shows no
more than that.

There is less money when a voucher is not on the chain yet (an epoch has room for fifty), or never
will be: the coordinator or its chain was away until a client had its deposit back. The epoch shows
what is missing as held, not as final: first of the coordinator's fee, then of the audit fund, then
of all accounts in proportion to what is new of each. The state keeps what each account is owed, so
each epoch computes this again, and later fees and vouchers fill the gap.
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
    """The leaves, limited to the money that the chain has once it has these vouchers. The cost is
    linear in accounts.
    """
    covered = {item.voucher.message.client: item.voucher.message.cumulative for item in vouchers}
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
    """Final credits by index in the newest epoch on the chain. None of them may ever fall."""
    posted = [record for record in context.state.epochs.values() if record.is_posted]
    return (
        {leaf.index: leaf.final for leaf in max(posted, key=lambda record: record.number).leaves}
        if posted
        else {}
    )


def _cuts(parts: dict[int, int], missing: int, first: Sequence[int | None]) -> dict[int, int]:
    """How much to cut of each part, `missing` in all: first of the parts in `first`, then of the
    others in proportion.

    The sum is exact: each part gives what the rounded running total grows by.
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
    return (
        replace(leaf, final=Amount(leaf.final - amount), held=Amount(leaf.held + amount))
        if amount
        else leaf
    )
