"""Broken rules about run slots that coordinators share, and about offers that come by gossip."""

from quorate_coordinator.core.matching import heartbeats, offers
from quorate_coordinator.core.model import lease, market_index
from quorate_coordinator.core.model.events import OfferReceived
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import Limits
from quorate_protocol.units import Seconds, Sequence, UnixSeconds
from quorate_protocol.values import replace
from sim.mutants import Mutant, Patch, only
from sim.plan import Behaviour

SHARING = only(lambda plan: plan.has_second_coordinator)
GOSSIPING = only(lambda plan: plan.gossip is not None and plan.gossip.loss < 0.5)
SILENT = only(lambda plan: Behaviour.SILENT in plan.behaviours)
CHANGING = only(lambda plan: len(plan.gpu_losses) > 1)


def _all_slots_are_ours(patch: Patch) -> None:
    patch.setattr(heartbeats, "_elsewhere", lambda context, provider, beat: ())


def _added_slots_are_free(patch: Patch) -> None:
    patch.setattr(offers, "_not_reported", lambda provider, known, offer: provider.elsewhere)


def _offers_make_alive(patch: Patch) -> None:
    taken = offers.on_offer

    def on_offer(context: StepContext, event: OfferReceived) -> None:
        taken(context, event)
        owner = event.offer.offer.provider
        context.state.providers[owner] = replace(
            context.state.providers[owner],
            alive_until=UnixSeconds(context.at + context.rules.limits.heartbeat_alive),
        )

    patch.setattr(offers, "on_offer", on_offer)


def _older_offers_replace_newer_ones(patch: Patch) -> None:
    taken = offers.on_offer

    def on_offer(context: StepContext, event: OfferReceived) -> None:
        owner = event.offer.offer.provider
        known = context.state.providers.get(owner)
        if known is not None and known.offer is not None:
            older = replace(known.offer, seq=Sequence(0))
            context.state.providers[owner] = replace(known, offer=older)
        taken(context, event)

    patch.setattr(offers, "on_offer", on_offer)


def _windows_are_wide(patch: Patch) -> None:
    patch.setattr(market_index, "work_window", lambda state, owner, pool: 1 << 30)


def _silence_is_not_noticed(patch: Patch) -> None:
    heard = lease.lapses_after
    patch.setattr(lease, "lapses_after", lambda phase, limits: heard(phase, _patient(limits)))
    commit = lease._commit
    patch.setattr(
        lease,
        "_commit",
        lambda item, message, at, known, limits: commit(item, message, at, known, _patient(limits)),
    )


def _patient(limits: Limits) -> Limits:
    return replace(limits, lease_silence=Seconds(10**9))


MUTANTS = (
    Mutant("silence about a lease is not noticed", "I7", _silence_is_not_noticed, SILENT),
    Mutant("a new provider holds all its run slots at once", "I7", _windows_are_wide),
    Mutant("what others use is assigned", "I2", _all_slots_are_ours, SHARING),
    Mutant("slots that an offer adds are assigned at once", "I2", _added_slots_are_free, CHANGING),
    Mutant("an offer makes its provider alive", "I7", _offers_make_alive, GOSSIPING),
    Mutant(
        "an older offer replaces a newer one", "I10", _older_offers_replace_newer_ones, GOSSIPING
    ),
)
