"""Reduces a failing seed's plan to the smallest market found that breaks the same rule.

`python -m sim.run --seed 17 --shrink`. One part at a time is removed (a job, a misbehaving
provider, a cut, a clock, the crashes, the weather), many jobs at once first. If the plan still
fails in the same way, the part stays out. Parts are drawn independently (`plan`), but what happens
to them is not: one message less shifts others. So a part that seems needed is tried again with
other random numbers.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from sim.plan import CALM, Behaviour, Market, Plan

T = TypeVar("T")
SALTS = 3  # other random numbers that each smaller plan gets
PLAYS_MAX = 400
Violation = Callable[[Plan], str | None]
"""Plays a plan and returns the violation."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest plan found, its violation, and how many markets were played for it."""

    plan: Plan
    violation: str
    plays: int


def kind_of(violation: str) -> str:
    """A violation without its numbers and names, to compare two runs."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", violation)[:100]


def smaller(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Every plan with one part less, and what that part was; large parts first."""
    half = len(plan.jobs) // 2
    if half:
        yield "half of the jobs", replace(plan, jobs=plan.jobs[:half])
        yield "the other half of the jobs", replace(plan, jobs=plan.jobs[half:])
    if plan.crash_chance:
        yield "crashes", replace(plan, crash_chance=0.0)
    if plan.weather != CALM:
        yield "bad weather", replace(plan, weather=CALM)
    if plan.has_intruder:
        yield "the intruder", replace(plan, has_intruder=False)
    if plan.has_reorganisations:
        yield "reorganisations", replace(plan, has_reorganisations=False)
    if plan.unbacked_chance:
        yield "double assignments", replace(plan, unbacked_chance=0.0)
    if plan.outage is not None:
        yield "the beacon's outage", replace(plan, outage=None)
    if plan.leaver is not None:
        yield "the exit", replace(plan, leaver=None)
    if plan.is_poor:
        yield "poverty", replace(plan, is_poor=False)
    if plan.never_vouches:
        yield "the client that never vouches", replace(plan, never_vouches=False)
    for index, loss in enumerate(plan.gpu_losses):
        yield (
            f"a lost GPU of provider-{loss.provider}",
            replace(plan, gpu_losses=_without(plan.gpu_losses, index)),
        )
    if plan.has_second_coordinator:
        yield "the second coordinator", replace(plan, has_second_coordinator=False)
    if plan.has_busy_jurors:
        yield "busy jurors", replace(plan, has_busy_jurors=False)
    if plan.gossip is not None:
        yield "gossip", replace(plan, gossip=None)
    if plan.inputs_gone is not None:
        yield "the loss of inputs", replace(plan, inputs_gone=None)
    if plan.has_gpus:
        yield "GPUs", replace(plan, has_gpus=False, gpu_losses=())
    for index, rotation in enumerate(plan.rotations):
        yield (
            f"a rotation of provider-{rotation.provider}",
            replace(plan, rotations=_without(plan.rotations, index)),
        )
    for index, leaving in enumerate(plan.leavings):
        yield (
            f"the leaving of client-{leaving.client}",
            replace(plan, leavings=_without(plan.leavings, index)),
        )
    for index, sleep in enumerate(plan.sleeps):
        yield f"the sleep of {sleep.node}", replace(plan, sleeps=_without(plan.sleeps, index))
    if plan.is_stingy:
        yield "the stingy coordinator", replace(plan, is_stingy=False)
    if plan.funded_job is not None:
        yield "the funded order", replace(plan, funded_job=None)
    if plan.vanishes is not None:
        yield "the end of the coordinator", replace(plan, vanishes=None)
    if plan.chain_outage is not None:
        yield "the chain's outage", replace(plan, chain_outage=None)
    for index, meddle in enumerate(plan.meddles):
        yield (
            f"{meddle.act} at {meddle.at:.1f} s",
            replace(plan, meddles=_without(plan.meddles, index)),
        )
    yield from _lists(plan)


