"""Says what is really on offer, and why the rest is not. Pure."""

from collections.abc import Iterable

from quorate_node.core.provider_core import ProviderCore
from quorate_protocol.units import Hash32
from quorate_runtime.process.health import Problem

UNSELLABLE = ("stake", "engine", "disk", "room", "coordinator", "rotation", "stopping")
"""The problems with which a provider can take no job, the one to solve first in front."""
NO_SLOT_IS_FREE = ("stake", "engine", "disk", "room")
"""The problems with which heartbeats announce no free slot."""


def why_nothing_is_on_offer(
    core: ProviderCore,
    problems: Iterable[Problem],
    is_on_offer: bool,
    is_leaving: bool,
    is_connected: bool,
) -> str:
    """ "" if some slot is on offer. `is_on_offer`: registered and staked."""
    if is_leaving:
        return "leaving: `quorate node leave` goes on, `quorate node resume` takes it back"
    known = {problem.name: problem.text for problem in problems}
    if core.scalars.is_draining and "stopping" not in known:
        return "paused: `quorate node resume` takes work again"
    for name in UNSELLABLE:
        if name in known and not (name == "coordinator" and is_connected):
            return f"{name}: {known[name]}"
    if not is_on_offer:
        return "not registered yet: the daemon has not finished its start"
    if not core.offered_slots():
        return "every GPU on offer is gone: the driver does not list it any more"
    return ""


def offered_count(core: ProviderCore, host_class: Hash32) -> int:
    return sum(int(slot.count) for slot in core.offered_slots() if slot.host.id() == host_class)
