"""How many run slots a provider may hold at once, and a client use (PROTOCOL §4, Windows).

Each commit of a job that ended paid adds one slot to the provider's window, and each lapse halves
it. So a provider that takes jobs and sits on them holds few. A client has a window once three
providers have declined a job of it.
"""

from quorate_coordinator.core.model import market_index
from quorate_coordinator.core.model.entities import WorkWindow
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.messages.offer import SLOTS_MAX
from quorate_protocol.units import Address, Hash32

CLIENT_WINDOW_MAX = 256  # from here on a client has no window
WINDOWS_MAX = 4 * SLOTS_MAX  # classes of one provider; beyond it the one changed first is forgotten


def widen(context: StepContext, lease: Lease) -> None:
    count, before = _offered(context, lease), _window(context, lease)
    if count is not None and before < count:
        _set(context, lease, before + 1)


def halve(context: StepContext, lease: Lease) -> None:
    count, before = _offered(context, lease), _window(context, lease)
    if count is not None:
        before = min(before, count)
    _set(context, lease, max(1, before // 2))


def halve_client(context: StepContext, account: Address) -> int:
    """No provider wanted its job. One execution always stays. Returns its window."""
    under_way = context.state.clients[account].under_way
    most = context.state.client_windows.get(account) or under_way
    window = context.state.client_windows[account] = max(1, min(most, under_way) // 2)
    return window


def widen_client(context: StepContext, client: Address) -> None:
    """For a paid execution, or the first meter of a rental. A wide window ends."""
    before = context.state.client_windows.get(client)
    if before is None:
        return
    if before >= CLIENT_WINDOW_MAX:
        del context.state.client_windows[client]
    else:
        context.state.client_windows[client] = before + 1


def why_waits(state: State, client: Address) -> str:
    """Returns "" while its window has room for all that it has under way."""
    most = state.client_windows.get(client)
    if most is None or state.clients[client].under_way <= most:
        return ""
    return f"your window is {most}: owners declined a run of yours; each paid run widens it"


def _offered(context: StepContext, lease: Lease) -> int | None:
    """None if the provider does not offer the class any more."""
    offer = context.state.providers[lease.provider].offer
    slot = market_index.slot_offer(offer, _class_of(lease)) if offer else None
    return slot.count if slot is not None else None


def _window(context: StepContext, lease: Lease) -> int:
    return market_index.work_window(context.state, lease.provider, _class_of(lease))


def _class_of(lease: Lease) -> Hash32:
    return lease.assignment.message.pool


def _set(context: StepContext, lease: Lease, slots: int) -> None:
    pool, windows = _class_of(lease), context.state.work_windows
    others = tuple(item for item in windows.get(lease.provider) or () if item.pool != pool)
    kept = (*others, WorkWindow(pool, slots))[-WINDOWS_MAX:]
    if kept != windows.get(lease.provider):
        windows[lease.provider] = kept
