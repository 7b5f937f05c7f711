"""`python -m sim.run --seeds N`: plays seeds 1 to N and prints what was covered; fails on any violation.

    python -m sim.run --seed 17 --verbose     replays one seed and prints every step
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from hashlib import sha256

from sim.coverage import ALL_CODES, ALL_EDGES, Coverage
from sim.intruder import Intruder
from sim.plan import draw
from sim.world import World

COVERAGE_FROM_SEEDS = 300  # from here on a machine edge or refusal code that never occurred fails the run
VIOLATIONS_MAX = 5
Played = tuple[int, str, str | None, Coverage]


def play(seed: int, is_verbose: bool = False) -> Played:
    """(seed, trace, violation, what it covered)."""
    world = World(draw(seed))
    if world.plan.has_intruder:
        world.schedule.after(3, Intruder(world).start)
    violation = None
    if is_verbose:
        from sim.telling import tell_all

        tell_all(world)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever a core raises is a finding, told with its seed
        violation = f"{type(error).__name__}: {error}"
        if is_verbose:
            traceback.print_exc()
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            violation += f" ({last.filename.rpartition('/')[2]}:{last.lineno})"
    return seed, world.trace().hex(), violation, world.coverage


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="sim.run", description="Plays seeded markets in virtual time and checks the invariants.")
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print every step")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else list(range(options.first, options.first + options.seeds))
    coverage, traces, violations, started = Coverage(), sha256(), 0, time.monotonic()
    for seed, trace, violation, seen in _played(seeds, options.verbose, options.workers):
        coverage.add(seen)
        traces.update(bytes.fromhex(trace))
        if violation is not None:
            violations += 1
            print(f"seed {seed}: {violation}\n  replay: PYTHONPATH=tests python -m sim.run --seed {seed} --verbose", file=sys.stderr)
            if violations >= VIOLATIONS_MAX:
                break
    return _tell(coverage, len(seeds), violations, traces.hexdigest(), time.monotonic() - started)


def _played(seeds: list[int], is_verbose: bool, workers: int) -> Iterator[Played]:
    """Seeds in order, whoever played them: the result does not depend on how many work."""
    if len(seeds) < 4 or workers < 2:
        yield from (play(seed, is_verbose) for seed in seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(play, seeds, chunksize=4)


def _tell(coverage: Coverage, seeds: int, violations: int, trace: str, seconds: float) -> int:
    edges, codes = coverage.missing_edges(), coverage.missing_codes()
    print(f"{seeds} seeds in {seconds:.1f} s, {seeds / max(seconds, 0.001):.1f} a second")
    for name, count in sorted(coverage.facts.items()):
        print(f"  {name}: {count}")
    result = {
        "seeds": seeds,
        "violations": violations,
        "edges": f"{len(ALL_EDGES) - len(edges)}/{len(ALL_EDGES)}",
        "missing_edges": edges,
        "codes": f"{len(ALL_CODES) - len(codes)}/{len(ALL_CODES)}",
        "missing_codes": codes,
        "trace": trace,
    }
    print(json.dumps(result))
    is_thin = seeds >= COVERAGE_FROM_SEEDS and bool(edges or codes)
    if is_thin:
        print("an edge or a refusal code never occurred: make the plan reach it, or remove it from the table", file=sys.stderr)
    return 1 if violations or is_thin else 0


if __name__ == "__main__":
    sys.exit(main())
