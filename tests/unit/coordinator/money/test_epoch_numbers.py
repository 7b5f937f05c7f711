"""Tests an epoch number that is already taken on the chain.

Another holder of the posting key took it, or the chain mined an attempt that the coordinator had
given up.
"""

import pytest

from quorate_coordinator.core import chain_events
from quorate_coordinator.core.entities import EpochRecord
from quorate_coordinator.core.events import ChainAdvanced, ChainEpochPosted
from quorate_coordinator.core.money import epochs
from quorate_coordinator.core.state import State
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.units import ZERO_HASH, BlockNumber, Hash32, UnixSeconds
from sim.coordinator import rules_of
from sim.plan import draw

OURS, THEIRS = Hash32(b"\x01" * 32), Hash32(b"\x02" * 32)


def turn_with(record: EpochRecord | None, epoch: int) -> StepContext:
    state = State()
    context = StepContext(state, rules_of(draw(1)), UnixSeconds(3_000), ZERO_HASH)
    if record is not None:
        state.epochs[record.number] = record
    context.change_own(epoch=epoch, is_dirty=False)
    return context


def posted(context: StepContext, number: int, root: Hash32) -> None:
    chain_events.on_block(
        context,
        ChainAdvanced(
            BlockNumber(5 + number),
            ZERO_HASH,
            UnixSeconds(3_000),
            (ChainEpochPosted(number, root),),
        ),
    )


@pytest.mark.parametrize("is_refused_first", [True, False])
def test_epoch_number_that_another_holder_took_is_not_retried(is_refused_first: bool) -> None:
    record = EpochRecord(3, (), OURS, (), UnixSeconds(2_990))
    context = turn_with(record, 3)
    if is_refused_first:
        epochs.on_refused(context, epochs.purpose_of(record))
        assert context.state.own.epoch == 2
    posted(context, 3, THEIRS)
    # the chain reports it later, or once more
    epochs.on_refused(context, epochs.purpose_of(record))
    assert context.state.own.epoch == 3 and context.state.own.is_dirty, (
        "the next one is number 4, with all credits"
    )
    assert 3 not in context.state.epochs, "nobody is given proofs of a root that does not stand"


def test_the_coordinators_own_root_is_recorded_and_an_older_one_changes_nothing() -> None:
    context = turn_with(EpochRecord(3, (), OURS, (), UnixSeconds(2_990)), 3)
    posted(context, 1, THEIRS)
    assert context.state.own.epoch == 3 and not context.state.own.is_dirty
    posted(context, 3, OURS)
    assert context.state.epochs[3].is_posted and not context.state.own.is_dirty
