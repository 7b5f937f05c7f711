"""Phases are shown with their words apart, and in few characters."""

from typing import get_args

from quorate_coordinator.core.model import entities
from quorate_coordinator.core.phase_names import phase_name, words_apart
from quorate_protocol.units import Round

COLUMN = 16  # characters, in the tables


def test_words_of_a_phase_are_apart() -> None:
    assert phase_name(entities.AwaitingRound(1, 1, Round(7), ())) == "awaiting-round"
    names = [words_apart(kind.__name__) for kind in get_args(entities.JobPhase)]
    assert len(names) == 7 and all(len(name) <= COLUMN for name in names), names
