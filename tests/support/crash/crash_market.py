"""A small real market whose programs are killed at named points while jobs run."""

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from quorate import Market
from quorate.base.errors import NotVerifiedError, QuorateError, RefusedError, UnavailableError
from quorate.client.run import Run
from quorate.images import build_python_image
from quorate_devnet.market.child_processes import ChildProcess
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from quorate_node.base.config import AttestationChoice
from quorate_protocol.refusals import Code, Unavailable
from support.crash.crash_client import job_of
from support.crash.crash_plan import WITHOUT_ENGINE
from support.crash.crash_slots import Slots

REACH_SECONDS = 60.0  # a point that is not passed in this time counts as not reached
END_SECONDS = 150.0  # every job ends within this time, whatever was killed
POLL_SECONDS = 0.1
AGAIN_SECONDS = 0.5
FORGET_SECONDS = 6  # after a Decline, which may be asked for again for five
# failed starts of one child in a row; after these it counts as a violation
RESTARTS_MAX = 4


@dataclass(slots=True)
class Armed:
    """A child process that will die once, at one point."""

    name: str
    point: str
    is_reached: bool = False


@dataclass(slots=True)
class Target:
    """One point that must be passed. Several children may be armed for it."""

    armed: list[Armed]

    @property
    def is_hit(self) -> bool:
        """Whether a child has died at the point."""
        return any(item.is_reached for item in self.armed)


