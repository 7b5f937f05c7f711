"""kill -9 in the middle of a job: of the provider, the coordinator, both, and the provider after
the program's exit (I3, I6). Connections use libp2p where it is installed; CI requires it.

Each job must end with the output of the same run that was in progress, and be paid exactly once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest
import pytest_asyncio

from quorate import Job, Market
from quorate.client.run import Run
from quorate_devnet.demo.run_demo import transport_in_use
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import ProviderView, RunView
from quorate_protocol.units import Outcome
from support.requirements import missing, require, required

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROVIDERS = 3
T = TypeVar("T")
RUN_SECONDS = 2
DEADLINE_SECONDS = 60.0
PROGRAM = (
    f"import sys, time; time.sleep({RUN_SECONDS}); open(sys.argv[1], 'w').write('the answer of ' "
    "+ sys.argv[2])"
)


@dataclass(frozen=True)
class World:
    """One devnet for all tests of one executor."""

    devnet: Devnet
    market: Market
    session: aiohttp.ClientSession
    image: Path

    async def submit(self, name: str) -> Run:
        """Orders a job of some seconds."""
        command = ["python3", "-c", PROGRAM, "/outputs/answer.txt", name]
        return await self.market.submit(
            Job(name=name, image=self.image, command=command, max_price="5", max_duration="60s")
        )

    def leases(self, index: int) -> set[str]:
        """Returns the leases that a provider's executor holds."""
        home = self.devnet.config.provider_home(index) / self.devnet.executor.value
        return {path.name for path in home.iterdir()} if home.is_dir() else set()

    async def running_primary(self) -> tuple[int, str]:
        """Returns (provider, lease) of the one execution that runs now."""

        def look() -> tuple[int, str] | None:
            held = [(index, lease) for index in range(PROVIDERS) for lease in self.leases(index)]
            return held[0] if held else None

        return await until(look)

    async def credited(self) -> dict[bytes, int]:
        """Returns what the coordinator owes each provider, final or held."""
        owed = {}
        for account in self.devnet.providers:
            async with self.session.get(
                f"{self.devnet.coordinator_url}/v1/providers/0x{account.hex()}"
            ) as response:
                view = canonical.from_json(
                    ProviderView, canonical.parse(await response.read(), 1 << 20)
                )
            owed[account] = view.final + view.held
        return owed


async def until(look: Callable[[], T | None]) -> T:
    """Calls `look` again and again until it finds something."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (found := look()) is None:
            await asyncio.sleep(0.05)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A devnet with containers if an engine answers (CI requires one), else with plain
    processes.
    """
    for needed in {"docker", "libp2p"} & required():
        require(needed)
    executor = ExecutorChoice.DOCKER if missing("docker") is None else ExecutorChoice.PROCESS
    folder = tmp_path_factory.mktemp("restart")
    config = DevnetConfig(folder / "devnet", PROVIDERS, clients=1, executor=executor)
    async with (
        running(config) as devnet,
        Market(devnet.profiles[0]) as market,
        aiohttp.ClientSession() as session,
    ):
        yield World(devnet, market, session, image)


async def check_end(world: World, run: Run, before: dict[bytes, int], primary: int) -> RunView:
    """Checks that the run in progress was accepted with its output, and every party credited
    exactly once.
    """
    async with asyncio.timeout(DEADLINE_SECONDS):
        result = await run.result()
    assert result.is_success and result.verdict.outcome is Outcome.ACCEPTED
    assert (result.output / "answer.txt").read_text() == f"the answer of {run.name}"
    transport = world.devnet.transport
    await until(lambda: transport_in_use(world.devnet) == transport or None)
    view = await run.status()
    assert [item.role for item in view.executions] == ["primary", "auditor"], (
        "nothing lapsed and nothing ran twice"
    )
    assert view.executions[0].provider == world.devnet.providers[primary], (
        "the one that was killed committed its own run"
    )
    assert all(
        item.agreed and item.pay and item.usage_ms >= RUN_SECONDS * 1000 for item in view.executions
    )
    pays = {item.provider: item.pay for item in view.executions}
    after = await world.credited()
    assert {account: after[account] - before[account] for account in after} == {
        account: pays.get(account, 0) for account in after
    }
    return view


@pytest.mark.parametrize("moment", ["while it runs", "after its exit"])
async def test_a_killed_provider_finishes_its_job(world: World, moment: str) -> None:
    before = await world.credited()
    run = await world.submit("provider-" + moment.replace(" ", "-"))
    index, _ = await world.running_primary()
    await asyncio.sleep(RUN_SECONDS / 3)  # well before the end of the run
    world.devnet.kill(f"provider-{index}")
    if moment == "after its exit":
        await asyncio.sleep(RUN_SECONDS)  # the program ends without a daemon
    await world.devnet.restart(f"provider-{index}")
    await check_end(world, run, before, index)


async def test_a_killed_coordinator_forgets_nothing(world: World) -> None:
    before = await world.credited()
    run = await world.submit("coordinator")
    index, _ = await world.running_primary()
    world.devnet.kill("coordinator")
    await world.devnet.restart("coordinator")
    await check_end(world, run, before, index)


async def test_a_job_finishes_after_both_are_killed(world: World) -> None:
    before = await world.credited()
    run = await world.submit("both")
    index, _ = await world.running_primary()
    world.devnet.kill("coordinator")
    world.devnet.kill(f"provider-{index}")
    await asyncio.sleep(RUN_SECONDS)  # the program ends while neither daemon runs
    await asyncio.gather(
        world.devnet.restart("coordinator"), world.devnet.restart(f"provider-{index}")
    )
    await check_end(world, run, before, index)


TALKING = (
    f"import time; time.sleep({RUN_SECONDS})\n"
    "for number in range(60_000): print(f'{number:050}')\n"
    "raise ValueError('this is why')"
)


async def text_of(run: Run) -> bytes:
    return b"".join([piece async for piece in run.logs()])


async def test_a_log_outlives_the_death_of_everybody(world: World) -> None:
    """The program ends while the coordinator is dead, and then its provider dies too."""
    command = ["python3", "-c", TALKING]
    job = Job(name="log", image=world.image, command=command, max_price="5", max_duration="60s")
    run = await world.market.submit(job)
    index, _ = await world.running_primary()
    world.devnet.kill("coordinator")
    await asyncio.sleep(2 * RUN_SECONDS)
    world.devnet.kill(f"provider-{index}")
    for name in ("coordinator", f"provider-{index}"):
        await world.devnet.restart(name)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert (await run.result()).exit_status == 1
    text = await text_of(run)
    printed = b"".join(b"%050d\n" % number for number in range(60_000))
    head, rest = text[: 1 << 20], text[1 << 20 :]
    mark, _, tail = rest.removeprefix(b"\n[").partition(b" bytes were left out here]\n")
    assert head == printed[: 1 << 20] and len(tail) == 64 << 10
    assert int(mark) > len(printed) - (1 << 20) - (65 << 10)
    assert b"ValueError: this is why\n" in tail
    world.devnet.kill("coordinator")
    await world.devnet.restart("coordinator")
    assert await text_of(run) == text
