"""The rows of `make bench-peers`: the promises of each system, and the table in Markdown.

Promises of other systems are from their documentation. Promises of Quorate are held by the tests
that docs/performance.md names.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BASE = "quorate-signed"
BASE_CONTAINER = "docker-runc"


@dataclass(frozen=True, slots=True)
class Row:
    """One system.

    `scheduler_killed` and `worker_killed`: what happens to acknowledged work after kill -9.
    """

    key: str
    name: str
    durable: str
    verified: str
    isolation: str
    scheduler_killed: str
    worker_killed: str
    paid: str


NO = "no"
PROCESS = "a process of the same user"
QUEUES = (
    Row("ray", "Ray", NO, NO, PROCESS, "lost", "run again (3 times)", NO),
    Row("dask", "Dask distributed", NO, NO, PROCESS, "lost", "run again (3 times)", NO),
    Row(
        "celery",
        "Celery, Redis as it comes",
        "no: a snapshot now and then",
        NO,
        PROCESS,
        "lost since the snapshot",
        "lost",
        NO,
    ),
    Row(
        "celery-durable",
        "Celery, Redis with `appendfsync always`, late acks",
        "yes",
        NO,
        PROCESS,
        "kept",
        "run again",
        NO,
    ),
    Row(
        "quorate-noop",
        "Quorate's coordinator, signatures not checked",
        "yes",
        "no: one execution",
        "none: nothing runs",
        "kept",
        "matched again",
        "yes",
    ),
    Row(
        "quorate-signed",
        "Quorate's coordinator",
        "yes",
        "no: one execution",
        "none: nothing runs",
        "kept",
        "matched again",
        "yes",
    ),
    Row(
        "quorate-audited",
        "Quorate's coordinator, tier `standard`",
        "yes",
        "audited at random, at the steady rate",
        "none: nothing runs",
        "kept",
        "matched again",
        "yes",
    ),
    Row(
        "quorate-devnet",
        "Quorate, a whole devnet (`quorum-2`)",
        "yes, at the provider's too",
        "two owners, compared to the bit",
        "none here: executor noop",
        "kept",
        "matched again",
        "yes, on chain",
    ),
)
CONTAINERS: Mapping[str, tuple[str, str]] = {
    "process": ("a plain process", "none"),
    "docker-run": (
        "`docker run --rm --network none`",
        "the engine's defaults: 14 capabilities, a writable root, no limits, no record",
    ),
    "docker-runc": (
        "a lease in Docker, runc",
        (
            "no network, no capabilities, own seccomp list, read-only root; processes, memory, "
            "outputs and logs bounded; survives the daemon"
        ),
    ),
    "docker-runsc": ("a lease in Docker, gVisor", "the same, and a kernel of its own"),
    "bwrap": ("a lease in bwrap", "as runc, without an engine"),
}

QUEUE_HEADS = (
    "no-op work",
    "tasks/s",
    "beside ours",
    "p50 ms",
    "p99 ms",
    "durable before acknowledged",
    "result verified",
    "isolation of the work",
    "scheduler killed -9",
    "worker killed -9",
    "paid",
)
BEGIN, END = (
    "<!-- figures: make bench-peers ARGS='--write docs/performance.md' -->",
    "<!-- end of figures -->",
)

Found = Mapping[str, "dict[str, float] | str"]


def markdown(found: Found) -> str:
    """Both tables."""
    return "\n".join([*_queues(found), "", *_containers(found)])


def written(text: str, figures: str) -> str:
    """`text` with the figures between its two marks replaced. ValueError without marks."""
    head, is_begun, rest = text.partition(BEGIN)
    _, is_ended, tail = rest.partition(END)
    if not (is_begun and is_ended):
        raise ValueError(f"no place for figures: {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n{figures}\n{END}{tail}"


def _queues(found: Found) -> list[str]:
    lines = [f"| {' | '.join(QUEUE_HEADS)} |", "|---|--:|--:|--:|--:|---|---|---|---|---|---|"]
    base = found.get(BASE)
    for row in QUEUES:
        promises = (
            row.durable,
            row.verified,
            row.isolation,
            row.scheduler_killed,
            row.worker_killed,
            row.paid,
        )
        lines.append(
            f"| {row.name} | {_figures(found.get(row.key), base, 'tasks_s')} | "
            f"{' | '.join(promises)} |"
        )
    return lines


def _containers(found: Found) -> list[str]:
    lines = [
        "| `python3 -c pass` in | a second | time beside ours | p50 ms | p99 ms | isolation |",
        "|---|--:|--:|--:|--:|---|",
    ]
    base = found.get(BASE_CONTAINER)
    for key, (name, isolation) in CONTAINERS.items():
        lines.append(f"| {name} | {_figures(found.get(key), base, 'p50_ms')} | {isolation} |")
    return lines


def _figures(
    seen: "dict[str, float] | str | None", base: "dict[str, float] | str | None", compared: str
) -> str:
    """Four cells; without figures the first says why."""
    if not isinstance(seen, dict):
        return f"not run: {seen or 'not asked for'} | | | "
    ratio = f"× {seen[compared] / base[compared]:.2f}" if isinstance(base, dict) else "–"
    return (
        f"{_short(seen['tasks_s'])} | {ratio} | {_short(seen['p50_ms'])} | {_short(seen['p99_ms'])}"
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