@dataclass(slots=True)
class CrashMarket:
    """One devnet for many rounds. `violations` lists what went wrong while jobs ran."""

    devnet: Devnet
    market: Market
    session: aiohttp.ClientSession
    image: Path
    slots: Slots
    others: tuple[Market, ...] = ()  # clients that take turns with the first in ordering jobs
    runs: dict[str, Run] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    results: int = 0
    restarts: int = 0
    is_arming: bool = False  # whether a child that has died may be armed for its next point
    may_lapse: set[str] = field(
        default_factory=set
    )  # ids of runs that a client or owner ended; all checks of this market know them
    away: dict[str, float] = field(
        default_factory=dict
    )  # the longest time that a child needed to come back, in seconds
    _starting: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    @property
    def providers(self) -> list[str]:
        """Names of the provider children."""
        return [f"provider-{index}" for index in range(self.devnet.config.providers)]

    # ---------------------------------------------------------------------------------------- kills

    def arm(self, name: str, point: str) -> None:
        """Makes a running child, or the next child with that name, die at a point."""
        part = self._file(name).with_suffix(".new")
        part.write_text(point)
        part.replace(self._file(name))

    def disarm(self, armed: Sequence[Armed]) -> None:
        """Disarms every child that has not died yet."""
        for item in armed:
            self._file(item.name).unlink(missing_ok=True)

    async def revive(self, armed: Sequence[Armed]) -> None:
        """Restarts every child that has died, and notes that its death was planned."""
        for item in armed:
            if item.point.startswith(WITHOUT_ENGINE) and not self.is_armed(item.name):
                # the supervisor of its sandbox died, and the provider did not
                item.is_reached = True
        reviving: dict[str, asyncio.Future[None]] = {}
        while True:
            # looked at again and again: a provider comes up only with the coordinator, which may
            # die meanwhile
            for name, child in self.devnet.processes.children.items():
                if not child.is_running and name not in reviving:
                    reviving[name] = asyncio.ensure_future(self._revive(name, armed))
            if not reviving:
                return
            await asyncio.wait(
                reviving.values(), timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            reviving = {name: task for name, task in reviving.items() if not _is_over(task)}

    async def renew(self, name: str, is_awaited: bool = True) -> None:
        """Ends a child and starts it again, as its owner would.

        A child that dies at its point during the start is left for `revive`.
        """
        async with self._starting[name]:
            if not self.devnet.processes.children[name].is_running:
                return  # it has just died at its point, and is started again anyway
            self.devnet.kill(name)
            if not is_awaited:
                return self.devnet.start(name)
            try:
                await self.devnet.restart(name)
            except Unavailable:
                if self.devnet.processes.children[name].is_running:
                    raise  # the child hangs

    async def _revive(self, name: str, armed: Sequence[Armed]) -> None:
        async with self._starting[name]:
            await self._revive_alone(name, armed)

    async def _revive_alone(self, name: str, armed: Sequence[Armed]) -> None:
        began = time.monotonic()
        for _ in range(RESTARTS_MAX):
            child = self.devnet.processes.children.get(name)  # None after a start that hung
            if child is not None and child.is_running:
                return  # another caller has started it already
            if child is not None:
                self._note_death(name, child, armed)
            self.restarts += 1
            try:
                await self.devnet.restart(name)
                self.away[name] = max(self.away.get(name, 0.0), time.monotonic() - began)
                return
            except Unavailable:
                # Not re-raised: the child may be armed for its start. A child that never starts is
                # reported below.
                if self.devnet.processes.children[name].is_running:
                    self.devnet.kill(name)
        raise AssertionError(
            f"{name} does not come up again: see {self.devnet.config.folder / 'logs'}"
        )

    def _note_death(self, name: str, child: ChildProcess, armed: Sequence[Armed]) -> None:
        meant = next((item for item in armed if item.name == name and not item.is_reached), None)
        if (
            meant is not None
            and child.process.returncode == -signal.SIGKILL
            and not self._file(name).exists()
        ):
            meant.is_reached = True
            if self.is_arming:
                self._arm_next(name, armed)
        else:
            self.violations.append(
                f"{name} ended with {child.process.returncode}: {child.tail()[-400:]}"
            )

    def _arm_next(self, name: str, armed: Sequence[Armed]) -> None:
        """Arms the child's next point before its start, because the start may pass the point."""
        following = next(
            (item for item in armed if item.name == name and not item.is_reached), None
        )
        if following is not None:
            self.arm(name, following.point)

    def is_armed(self, name: str) -> bool:
        """Returns whether the child has not reached its point yet."""
        return self._file(name).exists()

    def leases(self, index: int) -> list[str]:
        """Returns the leases that a provider's executor holds."""
        home = self.devnet.config.provider_home(index) / self.devnet.executor.value
        return [path.name for path in home.iterdir()] if home.is_dir() else []

    def _file(self, name: str) -> Path:
        folder = self.devnet.config.crash_folder
        assert folder is not None, "the devnet was made for this"
        return folder / name

    # ----------------------------------------------------------------------------------------- jobs

    async def feed(
        self,
        targets: Sequence[Target],
        parallel: int,
        deeds: Sequence[Awaitable[None]] = (),
        seconds: float = REACH_SECONDS,
    ) -> None:
        """Keeps jobs in progress until every target was hit or the time is over.

        It returns when jobs and actions have ended.
        """
        limit, armed = (
            time.monotonic() + seconds,
            [item for target in targets for item in target.armed],
        )
        under_way = {asyncio.ensure_future(deed) for deed in deeds}
        jobs, self.is_arming = set[asyncio.Future[None]](), True
        while time.monotonic() < limit and not (jobs and all(target.is_hit for target in targets)):
            while len(jobs) < parallel:
                jobs.add(asyncio.ensure_future(self.one()))
            jobs, under_way = (
                await self._watch(jobs, armed),
                {task for task in under_way if not _is_over(task)},
            )
            for target in targets:
                if target.is_hit:
                    self.disarm([item for item in target.armed if not item.is_reached])
        self.is_arming = False
        self.disarm([item for item in armed if not item.is_reached])
        limit = time.monotonic() + END_SECONDS
        while (jobs or under_way) and time.monotonic() < limit:
            jobs, under_way = (
                await self._watch(jobs, armed),
                {task for task in under_way if not _is_over(task)},
            )
        for task in jobs | under_way:
            task.cancel()
            self.violations.append(f"a job did not end within {END_SECONDS:g} s")

    async def _watch(
        self, jobs: "set[asyncio.Future[None]]", armed: Sequence[Armed]
    ) -> "set[asyncio.Future[None]]":
        if jobs:
            await asyncio.wait(jobs, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(POLL_SECONDS)
        await self.revive(armed)
        return {task for task in jobs if not _is_over(task)}

    async def submit(self, seconds: float = 0.2) -> Run | None:
        """Submits one job. Returns None while the coordinator is away, because nothing is
        acknowledged then.
        """
        self.jobs += 1
        name = f"crash-{self.jobs}"
        try:
            market = (self.market, *self.others)[self.jobs % (1 + len(self.others))]
            run = await market.submit(job_of(name, self.image, seconds))
        except UnavailableError:
            return None
        except RefusedError as error:
            # Not re-raised: a coordinator that has just come back knows no offers yet. Nothing was
            # acknowledged.
            if error.code not in {Code.NO_OFFER.value, Code.TOO_FEW_OWNERS.value}:
                raise
            await asyncio.sleep(AGAIN_SECONDS)
            return None
        self.runs[run.id] = run
        return run

    async def one(self) -> None:
        """Submits one job, reads its log meanwhile and checks its result."""
        run = await self.submit()
        if run is None:
            return
        reading = asyncio.ensure_future(_read_log(run))
        try:
            await self._check_result(run)
        finally:
            reading.cancel()

    async def _check_result(self, run: Run) -> None:
        while True:
            try:
                result = await run.result()
            except UnavailableError:
                await asyncio.sleep(POLL_SECONDS)  # the coordinator is starting
            except NotVerifiedError:
                # every other owner failed the job twice while all of them died; `Checks` decides
                # whether
                # that is so
                return
            except QuorateError as error:
                self.violations.append(f"{run.name}: {error}")
                return
            else:
                self.results += 1
                text = (result.output / "answer.txt").read_text()
                if text != f"the answer of {run.name}":
                    self.violations.append(f"{run.name}: its output is {text!r}")
                return


@asynccontextmanager
async def crash_market(
    folder: Path, executor: ExecutorChoice, providers: int, liars: int = 0
) -> AsyncIterator[CrashMarket]:
    """Yields a market whose children can be armed."""
    (folder / "crash").mkdir(parents=True)
    image = build_python_image(folder / "image.tar", ()).path
    armed = folder / "crash"
    config = DevnetConfig(
        folder / "devnet",
        providers,
        liars,
        clients=2,
        executor=executor,
        crash_folder=armed,
        declined_keep_seconds=FORGET_SECONDS,
        attestation=AttestationChoice.L1,  # so that the coordinator gets records to believe
    )
    async with (
        running(config) as devnet,
        Market(devnet.profiles[0]) as market,
        aiohttp.ClientSession() as session,
    ):
        slots = Slots(config, devnet.executor)
        watching = asyncio.ensure_future(slots.watch())
        try:
            yield CrashMarket(devnet, market, session, image, slots)
        finally:
            watching.cancel()
            ended = await asyncio.gather(watching, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError), (
            f"nobody watched the run slots: {ended[0]!r}"
        )


async def _read_log(run: Run) -> None:
    """Reads a run's log once, from its first line on, which the coordinator then marks as read."""
    with suppress(QuorateError):  # the coordinator has died; the result is what counts
        async for _ in run.logs(follow=True):
            return


def _is_over(task: "asyncio.Future[None]") -> bool:
    """Returns whether a task has ended; raises the task's exception."""
    if task.done():
        task.result()
    return task.done()
