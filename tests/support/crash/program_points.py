"""Lists the crash points of each program, from the event and effect types of its core."""

from types import UnionType
from typing import get_args

from quorate_coordinator.core.model import effects as coordinator_effects
from quorate_coordinator.core.model import events as coordinator_events
from quorate_node.core import effects as provider_effects
from quorate_node.core import events as provider_events
from support.crash.points import Program, all_points

CORES: dict[Program, tuple[object, object]] = {
    Program.COORDINATOR: (coordinator_events.Event, coordinator_effects.Effect),
    Program.PROVIDER: (provider_events.Event, provider_effects.Effect),
}


def named(program: Program) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the event and effect types of a program's core; empty for a program
    without a core.
    """
    events, effects = CORES.get(program, (None, None))
    return _types(events), _types(effects)


def points_of(program: Program) -> tuple[str, ...]:
    """Every crash point of a program."""
    return all_points(program, *named(program))


def _types(union: object) -> tuple[str, ...]:
    assert union is None or isinstance(union, UnionType) or get_args(union)
    return tuple(item.__name__ for item in get_args(union))
