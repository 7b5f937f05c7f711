"""What the simulator found and a mutant would show too rarely: the smallest case of each."""

from quorate_coordinator.core import epochs
from quorate_coordinator.core.state import EpochRecord, State
from quorate_coordinator.core.turn import Turn
from quorate_protocol.units import ZERO_HASH, UnixSeconds
from sim.coordinator import rules_of
from sim.plan import draw


def test_refusal_told_twice_leaves_the_next_attempt_alone() -> None:
    """A crash between telling a refusal and marking it done tells it again; the epoch was built anew in between."""
    state = State()
    turn = Turn(state, rules_of(draw(1)), UnixSeconds(3_000), ZERO_HASH)
    first = EpochRecord(1, (), ZERO_HASH, (), UnixSeconds(2_990))
    second = EpochRecord(1, (), ZERO_HASH, (), UnixSeconds(3_000))
    state.epochs[1] = first
    epochs.on_refused(turn, epochs.purpose_of(first))
    assert 1 not in state.epochs and state.own.is_dirty
    state.epochs[1] = second
    turn.books(epoch=1, is_dirty=False)
    epochs.on_refused(turn, epochs.purpose_of(first))
    assert state.epochs[1] == second and state.own.epoch == 1 and not state.own.is_dirty
    epochs.on_refused(turn, epochs.purpose_of(second))
    assert 1 not in state.epochs and state.own.is_dirty
