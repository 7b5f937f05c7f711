"""Plays seeds 1 to N, prints what was covered, and fails on any violation.

    python -m sim.run --seeds N
    python -m sim.run --seed 17 --verbose   replays one seed and prints every step
    python -m sim.run --seed 17 --shrink    reduces a failing seed, prints what is left of it
                                            and every step of that
    python -m sim.run --seeds 2000          tries the mutants as well: each must be noticed
                                            (by default from 300 seeds on; --mutants and
                                            --no-mutants decide for any number)

The last line on stdout is one JSON object.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from sim import i11, meddler, mutants
from sim.coverage import ALL_CODES, ALL_EDGES, Coverage
from sim.intruder import Intruder
from sim.plan import Plan, draw
from sim.shrink import describe, shrink
from sim.world import World

COVERAGE_FROM_SEEDS = 300  # from this many seeds on, a missing edge or refusal code fails the run
VIOLATIONS_MAX = 5
MEDDLED_EVERY = 5  # seeds; with every seed from COVERAGE_FROM_SEEDS on
Played = tuple[int, str, str | None, Coverage]


def play(seed: int, is_verbose: bool = False) -> Played:
    """(seed, trace, violation, what it covered)."""
    return play_plan(draw(seed), is_verbose)


def play_plan(plan: Plan, is_verbose: bool = False) -> Played:
    """Plays any plan."""
    if plan.party:
        return plan.seed, "", meddler.play_plan(plan)[1], Coverage()
    world = World(plan)
    if plan.has_intruder:
        world.schedule.after(3, Intruder(world).start)
    violation = None
    if is_verbose:
        from sim.trace_printer import print_steps

        print_steps(world)
    try:
        world.run()
    # any exception of a core is a finding, reported with its seed
    except Exception as error:  # noqa: BLE001
        violation = f"{type(error).__name__}: {error}"
        if is_verbose:
            traceback.print_exc()
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            violation += f" ({last.filename.rpartition('/')[2]}:{last.lineno})"
    return plan.seed, world.trace().hex(), violation, world.coverage


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="sim.run",
        description="Plays seeded markets in virtual time and checks the invariants.",
    )
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print every step")
    parser.add_argument(
        "--shrink",
        action="store_true",
        help="with --seed: find the smallest plan that fails in the same way",
    )
    parser.add_argument("--mutant", help="break this rule first (sim.mutants lists them)")
    parser.add_argument(
        "--mutants",
        action=argparse.BooleanOptionalAction,
        help="after the seeds, try every mutant; else from 300 on",
    )
    parser.add_argument("--party", help="with --seed: the market in which this one means harm")
    options = parser.parse_args()
    if options.party is not None:
        return _meddled(meddler.plan(options.seed, options.party), options.shrink)
    if options.seed is not None and options.shrink:
        with mutants.applied(options.mutant):
            return _shrink(options.seed)
    seeds = (
        [options.seed]
        if options.seed is not None
        else list(range(options.first, options.first + options.seeds))
    )
    coverage, traces, violations, started = Coverage(), sha256(), 0, time.monotonic()
    with (
        workers(1 if options.mutant else options.workers, len(seeds)) as pool,
        mutants.applied(options.mutant),
    ):
        for seed, trace, violation, seen in _played(seeds, options.verbose, pool):
            coverage.add(seen)
            traces.update(bytes.fromhex(trace))
            if violation is not None:
                violations += 1
                print(
                    (
                        f"seed {seed}: {violation}\n  smallest case: make sim ARGS='--seed {seed} "
                        f"--shrink'"
                    ),
                    file=sys.stderr,
                )
                if violations >= VIOLATIONS_MAX:
                    break
        scores = []
        for score, violation in _scored(seeds, pool):
            scores.append(score)
            if violation is not None:
                violations += 1
                print(
                    f"{violation}\n  smallest case: make sim ARGS='--seed {score.seed} --party "
                    f'"{score.party}" --shrink\'',
                    file=sys.stderr,
                )
        is_whole = len(seeds) >= COVERAGE_FROM_SEEDS if options.mutants is None else options.mutants
        tried = mutants.table(pool) if is_whole and not violations else None
    seconds = time.monotonic() - started
    return _tell(coverage, len(seeds), violations, traces.hexdigest(), seconds, tried, scores)


@contextmanager
def workers(count: int, seeds: int) -> Iterator["multiprocessing.pool.Pool | None"]:
    """Worker processes, or none for a few seeds."""
    if count < 2 or seeds < 4:
        yield None
        return
    with multiprocessing.get_context("spawn").Pool(count, _settle_collector) as pool:
        yield pool


def _settle_collector() -> None:
    """Tunes the garbage collector: modules stay for ever and reference counts free a market.

    Scanning everything again and again would take a tenth of the time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _played(
    seeds: list[int], is_verbose: bool, pool: "multiprocessing.pool.Pool | None"
) -> Iterator[Played]:
    """Results in order of seeds, so that they do not depend on the number of workers."""
    if pool is None:
        yield from (play(seed, is_verbose) for seed in seeds)
    else:
        yield from pool.imap(play, seeds, chunksize=4)


