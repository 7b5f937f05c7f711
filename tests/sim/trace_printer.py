"""Prints every step of every process, for the replay of one seed."""

from quorate_coordinator.core.model.effects import Send
from quorate_protocol.refusals import Refused
from quorate_protocol.step import Effect, StepOutcome
from sim.world import World

QUIET = ("HeartbeatReceived", "Tick", "OfferReceived", "OfferDue")


def print_steps(world: World) -> None:
    """Wraps the checks of a world so that each step is printed before it is checked."""
    checks, schedule = world.checks, world.schedule
    stepped, refused = checks.stepped, checks.refused

    def tell_step(process: str, event: object, outcome: StepOutcome[Effect]) -> None:
        name = type(event).__name__
        if name not in QUIET or outcome.effects:
            effects = [
                type(item.frame).__name__ if isinstance(item, Send) else type(item).__name__
                for item in outcome.effects
            ]
            print(
                f"{schedule.now_ms / 1000:9.3f} {process:12} {name} {_short(event)} -> "
                f"{' '.join(effects)}"
            )
        stepped(process, event, outcome)

    def tell_refusal(process: str, event: object, refusal: Refused) -> None:
        print(
            f"{schedule.now_ms / 1000:9.3f} {process:12} {type(event).__name__} {_short(event)} "
            f"REFUSED {refusal}"
        )
        refused(process, event, refusal)

    checks.stepped, checks.refused = tell_step, tell_refusal  # type: ignore[method-assign, assignment]
    print(world.plan)


def _short(event: object) -> str:
    lease = getattr(event, "lease", None)
    if isinstance(lease, bytes):
        return lease.hex()[:8]
    for name in ("accept", "decline", "commit", "reveal", "assignment", "receipt", "witness"):
        found = getattr(event, name, None)
        message = getattr(found, "message", found)
        digest = getattr(message, "assignment_hash", None) or getattr(message, "commit_hash", None)
        if isinstance(digest, bytes):
            return digest.hex()[:8]
    return ""
