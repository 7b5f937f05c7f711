"""How many run slots a provider may hold at once, and a client use (PROTOCOL §4, Windows).

A provider shows with commits in time that its run slots can work. Each adds one slot to its window,
and each lapse halves it. So a provider that takes jobs and sits on them holds few of them. A client
has a window once providers could not fetch what its jobs name.
"""

from quorate_coordinator.core.entities import Job, WorkWindow
from quorate_coordinator.core.lease import Lapsed, Lease
from quorate_coordinator.core.matching import market_index
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.messages.offer import SLOTS_MAX
from quorate_protocol.units import Address, Hash32

UNFETCHED_MIN = 2
CLIENT_WINDOW_MAX = 256  # from here on a client has no window
WINDOWS_MAX = 4 * SLOTS_MAX  # classes of one provider; beyond it the one changed first is forgotten


def widen(context: StepContext, lease: Lease) -> None:
    """Adds one run slot after a commit in time, up to the count on offer."""
    provider, host_class = context.state.providers[lease.provider], _class_of(lease)
    slot = market_index.slot_offer(provider.offer, host_class) if provider.offer else None
    before = market_index.work_window(context.state, lease.provider, host_class)
    if slot is not None and before < slot.count:
        _set(context, lease, before + 1)


def halve(context: StepContext, lease: Lease) -> None:
    """Halves the window after a lapse. One run slot always stays."""
    provider, host_class = context.state.providers[lease.provider], _class_of(lease)
    slot = market_index.slot_offer(provider.offer, host_class) if provider.offer else None
    before = market_index.work_window(context.state, lease.provider, host_class)
    if slot is not None:
        before = min(before, slot.count)
    _set(context, lease, max(1, before // 2))


def halve_suspects(context: StepContext, job: Job) -> None:
    """Halves the windows of the providers that gave up a job which another one has committed now.

    Until then the job may be at fault. Otherwise a client could narrow every provider's window with
    jobs that nobody can run.
    """
    for digest in job.leases:
        lease = context.state.leases[digest]
        if isinstance(lease.phase, Lapsed) and lease.phase.is_job_suspect:
            halve(context, lease)


def note_unfetched(context: StepContext, job: Job) -> Job:
    """Notes that a provider could not fetch what a job names. From the second such execution of a
    job on, its client's window is halved: one provider alone may be wrong, or lie.
    """
    job = context.put(job, unfetched=job.unfetched + 1)
    if job.unfetched >= UNFETCHED_MIN:
        client = context.state.clients[job.submission.order.message.client]
        most = context.state.client_windows.get(client.account) or client.under_way
        context.state.client_windows[client.account] = max(1, min(most, client.under_way) // 2)
    return job


def widen_client(context: StepContext, client: Address) -> None:
    """Adds one execution to a client's window after a commit of its job. A wide window ends."""
    before = context.state.client_windows.get(client)
    if before is None:
        return
    if before >= CLIENT_WINDOW_MAX:
        del context.state.client_windows[client]
    else:
        context.state.client_windows[client] = before + 1


def _class_of(lease: Lease) -> Hash32:
    return lease.assignment.message.host_class


def _set(context: StepContext, lease: Lease, slots: int) -> None:
    host_class, windows = _class_of(lease), context.state.work_windows
    others = tuple(
        item for item in windows.get(lease.provider) or () if item.host_class != host_class
    )
    kept = (*others, WorkWindow(host_class, slots))[-WINDOWS_MAX:]
    if kept != windows.get(lease.provider):
        windows[lease.provider] = kept
