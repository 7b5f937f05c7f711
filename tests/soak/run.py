"""Runs a market under load while its daemons are killed with SIGKILL again and again.

    python -m soak.run --minutes 10 --providers 200 --churn 10

Chain, beacon, coordinator, journals, WebSocket peers and clients are real; jobs use the no-op
executor. CHURN percent of the providers per minute are killed with their process and start again
from their folders. The coordinator is killed as often as asked in the first third of the run, and
once more at the end. Then it is asked for every job that it ever acknowledged. The last line is
JSON:

    acknowledged_lost   jobs for which a client holds an Ack and which have no end; the goal is 0
    jobs_done, jobs_s   ends that clients saw, and ends per second of load
    job_p50_ms, job_p99_ms
                        from `submit` to the end, including beacon rounds (two seconds each),
                        kills and restarts
    rss_slope_mb_min    growth of the coordinator's memory in its longest run, by least squares
                        after the warm-up; the goal is at most 0.5
    home_mb_min         growth of its folder on disk in the same time
    host_*              the same, as the median over the providers' processes
    refused             by code: the coordinator's own count over all its runs, and refusals
                        that clients got
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from soak.load import Load
from soak.measurements import (
    ProcessRuns,
    Refusals,
    folder_mb,
    parts_mb,
    quantile,
    rss_mb,
    slope,
    tables,
)
from soak.plan import Plan
from soak.soak_market import SoakMarket, running_market

LOOK_SECONDS = 1.0
DISK_SECONDS = 5.0
AWAY_SECONDS = (1.0, 6.0)  # how long a killed provider process stays away
SLOPE_MB_MIN_MAX = 0.5
SLOPE_FROM_SECONDS = 300.0  # a shorter soak is not judged by its slope
LOOKS_MIN = 60  # readings of the memory that a slope needs


@dataclass(slots=True)
class Watch:
    """Everything that is measured while the soak runs."""

    market: SoakMarket
    begun: float = field(default_factory=time.monotonic)
    coordinator: ProcessRuns = field(default_factory=ProcessRuns)
    coordinator_disk: ProcessRuns = field(default_factory=ProcessRuns)
    hosts: dict[int, ProcessRuns] = field(default_factory=dict)
    hosts_disk: dict[int, ProcessRuns] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    kills: int = 0

    def second(self) -> float:
        """The second of the soak."""
        return time.monotonic() - self.begun

    async def run(self) -> None:
        """Measures until cancelled. RuntimeError when a process ended that was not killed."""
        disk_at = 0.0
        async with aiohttp.ClientSession() as session:
            while True:
                problem = self.market.died()
                if problem:
                    raise RuntimeError(problem)
                self._memory()
                if self.second() >= disk_at:
                    disk_at = self.second() + DISK_SECONDS
                    await asyncio.to_thread(self._disk)
                await self._metrics(session)
                await asyncio.sleep(LOOK_SECONDS)

    def _memory(self) -> None:
        if "coordinator" not in self.market.expected_dead:
            self.coordinator.add(self.second(), rss_mb(self.market.pid("coordinator")))
        for number in range(len(self.market.plan.hosts())):
            if f"host-{number}" not in self.market.expected_dead:
                self.hosts.setdefault(number, ProcessRuns()).add(
                    self.second(), rss_mb(self.market.pid(f"host-{number}"))
                )

    def _disk(self) -> None:
        self.coordinator_disk.add(self.second(), folder_mb(self.market.coordinator_home))
        for number in range(len(self.market.plan.hosts())):
            self.hosts_disk.setdefault(number, ProcessRuns()).add(
                self.second(), folder_mb(self.market.plan.host_home(number))
            )

    async def _metrics(self, session: aiohttp.ClientSession) -> None:
        try:
            async with session.get(
                f"{self.market.coordinator_url}/metrics", timeout=aiohttp.ClientTimeout(total=5)
            ) as answer:
                self.refusals.read(await answer.text())
        except (aiohttp.ClientError, TimeoutError):
            return  # the process is being killed or is busy; the next reading comes soon

    async def kill_coordinator(self) -> None:
        """Kills it with SIGKILL and starts it again at once."""
        self.market.kill("coordinator")
        self.kills += 1
        self.refusals.restarted()
        self.coordinator.restarted()
        await self.market.restart("coordinator")


async def churn(watch: Watch, chance: random.Random) -> None:
    """Kills provider processes in turn, for ever; each is restarted after some seconds."""
    market, every = watch.market, watch.market.plan.kill_every()
    numbers: list[int] = []
    while every:
        await asyncio.sleep(every * chance.uniform(0.5, 1.0))
        if not numbers:
            numbers = list(range(len(market.plan.hosts())))
            chance.shuffle(numbers)
        number = numbers.pop()
        market.kill(f"host-{number}")
        watch.kills += 1
        watch.hosts[number].restarted()
        away = chance.uniform(*AWAY_SECONDS)
        await asyncio.sleep(away)
        await market.restart(f"host-{number}")
        await asyncio.sleep(max(0.0, every / 2 - away))


async def kill_coordinator(watch: Watch) -> None:
    """Kills the coordinator at the plan's seconds."""
    for at in watch.market.plan.coordinator_dies_at():
        await asyncio.sleep(max(0.0, at - watch.second()))
        await watch.kill_coordinator()


