"""Takes heartbeats: who is alive, which run slots others use, and until when an offer lasts.

A provider is alive only by heartbeats. An offer alone, for example one that came by gossip, is in
the book and is never matched.

A refresh of an offer changes only its sequence number and expiry. It gets no journal entry of its
own: the shell keeps it until the provider's next heartbeat, whose entry carries it
(`PendingRefreshes`). So every step still depends on journaled events alone, and a replay
decides the same. The cases of failure:

- The process ends between refresh and heartbeat: the refresh is lost. The offer counts until the
  expiry that the journal knows, and the provider refreshes three times in that period.
- The heartbeat is refused: the refresh waits for the next one.
- A changed offer arrives in between: the refresh names the sequence number of the offer that it
  renews, and does not touch another one.
- Somebody sends an older offer again after a refresh was lost: it has the content that the journal
  knows, because every change of content is journaled with its number. Only an offer that this
  coordinator never got in time can be new to it. The provider signed it, and the next heartbeat
  with a refresh or the next offer replaces it.
"""

from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model import market_index
from quorate_coordinator.core.model.entities import Provider, SlotsElsewhere
from quorate_coordinator.core.model.events import HeartbeatReceived, OfferRefresh
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import payees
from quorate_protocol.messages.signed import Accept, Assignment, Heartbeat
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32, UnixSeconds
from quorate_protocol.values import replace

CLOCK_SECONDS_MAX = 60


def on_heartbeat(context: StepContext, event: HeartbeatReceived) -> bool:
    """Returns whether the provider may now take work that it could not take before."""
    beat: Heartbeat = event.heartbeat.message
    provider = offers.registered(context, beat.provider, event.key)
    if abs(context.at - beat.time) > CLOCK_SECONDS_MAX:
        raise Refused(Code.STALE, "heartbeat: its time is more than 60 s off; set the clock")
    if beat.seq <= provider.heartbeat_seq:
        raise Refused(
            Code.STALE, f"heartbeat: seq {beat.seq} is not above {provider.heartbeat_seq}"
        )
    until = provider.unsecured_until
    moved = replace(
        _refreshed(provider, event.refresh),
        unsecured_until=until if context.at < until else UnixSeconds(0),
        heartbeat_seq=beat.seq,
        alive_until=UnixSeconds(context.at + context.rules.limits.heartbeat_alive),
        reported_at=beat.time,
        elsewhere=_elsewhere(context, provider, beat),
    )
    context.state.providers[provider.owner] = moved
    if not moved.is_alive(context.at):
        return False
    if not provider.is_alive(context.at):
        payees.wake(context)  # it may want a guarantee
        return True
    return any(moved.taken_elsewhere(item.pool) < item.count for item in provider.elsewhere)


def note_accept(context: StepContext, assignment: Assignment, accept: Accept) -> None:
    """Counts a lease as ours whose Accept arrives after a heartbeat that counted it already. Until
    then it was held for one of another coordinator. Both times are the provider's.
    """
    provider = context.state.providers[assignment.provider]
    if not provider.elsewhere or accept.time >= provider.reported_at:
        return
    changed = tuple(
        replace(item, count=item.count - (item.pool == assignment.pool))
        for item in provider.elsewhere
    )
    context.state.providers[provider.owner] = replace(
        provider, elsewhere=tuple(item for item in changed if item.count > 0)
    )


def _refreshed(provider: Provider, refresh: OfferRefresh | None) -> Provider:
    offer = provider.offer
    if refresh is None or offer is None or offer.seq != refresh.base_seq:
        return provider
    return replace(
        provider,
        offer=replace(offer, seq=refresh.seq, expires=refresh.expires),
        offer_signature=refresh.signature,
    )


def _elsewhere(
    context: StepContext, provider: Provider, beat: Heartbeat
) -> tuple[SlotsElsewhere, ...]:
    """Run slots of each class that are neither free by the heartbeat nor taken by our leases: those
    of other coordinators and of juries.

    A lease of ours counts if it was accepted by then. A class that the heartbeat does not name has
    no entry.
    """
    if provider.offer is None:
        return ()
    found = []
    for report in beat.free_slots:
        slot = market_index.slot_offer(provider.offer, report.pool)
        if slot is not None:
            ours = _known_leases(context, provider, report.pool, beat.time)
            count = slot.count - report.free - ours
            if count > 0:
                found.append(SlotsElsewhere(report.pool, count))
    return tuple(found)


def _known_leases(context: StepContext, provider: Provider, pool: Hash32, by: UnixSeconds) -> int:
    state, count = context.state, 0
    for lease_hash in state.leases_in_slots.get(provider.owner) or ():
        accept = state.accepts.get(lease_hash)
        assignment = state.leases[lease_hash].assignment.message
        if accept is not None and assignment.pool == pool:
            count += accept.message.time <= by
    return count
