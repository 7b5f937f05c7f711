"""What jobs draw from, kept as which slots of a class's list were alive: lists change with every
heartbeat that fails to come, their slots only with the chain. A list of 400 slots is 50 bytes
so, and 130 KB written out.
"""

from quorate_coordinator.core.state import Frame, HostList, Roster
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.rules.eligible import EligibleList
from quorate_protocol.units import Hash32
from quorate_protocol.values import replace

ROSTERS = "rosters"


def hold(context: StepContext, host_class: Hash32, eligible: EligibleList) -> None:
    """One more job draws from this list, which is its class's at the moment."""
    state = context.state
    known = state.frames.get(eligible.root)
    if known is not None:
        state.frames[eligible.root] = replace(known, jobs=known.jobs + 1)
        return
    number = _roster(context, host_class)
    roster = state.rosters[number]
    state.rosters[number] = replace(roster, frames=roster.frames + 1)
    state.frames[eligible.root] = Frame(number, _bits(eligible), 1)


def let_go(context: StepContext, root: Hash32) -> None:
    """One job less draws from it."""
    state, frame = context.state, context.state.frames[root]
    if frame.jobs > 1:
        state.frames[root] = replace(frame, jobs=frame.jobs - 1)
        return
    del state.frames[root]
    roster = state.rosters[frame.roster]
    if roster.frames > 1:
        state.rosters[frame.roster] = replace(roster, frames=roster.frames - 1)
        return
    del state.rosters[frame.roster]
    if state.newest_rosters.get(roster.host_class) == frame.roster:
        del state.newest_rosters[roster.host_class]


def _roster(context: StepContext, host_class: Hash32) -> int:
    state = context.state
    slots = (state.hosts.get(host_class) or HostList()).slots
    number = state.newest_rosters.get(host_class)
    known = state.rosters.get(number) if number is not None else None
    if number is None or known is None or (known.slots is not slots and known.slots != slots):
        number, known = context.count(ROSTERS), Roster(host_class, slots, 0)
        state.newest_rosters[host_class] = number
    # After a restore the two are equal and not one: made one, they are compared at once the next
    # time.
    state.rosters[number] = replace(known, slots=slots)
    return number


def _bits(eligible: EligibleList) -> bytes:
    found = bytearray((eligible.length + 7) // 8)
    for slot in eligible:
        found[slot.index >> 3] |= 1 << (slot.index & 7)
    return bytes(found)
