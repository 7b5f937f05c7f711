"""What the coordinator carries: whole jobs a second, and matches a second among 10^5 and 10^6
offers. Prints one JSON line.

Run: python tests/bench/market.py --json [--jobs N] [--matches N] [--folder
DIR-ON-THE-DISK-TO-MEASURE]

noop_jobs_s     one execution a job and no audit; signatures are constants and their check is a
pass; everything else is real:
                codec, core, journal with fsync before anybody is told, effects. The goal is 2,000 on two cores.
signed_jobs_s   the same with every signature made and checked. `crypto_share` is the share of
that run's seconds which the
                coordinator spent signing and recovering. The scripted providers sign for themselves in a process of their own, on
                the second core; orders are signed beforehand. The goal is 600.
*_cpu_ms        milliseconds of processor a job, all threads of the coordinator's process, with
the pipe that stands for its
                providers' sockets (below 0.1): what to compare by where others use the machine too.
audited_jobs_s  tier `standard` of the adaptive rule, 64 staked providers of long standing, so
the audit rate is at its floor;
                `audited_executions` says how many executions a job had.
job_p50_ms, job_p99_ms   of signed jobs, 16 at a time, from the posted order to the verdict. The
beacon's round appears at once:
                add two to three beacon periods for a job that waits for a real one.
fsyncs_per_job  transactions of the journal in the signed run, each with one fsync. matches_s_*,
match_p99_ms_*   a reprice, a choice with its claim and a claim given back, among so many live
offers; single core. rss_mb_1m       resident memory of a process with 10^6 offers in the
coordinator's state and in the columns. machine         cores, load of the last minute before the
run, and microseconds of one signature, to compare runs by.

The tier `none` of the goals is not offered to clients (`order.validate` refuses it); the rule
`unverified` of a market without staked owners has the same path: one execution, no draw of
auditors.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import market_jobs
import market_matches

from quorate_protocol.crypto.hashing import hash_tuple
from quorate_runtime.keys.crypto import KeySigner


def jobs(folder: str, setup: market_jobs.Setup) -> market_jobs.Figures:
    """One run on a fresh journal."""
    with tempfile.TemporaryDirectory(dir=folder) as path:
        return asyncio.run(market_jobs.measure(Path(path), setup))


def apart(work: Callable[..., object], *arguments: object) -> object:
    """Runs in a process of its own, so that no measurement inherits another's memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def machine() -> dict[str, float]:
    """What there is to compare by."""
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
        "noop": market_jobs.Setup(count, 256, is_signed=False, is_staked=False),
        "signed": market_jobs.Setup(count, 256, is_signed=True, is_staked=False),
        "audited": market_jobs.Setup(count, 256, is_signed=True, is_staked=True),
        "calm": market_jobs.Setup(max(200, count // 4), 16, is_signed=True, is_staked=False),
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
