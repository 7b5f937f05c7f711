"""Builds epochs: when to post one, with which leaves and vouchers (PROTOCOL §6)."""

from quorate_coordinator.core.effects import PaidVoucher, PostEpoch
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.money import epoch_cap, ledger
from quorate_coordinator.core.money.ledger import chain_time
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.rules import epoch_tree as trees
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32, UnixSeconds
from quorate_protocol.values import replace

VOUCHERS_PER_EPOCH_MAX = 50
FULL_EPOCHS = 24  # the most in one period; the chain keeps 256, of which one must be final
EPOCHS_KEPT = 8
INDICES = 1 << 32  # indices of the registry


def build_if_due(context: StepContext) -> None:
    """Builds and posts an epoch when the chain lacks a voucher or a final credit.

    That is at most one every `epoch_every`, but sooner when the last one had no room for all
    vouchers. An epoch is never empty.
    """
    own = context.state.own
    if (
        not own.is_dirty
        or context.at < own.last_epoch_at + context.rules.limits.epoch_every
        or _in_flight(context)
    ):
        return
    leaves = leaves_of(context)
    waiting = _vouchers(context)
    if not leaves:
        return
    vouchers, is_full = waiting[:VOUCHERS_PER_EPOCH_MAX], len(waiting) > VOUCHERS_PER_EPOCH_MAX
    leaves = epoch_cap.backed(context, leaves, vouchers)
    number = own.epoch + 1
    root = trees.build(leaves)
    record = EpochRecord(
        number,
        leaves,
        root.hash,
        vouchers,
        context.at,
        log_root=own.log.root(),
        log_length=own.log.count,
    )
    context.state.epochs[number] = record
    pause = (
        context.rules.limits.epoch_every - context.rules.limits.epoch_every // FULL_EPOCHS
        if is_full
        else 0
    )
    context.change_own(
        epoch=number, last_epoch_at=UnixSeconds(max(0, context.at - pause)), is_dirty=is_full
    )
    context.emit(PostEpoch(purpose_of(record), number, root, vouchers))
    for old in [item for item in context.state.epochs if item <= number - EPOCHS_KEPT]:
        del context.state.epochs[old]


def purpose_of(record: EpochRecord) -> str:
    """Returns the name of one attempt to post an epoch. If the chain refuses it, the same number is
    built again with other leaves.
    """
    return f"epoch-{record.number}-{record.built_at}"


def _in_flight(context: StepContext) -> bool:
    last = context.state.epochs.get(context.state.own.epoch)
    return last is not None and not last.is_posted


def leaves_of(context: StepContext) -> tuple[trees.Leaf, ...]:
    """Returns one leaf for each account: providers, clients with refunds, and the coordinator with
    its fee. The audit fund has index 0 and no account.
    """
    leaves = []
    for provider in context.state.providers.values():
        if provider.final or provider.held:
            root = provider.credits.root()
            leaves.append(trees.Leaf(provider.index, provider.owner, *provider.shown, root))
    for client in context.state.clients.values():
        place = context.state.indices.get(client.account)
        if place is not None and (client.refund or client.refund_held):
            leaves.append(
                trees.Leaf(place, client.account, client.refund, client.refund_held, ZERO_HASH)
            )
    own = context.state.own
    index = context.state.indices.get(context.rules.coordinator)
    if index is not None and (own.fee or own.fee_held):
        leaves.append(
            trees.Leaf(index, context.rules.coordinator, own.fee, own.fee_held, ZERO_HASH)
        )
    if own.fund or own.fund_held:
        leaves.append(trees.Leaf(0, Address(bytes(20)), own.fund, own.fund_held, ZERO_HASH))
    return tuple(sorted(_with_distinct_indices(leaves), key=lambda leaf: leaf.index))


def _with_distinct_indices(leaves: list[trees.Leaf]) -> list[trees.Leaf]:
    """Merges leaves of one account, and gives each account its own index.

    An account has one claim, so a provider that is also a client gets one leaf. Two accounts have
    the same index when a reorganisation gave the first one's index to the second and the first did
    not register again. The contract pays the account whatever its index is. So the later one moves
    to an index that no registration can have.
    """
    owed: dict[Address, trees.Leaf] = {}
    for leaf in leaves:
        one = owed.get(leaf.account)
        if one is not None:  # the provider's leaf, which came first and has the root
            leaf = replace(
                one, final=Amount(one.final + leaf.final), held=Amount(one.held + leaf.held)
            )
        owed[leaf.account] = leaf
    apart: dict[int, trees.Leaf] = {}
    for leaf in owed.values():
        index = leaf.index
        while index in apart:
            index += INDICES
        apart[index] = replace(leaf, index=index)
    return list(apart.values())


def _vouchers(context: StepContext) -> tuple[PaidVoucher, ...]:
    """Returns the newest vouchers that the chain has not seen and will honour, one for each client
    that owes something. Those with the least time left come first.
    """
    found = []
    now = chain_time(context)
    for client in context.state.clients.values():
        voucher, session = client.voucher, client.voucher_session
        if (
            voucher is None
            or session is None
            or client.posted >= client.charged
            or not client.posted < voucher.message.cumulative <= client.escrowed
        ):
            continue
        if now < session.message.expires:
            until = (
                client.release_at
                if client.release_at and voucher.message.cumulative > client.allocation
                else session.message.expires
            )
            found.append((until, PaidVoucher(voucher, session)))
    found.sort(key=lambda item: item[0])
    return tuple(item for _, item in found)


def on_posted(context: StepContext, number: int, root: Hash32) -> None:
    """Records that the chain has a root of this coordinator.

    If the state does not have that root, another holder of the posting key posted it, or the core
    gave it up as refused. Its number is then used: the chain would refuse a second root for it. All
    credits go into the next epoch.
    """
    record = context.state.epochs.get(number)
    if (record is None or record.root != root) and number >= context.state.own.epoch + (
        record is None
    ):
        if record is not None:
            del context.state.epochs[number]
        context.change_own(epoch=number, is_dirty=True)
    elif record is not None:
        context.state.epochs[number] = replace(record, is_posted=True)
        for item in record.vouchers:
            client = context.state.clients[item.voucher.message.payer]
            posted = Amount(max(client.posted, item.voucher.message.cumulative))
            context.state.clients[client.account] = replace(client, posted=posted)
            ledger.reconsider(context, client.account)


def on_newest(context: StepContext, number: int, root: Hash32) -> None:
    """Applies the chain's answer about the newest posting of this coordinator.

    A posting that the chain no longer has was removed by a reorganisation. A posting that the state
    does not know counts as posted. Otherwise the coordinator would wait for ever, or the chain
    would refuse every later number.
    """
    if number >= context.state.own.epoch:
        if number:
            on_posted(context, number, root)
        return
    if context.state.own.epoch == number + 1 and _in_flight(context):
        return
    for later in [item for item in context.state.epochs if item > number]:
        del context.state.epochs[later]
    context.change_own(epoch=number, is_dirty=True)


def on_refused(context: StepContext, purpose: str) -> None:
    """Gives up a posting that the chain refused. Its credits go into the next one, after a while in
    which the cause of the refusal can become known.
    """
    number = int(purpose.split("-")[1])
    record = context.state.epochs.get(number)
    # After a crash a refusal may come twice. The second one is of an attempt that is replaced.
    if record is not None and not record.is_posted and purpose == purpose_of(record):
        del context.state.epochs[number]
        context.change_own(epoch=number - 1, last_epoch_at=context.at, is_dirty=True)
