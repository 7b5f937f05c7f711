"""Measures the coordinator: jobs per second, and matches per second among 10^5 and 10^6 offers.

Prints one JSON line. Run:

    PYTHONPATH=tests python tests/bench/market.py --json [--jobs N] [--matches N] [--folder F]

F is a folder on the disk for the journals.

    noop_jobs_s     one execution per job and no audit; signatures are constants whose check
                    always passes. Codec, core, effects, and the journal with its fsync before any
                    answer are real. The goal is 2,000 on two cores.
    signed_jobs_s   the same with every signature made and checked. The goal is 600. The scripted
                    providers sign in a process of their own, on the second core; orders are
                    signed beforehand.
    crypto_share    the share of that run's seconds in which the coordinator signed and recovered.
    *_cpu_ms        processor milliseconds per job, of all threads of the coordinator's process.
                    The pipe that replaces its providers' sockets is included (below 0.1).
                    Compare this on a machine that other programs use.
    audited_jobs_s  tier `standard` of the adaptive rule with 64 staked providers that have passed
                    many audits, so the audit rate is at its minimum.
    audited_executions  executions per job of that run.
    job_p50_ms, job_p99_ms
                    signed jobs, 16 at a time, from the posted order to the verdict. The beacon's
                    round appears at once: with a real beacon add two to three periods.
    fsyncs_per_job  transactions of the journal in the signed run, each with one fsync.
    matches_s_*, match_p99_ms_*
                    a new price, a choice with its claim, and a claim given back, among so many
                    live offers; on one core.
    rss_mb_1m       resident memory with 10^6 offers in the coordinator's state and columns.
    machine         cores, load of the minute before the run, microseconds per signature.

Clients cannot order the tier `none` (`order.validate` refuses it). The rule `unverified` of a
market of two owners has the same path: one execution, no draw of auditors.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import market_jobs, market_matches
from quorate_protocol.codec.hashing import hash_tuple
from quorate_runtime.keys.crypto import KeySigner


def jobs(folder: str, setup: market_jobs.Setup) -> market_jobs.Figures:
    """One run on a new journal."""
    with tempfile.TemporaryDirectory(dir=folder) as path:
        return asyncio.run(market_jobs.measure(Path(path), setup))


def apart(work: Callable[..., object], *arguments: object) -> object:
    """Runs in a process of its own, so that no measurement inherits another's memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_or_why_not, (work, *arguments))
    if isinstance(found, Failed):
        raise SystemExit(found.why)
    return found


@dataclass(frozen=True, slots=True)
class Failed:
    """What a run failed with, as text: not every error can be sent to another process."""

    why: str


def _or_why_not(work: Callable[..., object], *arguments: object) -> object:
    try:
        return work(*arguments)
    except Exception:  # noqa: BLE001  the parent prints every error and ends
        return Failed(traceback.format_exc())


def machine() -> dict[str, float]:
    """Facts to compare runs by."""
    key, digest = KeySigner(b"\x01" * 32), hash_tuple("bench")
    begun = time.perf_counter()
    for _ in range(2000):
        key.sign(digest)
    micro = (time.perf_counter() - begun) / 2000 * 1e6
    return {
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 2),
        "sign_us": round(micro, 1),
    }


def of_jobs(folder: str, count: int) -> dict[str, float]:
    """Figures of whole jobs."""
    setups = {
        "noop": market_jobs.Setup(count, 256, is_signed=False, is_audited=False),
        "signed": market_jobs.Setup(count, 256, is_signed=True, is_audited=False),
        "audited": market_jobs.Setup(count, 256, is_signed=True, is_audited=True),
        "calm": market_jobs.Setup(max(200, count // 4), 16, is_signed=True, is_audited=False),
    }
    found = {name: apart(jobs, folder, setup) for name, setup in setups.items()}
    noop, signed, audited, calm = (found[name] for name in setups)
    assert isinstance(noop, market_jobs.Figures) and isinstance(signed, market_jobs.Figures)
    assert isinstance(audited, market_jobs.Figures) and isinstance(calm, market_jobs.Figures)
    return {
        "noop_jobs_s": round(noop.jobs_s),
        "noop_cpu_ms": round(noop.cpu_ms_per_job, 2),
        "signed_jobs_s": round(signed.jobs_s),
        "signed_cpu_ms": round(signed.cpu_ms_per_job, 2),
        "audited_jobs_s": round(audited.jobs_s),
        "audited_executions": round(audited.executions_per_job, 3),
        "crypto_share": round(signed.crypto_share, 3),
        "job_p50_ms": round(calm.p50_ms, 1),
        "job_p99_ms": round(calm.p99_ms, 1),
        "fsyncs_per_job": round(signed.fsyncs_per_job, 2),
    }


def of_matches(matches: int) -> dict[str, float]:
    """Figures of matching."""
    line: dict[str, float] = {}
    for name, offers in (("100k", 100_000), ("1m", 1_000_000)):
        figures = apart(market_matches.measure, offers, matches)
        assert isinstance(figures, market_matches.Figures)
        line |= {
            f"matches_s_{name}": round(figures.matches_s),
            f"match_p99_ms_{name}": round(figures.p99_ms, 2),
        }
        if offers == 1_000_000:
            line["rss_mb_1m"] = figures.rss_mb
    return line


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Jobs and matches a second.")
    parser.add_argument(
        "--json", action="store_true", help="one JSON line (the only form there is)"
    )
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--matches", type=int, default=20_000)
    parser.add_argument("--folder", default=".", help="where the journals are written")
    parser.add_argument("--only", choices=("jobs", "matches"))
    options = parser.parse_args()
    line: dict[str, object] = {"bench": "market", "machine": machine()}
    if options.only != "matches":
        line |= of_jobs(options.folder, options.jobs)
    if options.only != "jobs":
        line |= of_matches(options.matches)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
