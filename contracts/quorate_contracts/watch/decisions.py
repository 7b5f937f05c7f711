"""What a watcher does about one epoch: pure rules over what the chain and the coordinator show."""

from dataclasses import dataclass
from enum import StrEnum

from quorate_contracts.bindings.epochs import Epoch
from quorate_contracts.watch.watch_file import ShownLeaf, Watched
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.rules.epoch_tree import root_of
from quorate_protocol.units import Address, Amount


class Kind(StrEnum):
    """What to do. The values are the names of the contract's functions."""

    NOTHING = ""
    STATEMENT = "challenge_statement"
    LEAF = "challenge_leaf"
    DEMAND = "demand_leaf"
    DEMAND_OLD = "demand_old_leaf"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about an epoch, and by which evidence. `missing` is in token units."""

    kind: Kind
    missing: Amount = Amount(0)
    statement: Envelope[Statement] | None = None
    old: ShownLeaf | None = None


def is_of(shown: ShownLeaf, epoch: Epoch, account: Address) -> bool:
    """Whether a leaf is the account's and its proof leads to the root on chain."""
    root = root_of(shown.leaf, shown.proof)
    sums = (epoch.root, epoch.sum_final, epoch.sum_held)
    return (
        shown.epoch == epoch.number
        and shown.leaf.account == account
        and (root.hash, root.final, root.held) == sums
    )


def judge(epoch: Epoch, shown: ShownLeaf | None, kept: Watched, old: ShownLeaf | None) -> Decision:
    """Returns what to do about an epoch that is not final.

    `shown` is the account's leaf in it, or None if nobody shows one. `old` is the account's newest
    leaf in an older epoch that is not void.
    """
    statement = kept.due(epoch.number)
    due = statement.message.final if statement is not None else Amount(0)
    before = old.leaf.final if old is not None else Amount(0)
    if shown is None:
        if due and due >= before:
            return Decision(Kind.DEMAND, due, statement)
        return Decision(Kind.DEMAND_OLD, before, old=old) if before else Decision(Kind.NOTHING)
    final = shown.leaf.final
    if final < before:
        return Decision(Kind.LEAF, Amount(before - final), old=old)
    is_shown_as_held = epoch.is_exhausted and final + shown.leaf.held >= due
    if final < due and not is_shown_as_held:
        return Decision(Kind.STATEMENT, Amount(due - final), statement)
    return Decision(Kind.NOTHING)