def _scored(
    seeds: list[int], pool: "multiprocessing.pool.Pool | None"
) -> Iterator[tuple[i11.Score, str | None]]:
    """Markets in which one party means harm, each party in turn."""
    every = 1 if len(seeds) >= COVERAGE_FROM_SEEDS else MEDDLED_EVERY
    parties = meddler.PARTIES
    games = [(seed, parties[seed // every % len(parties)]) for seed in seeds if seed % every == 0]
    if pool is None:
        yield from (meddler.play(*game) for game in games)
    else:
        yield from pool.imap(_play_game, games, chunksize=2)


def _play_game(game: tuple[int, str]) -> tuple[i11.Score, str | None]:
    return meddler.play(*game)


def _meddled(plan: Plan, is_shrunk: bool) -> int:
    """One market in which a party means harm, perhaps shrunk to the acts that matter."""

    def play_it(chosen: Plan) -> str | None:
        score, violation = meddler.play_plan(chosen)
        return violation or (f"ratio above 1 of {score.party}" if score.ratio > 1 else None)

    found = play_it(plan)
    if is_shrunk and found is not None:
        plan = shrink(plan, found, play_it, print).plan
        print(describe(plan))
    print(meddler.play_plan(plan)[0].text())
    return 1 if found else 0


def _shrink(seed: int) -> int:
    """The smallest failing plan of one seed, and its trace."""
    plan = draw(seed)
    violation = play_plan(plan)[2]
    if violation is None:
        print(f"seed {seed} holds every invariant: there is nothing to take apart")
        return 0
    print(f"{describe(plan)}\nfails: {violation}\n")
    found = shrink(plan, violation, lambda smaller: play_plan(smaller)[2], print)
    play_plan(found.plan, is_verbose=True)
    print(
        f"\nafter {found.plays} markets this is left:\n{describe(found.plan)}\nfails: "
        f"{found.violation}"
    )
    return 1


def _tell(
    coverage: Coverage,
    seeds: int,
    violations: int,
    trace: str,
    seconds: float,
    tried: mutants.Tried | None,
    scores: list[i11.Score],
) -> int:
    edges, codes, facts = (
        coverage.missing_edges(),
        coverage.missing_codes(),
        coverage.missing_facts(),
    )
    print(f"{seeds} seeds in {seconds - (tried.seconds if tried else 0):.1f} s")
    for name, count in sorted(coverage.facts.items()):
        print(f"  {name}: {count}")
    empty = coverage.facts["the audit fund was empty"]
    print(f"the audit fund was empty when it owed pay (the one exception of I3): {empty} times")
    result: dict[str, object] = {
        "seeds": seeds,
        "violations": violations,
        "edges": f"{len(ALL_EDGES) - len(edges)}/{len(ALL_EDGES)}",
        "missing_edges": edges,
        "codes": f"{len(ALL_CODES) - len(codes)}/{len(ALL_CODES)}",
        "missing_codes": codes,
        "missing_facts": facts,
        "fund_was_empty": empty,
        "trace": trace,
        "seconds": round(seconds, 1),
    }
    print("worst of those that mean harm: what others lost by what it spent, at 0 and 5 gwei")
    for score in sorted(scores, key=lambda item: -item.ratio)[:10]:
        print(f"  {score.text()}")
    result |= i11.summary(scores, meddler.ADMITTED)
    if tried is not None:
        print(tried.text)
        result |= {
            "mutants_killed": f"{tried.killed} of {tried.count}",
            "survivors": tried.survivors,
        }
    print(json.dumps(result))
    is_thin = seeds >= COVERAGE_FROM_SEEDS and bool(edges or codes or facts)
    if is_thin:
        print(
            "an edge, a refusal code or a fact never occurred: make the plan reach it, or remove "
            "it from the table",
            file=sys.stderr,
        )
    return 1 if violations or is_thin or (tried is not None and tried.survivors) else 0


if __name__ == "__main__":
    sys.exit(main())
