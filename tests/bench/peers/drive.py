"""Measures any peer: no-op tasks per second, and the time of one task. Standard library only.

Each `work_*.py` beside this file is run by .venv-peers' interpreter, calls `measure`, and prints
one JSON line.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import TypeVar

Handle = TypeVar("Handle")
WARM_UP = 50
"""Tasks before the first figure, in which workers import and connect."""


def measure(
    submit: Callable[[], Handle], collect: Callable[[Handle], None], count: int, calm: int
) -> dict[str, float]:
    """Tasks per second of `count` tasks that one client submits at once and collects.

    Also milliseconds of `calm` tasks, one at a time.
    """
    for handle in [submit() for _ in range(WARM_UP)]:
        collect(handle)
    begun = time.perf_counter()
    for handle in [submit() for _ in range(count)]:
        collect(handle)
    seconds = time.perf_counter() - begun
    took = []
    for _ in range(calm):
        single = time.perf_counter()
        collect(submit())
        took.append(time.perf_counter() - single)
    return figures(count / seconds, took)


def figures(tasks_s: float, took: list[float]) -> dict[str, float]:
    """The figures of a row; `took` is in seconds."""
    took = sorted(took)
    return {
        "tasks_s": tasks_s,
        "p50_ms": 1000 * took[len(took) // 2],
        "p99_ms": 1000 * took[len(took) * 99 // 100],
    }


def options() -> argparse.Namespace:
    """The arguments that the benchmark gives a peer's program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--calm", type=int, required=True)
    parser.add_argument("--folder", required=True, help="for the peer's files")
    parser.add_argument(
        "--durable", action="store_true", help="in the peer's durable mode, where it has one"
    )
    return parser.parse_args()


def tell(found: dict[str, float]) -> None:
    """Prints the program's last line."""
    print(json.dumps(found), flush=True)
