"""Compares Ray, Dask, Celery with Redis and Quorate at the same no-op work (`make bench-peers`).

It also compares `docker run` with a lease's container. One run on one machine measures one system
after the other. It prints the table of docs/performance.md, then one JSON line. Peers are installed
in .venv-peers; their servers have no network but a loopback of their own, and everything that they
started is ended. It never runs in CI.

    --count N      tasks of a throughput run
    --calm N       tasks one at a time
    --lease N      containers of each kind
    --only KEY     only these rows (repeatable)
    --folder       the folder of journals, on the disk that is to be measured
    --write docs/performance.md
                   puts the table between that page's two marks
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import apart
import containers
import ours
import table

from bench import market
from quorate.images import build_python_image
from support.requirements import missing

Figures = dict[str, float]


def queues(folder: str, count: int, calm: int) -> dict[str, Callable[[], Figures]]:
    """What measures each row; each runs in processes of its own."""

    def peer(name: str, group: str, program: str, *more: str) -> Callable[[], Figures]:
        def measured() -> Figures:
            apart.install(group)
            return apart.run(program, Path(folder) / name, count, calm, *more)

        return measured

    def coordinator(is_signed: bool, is_audited: bool) -> Callable[[], Figures]:
        return lambda: _found(
            market.apart(ours.coordinator, folder, count, calm, is_signed, is_audited)
        )

    return {
        "ray": peer("ray", "ray", "work_ray.py"),
        "dask": peer("dask", "distributed", "work_dask.py"),
        "celery": peer("celery", "celery", "work_celery.py"),
        "celery-durable": peer("celery-durable", "celery", "work_celery.py", "--durable"),
        "quorate-noop": coordinator(is_signed=False, is_audited=False),
        "quorate-signed": coordinator(is_signed=True, is_audited=False),
        "quorate-audited": coordinator(is_signed=True, is_audited=True),
        "quorate-devnet": lambda: _found(market.apart(ours.devnet, folder)),
    }


def _found(figures: object) -> Figures:
    assert isinstance(figures, dict)
    return figures


def leases(folder: str, calm: int) -> dict[str, Callable[[], Figures]]:
    """What measures each kind of container."""
    image = build_python_image(Path(folder) / "python.tar", ()).path

    def needing(needed: str, measured: Callable[[], Figures]) -> Callable[[], Figures]:
        def checked() -> Figures:
            reason = missing(needed)
            if reason:
                raise apart.Missing(reason)
            return measured()

        return checked

    def hardened(kind: str) -> Callable[[], Figures]:
        def measured() -> Figures:
            home = Path(folder) / kind
            home.mkdir()
            return containers.hardened(image, home, kind, calm)

        return measured

    return {
        "process": lambda: containers.plain_process(calm),
        "docker-run": needing("docker", lambda: containers.docker_run(image, calm)),
        "docker-runc": needing("docker", hardened("docker-runc")),
        "docker-runsc": needing("runsc", hardened("docker-runsc")),
        "bwrap": needing("bwrap", hardened("bwrap")),
    }


def machine() -> str:
    """What the figures were measured on, without date and name."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{os.cpu_count()} cores of {models[0] if models else 'an unnamed CPU'}, {memory} GiB of "
        f"memory, Python {python}"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Quorate beside others.")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--calm", type=int, default=300)
    parser.add_argument("--lease", type=int, default=20)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--only", action="append")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    described = {**market.machine(), "what": machine()}
    found: dict[str, Figures | str] = {}
    with tempfile.TemporaryDirectory(
        dir=options.folder, prefix="bench-peers-", ignore_cleanup_errors=True
    ) as text:
        folder = str(Path(text).resolve())
        for name, measured in {
            **queues(folder, options.count, options.calm),
            **leases(folder, options.lease),
        }.items():
            if options.only and name not in options.only:
                continue
            begun = time.monotonic()
            try:
                found[name] = {key: round(value, 3) for key, value in measured().items()}
            except (
                apart.Missing,
                OSError,
                subprocess.SubprocessError,
            ) as error:  # its row says why
                found[name] = str(error)
            print(
                f"peers: {name}: {found[name]} ({time.monotonic() - begun:.0f} s)", file=sys.stderr
            )
    heading = (
        f"{options.count:,} tasks; {options.calm} one at a time; {options.lease} containers of "
        "each kind."
    )
    shown = (
        f"{described['what']}; load before the run {described['load']}. "
        f"{heading}\n\n{table.markdown(found)}"
    )
    if options.write:
        options.write.write_text(table.written(options.write.read_text(), shown))
    print(shown + "\n")
    print(
        json.dumps({"bench": "peers", "machine": described, "count": options.count, "found": found})
    )


if __name__ == "__main__":
    main()