def _lists(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for index, cut in enumerate(plan.cuts):
        yield f"cut {cut.source}>{cut.target}", replace(plan, cuts=_without(plan.cuts, index))
    for index, clock in enumerate(plan.clocks):
        yield f"the clock of {clock.node}", replace(plan, clocks=_without(plan.clocks, index))
    for index, kind in enumerate(plan.behaviours):
        if kind is not Behaviour.HONEST:
            honest = (*plan.behaviours[:index], Behaviour.HONEST, *plan.behaviours[index + 1 :])
            yield f"the {kind} provider-{index}", replace(plan, behaviours=honest)
    is_last_needed = plan.leaver is not None or any(
        rotation.provider == len(plan.behaviours) - 1 for rotation in plan.rotations
    )
    if (
        plan.market is Market.SMALL
        and len(plan.behaviours) > 3
        and plan.behaviours[-1] is Behaviour.HONEST
        and not is_last_needed
    ):
        yield f"provider-{len(plan.behaviours) - 1}", replace(plan, behaviours=plan.behaviours[:-1])
    for index, job in enumerate(plan.jobs):
        yield f"job-{job.client}-{job.number}", replace(plan, jobs=_without(plan.jobs, index))
        if job.stop_after is not None:
            jobs = (*plan.jobs[:index], replace(job, stop_after=None), *plan.jobs[index + 1 :])
            yield f"the stop of job-{job.client}-{job.number}", replace(plan, jobs=jobs)


def _without(items: tuple[T, ...], index: int) -> tuple[T, ...]:
    return (*items[:index], *items[index + 1 :])


def shrink(
    plan: Plan, violated: str, play: Violation, tell: Callable[[str], None] = lambda text: None
) -> Shrunk:
    """Removes parts until no single one can go, or `PLAYS_MAX` markets were played."""
    wanted, plays, place, gone_at = kind_of(violated), 0, 0, 0
    while plays < PLAYS_MAX:
        parts = list(smaller(plan))
        if place >= len(parts):
            if gone_at == 0:
                break  # a whole round without success
            place, gone_at = 0, 0
            continue
        what, less = parts[place]
        for salt in range(SALTS):
            plays += 1
            candidate = replace(less, salt=plan.salt + salt)
            found = play(candidate)
            if found is not None and kind_of(found) == wanted:
                plan, violated, gone_at = candidate, found, place + 1
                tell(f"without {what}: still fails")
                break
        else:
            place += 1
    return Shrunk(plan, violated, plays)


def describe(plan: Plan) -> str:
    """A plan in a few lines: the parts that it still has."""
    lines = [
        (
            f"seed {plan.seed}, chance {plan.salt}: a {plan.market} market of "
            f"{len(plan.behaviours)} owners"
        )
    ]
    lines += [
        f"  provider-{number} is a {kind}"
        for number, kind in enumerate(plan.behaviours)
        if kind is not Behaviour.HONEST
    ]
    for job in plan.jobs:
        stop = "" if job.stop_after is None else f", stopped {job.stop_after:.1f} s after its Ack"
        lines.append(f"  job-{job.client}-{job.number} ordered at {job.at:.1f} s{stop}")
    lines += [f"  {part}" for part in (*plan.cuts, *plan.clocks, *plan.rotations, *plan.leavings)]
    lines += [f"  {part}" for part in (*plan.sleeps, *plan.meddles)]
    named = {
        "weather": None if plan.weather == CALM else plan.weather,
        "crash chance": plan.crash_chance,
        "double assignments": plan.unbacked_chance,
        "beacon outage": plan.outage,
        "chain outage": plan.chain_outage,
        "inputs gone": plan.inputs_gone,
        "exit of provider": plan.leaver,
        "intruder": plan.has_intruder,
        "second coordinator": plan.has_second_coordinator,
        "busy jurors": plan.has_busy_jurors,
        "gossip": plan.gossip,
        "reorganisations": plan.has_reorganisations,
        "poor clients": plan.is_poor,
        "a client that never vouches": plan.never_vouches,
        "coordinator vanishes": plan.vanishes,
        "coordinator pays nothing": plan.is_stingy,
        "capital": plan.capital,
        "trust": plan.trust,
        "funded job": plan.funded_job,
        "means harm": plan.party or None,
    }
    return "\n".join(
        lines
        + [f"  {name}: {value}" for name, value in named.items() if value not in (None, False, 0.0)]
    )
