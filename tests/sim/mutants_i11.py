"""Rules by which a client could aim at honest owners (I11)."""

from quorate_coordinator.core.jobs import orders, provider_answers
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.units import DeclineReason, UnixSeconds
from quorate_protocol.values import replace
from sim import meddler
from sim.mutants import Mutant, Patch

BAIT = "bait: nobody pulls"
FETCHED_BY_ONE = "bait: one owner fetches"


def _baits_take_owners_off_offer(patch: Patch) -> None:
    real = provider_answers.on_decline

    def on_decline(context: StepContext, event: ev.DeclineReceived) -> None:
        real(context, event)
        decline = event.decline.message
        if decline.reason is DeclineReason.INPUT_UNAVAILABLE:
            owner = context.state.leases[decline.assignment_hash].provider
            until = UnixSeconds(context.at + 60)
            found = replace(context.state.providers[owner], unsecured_until=until)
            context.state.providers[owner] = found

    patch.setattr(provider_answers, "on_decline", on_decline)


def _owners_are_asked_before_the_content_is_taken(patch: Patch) -> None:
    real = orders.on_order
    patch.setattr(
        orders,
        "on_order",
        lambda context, submission, is_escrowed=False, lacks_content=False: real(
            context, submission, is_escrowed
        ),
    )


MUTANTS = (
    Mutant(
        "owners are asked before the content is taken",
        "I11",
        _owners_are_asked_before_the_content_is_taken,
        lambda plan: meddler.plan(plan.seed, FETCHED_BY_ONE),
    ),
    Mutant(
        "a client's bait takes owners off offer",
        "I11",
        _baits_take_owners_off_offer,
        lambda plan: meddler.plan(plan.seed, BAIT),
    ),
)