async def soak(plan: Plan, seed: int) -> dict[str, object]:
    """The whole run; returns the JSON line."""
    chance = random.Random(seed)
    async with running_market(plan) as market:
        watch = Watch(market)
        load = Load(market.profiles, market.coordinator_url, plan.rate, plan.outstanding)
        await load.open()
        try:
            _say(
                f"{plan.providers} providers in {len(plan.hosts())} processes are on offer; load "
                f"for {plan.seconds:g} s"
            )
            watch.begun = time.monotonic()
            await _under_load(plan, watch, load, chance)
            ended = watch.second()
            _say(
                f"drained after {ended - plan.seconds:.1f} s, {load.told.open()} open; the "
                "coordinator is killed once more"
            )
            warm = await asyncio.to_thread(_diagnosis, watch)
            await watch.kill_coordinator()
            lost = await load.lost()
        finally:
            await load.close()
        for job_id in lost[:10]:
            _say(f"lost: 0x{job_id.hex()}")
        return _line(plan, watch, load, len(lost), warm)


async def _under_load(plan: Plan, watch: Watch, load: Load, chance: random.Random) -> None:
    until = watch.begun + plan.seconds
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        dying = [
            group.create_task(churn(watch, chance)),
            group.create_task(kill_coordinator(watch)),
        ]
        working = group.create_task(load.run(until, until + plan.drain_seconds))
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        dying[0].cancel()
        await _all_back(watch.market)
        await working
        for task in (watching, dying[1]):
            task.cancel()


async def _all_back(market: SoakMarket) -> None:
    """Starts every process again before the drain, so that the market ends complete."""
    for name in sorted(market.expected_dead):
        if name.startswith("host-"):
            await market.restart(name)


def _diagnosis(watch: Watch) -> float:
    """Prints what is large, and returns from which second on memory is judged.

    A third of the run is for the kills, and a sixth for warming up.
    """
    home = watch.market.coordinator_home
    _say(f"coordinator's folder, MB: {parts_mb(home)}; journal {parts_mb(home / 'journal')}")
    _say(f"a providers' folder, MB: {parts_mb(watch.market.plan.host_home(0) / '0')}")
    for name, (rows, size) in list(tables(home / "journal").items())[:8]:
        _say(f"newest snapshot: {name} {rows} rows, {size} bytes")
    return watch.market.plan.seconds / 2


def _line(plan: Plan, watch: Watch, load: Load, lost: int, warm: float) -> dict[str, object]:
    told = load.told
    until = plan.seconds
    took = told.milliseconds()

    def growth(lives: ProcessRuns) -> float:
        return round(slope([point for point in lives.warm(warm) if point[0] <= until]), 3)

    return {
        "acknowledged_lost": lost,
        "jobs_done": len(told.ended),
        "jobs_s": round(len(told.ended) / plan.seconds, 2),
        "job_p99_ms": round(quantile(took, 0.99)),
        "rss_slope_mb_min": growth(watch.coordinator),
        "refused": watch.refusals.total() | dict(told.refused),
        "job_p50_ms": round(quantile(took, 0.5)),
        "acknowledged": len(told.submitted),
        "unanswered": told.unanswered,
        "verdicts": dict(told.verdicts),
        "kills": watch.kills,
        "rss_mb": round(watch.coordinator.warm(0)[-1][1], 1),
        "looks": len(watch.coordinator.warm(warm)),
        "home_mb_min": growth(watch.coordinator_disk),
        "host_rss_mb_min": quantile([growth(lives) for lives in watch.hosts.values()], 0.5),
        "host_home_mb_min": quantile([growth(lives) for lives in watch.hosts_disk.values()], 0.5),
        "providers": plan.providers,
        "minutes": round(plan.seconds / 60, 2),
        "load": round(os.getloadavg()[0], 2),
    }


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="soak.run", description="A market under load whose daemons are killed all the time."
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--providers", type=int, default=200)
    parser.add_argument(
        "--churn",
        type=float,
        default=10.0,
        help="percent of the providers that are killed a minute",
    )
    parser.add_argument(
        "--rate", type=float, default=4.0, help="jobs a second that clients hand in, at most"
    )
    parser.add_argument("--outstanding", type=int, default=200, help="jobs under way, at most")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--per-process", type=int, default=20, help="providers in one process")
    parser.add_argument(
        "--coordinator-kills", type=int, default=2, help="in addition to the one at the end"
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=180.0,
        help="seconds in which everything acknowledged has to end",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of kills")
    parser.add_argument(
        "--folder", type=Path, help="an empty folder that stays; otherwise one that goes"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quorate-soak-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        plan = Plan(
            folder,
            60 * options.minutes,
            options.providers,
            options.churn,
            options.rate,
            options.outstanding,
            options.clients,
            options.per_process,
            options.coordinator_kills,
            options.drain,
        )
        line = asyncio.run(soak(plan, options.seed))
    print(json.dumps(line))
    return 1 if failures(line, plan.seconds) else 0


def failures(line: dict[str, object], seconds: float) -> list[str]:
    """The goals that a run missed, each printed on stderr."""
    slope_found = line["rss_slope_mb_min"]
    assert isinstance(slope_found, float)
    broken = {
        "acknowledged jobs were lost": bool(line["acknowledged_lost"]),
        "nothing was acknowledged": not line["acknowledged"],
        "not everything acknowledged was done": line["jobs_done"] != line["acknowledged"],
        f"memory grows by more than {SLOPE_MB_MIN_MAX:g} MB a minute": seconds >= SLOPE_FROM_SECONDS
        and slope_found > SLOPE_MB_MIN_MAX,
        f"fewer than {LOOKS_MIN} looks at the memory": seconds >= SLOPE_FROM_SECONDS
        and int(str(line["looks"])) < LOOKS_MIN,
    }
    found = [sentence for sentence, is_broken in broken.items() if is_broken]
    for sentence in found:
        _say(f"failed: {sentence}")
    return found


if __name__ == "__main__":
    sys.exit(main())
