"""A coordinator's clock jumps an hour forwards or backwards while jobs run.

The chain's blocks show the right time. If the coordinator followed its clock, all leases would
lapse at once, or no deadline would come for an hour.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quorate import Market
from quorate.client.run import Run
from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import Config
from quorate_coordinator.service import Service
from quorate_devnet.market.config import PASSPHRASE, DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Outcome
from quorate_runtime.clock import JUMP_SECONDS, SystemClock
from quorate_runtime.keys.keystore import Keystore
from support.clocks import WrongClock
from support.crash.crash_client import job_of
from support.markets.coordinator_stage import running as running_coordinator

HOUR = 3600.0
DOUBT_SECONDS = 1.0
ENDED_SECONDS = 120.0


@asynccontextmanager
async def coordinator_of(devnet: Devnet, clock: SystemClock) -> AsyncIterator[None]:
    """Kills the devnet's coordinator and continues it in this process with another clock."""
    devnet.kill("coordinator")
    home = devnet.config.coordinator_home
    told = settings_file.read(home)
    keys = coordinator_keys.load(Keystore.at(home / "keys", PASSPHRASE, DEVNET))
    config = Config(told.deployment, told.chain_url, told.beacon_url, port=told.port, home=home)
    async with running_coordinator(Service(config, keys, clock)):
        yield


async def until_running(run: Run) -> None:
    async with asyncio.timeout(ENDED_SECONDS):
        while not any(item.phase.lower() == "accepted" for item in (await run.status()).executions):
            await asyncio.sleep(0.05)


async def ends_well(run: Run, name: str) -> None:
    """Checks that the run was accepted with two executions and no lapse."""
    async with asyncio.timeout(ENDED_SECONDS):
        result = await run.result()
    assert (result.output / "answer.txt").read_text() == f"the answer of {name}"
    view = await run.status()
    assert view.verdict is not None and view.verdict.message.outcome is Outcome.ACCEPTED
    assert [item.agreed for item in view.executions] == [True, True], view.executions
    assert abs(view.created_at - time.time()) < ENDED_SECONDS, "what is signed bears the true time"


@pytest.mark.rule("9.7")
async def test_a_clock_jump_of_an_hour_does_not_disturb_running_jobs(
    image: Path, tmp_path: Path
) -> None:
    watch = WrongClock()
    clock = SystemClock(watch, doubt_seconds=DOUBT_SECONDS)
    config = DevnetConfig(tmp_path / "devnet", 3, clients=1, executor=ExecutorChoice.AUTO)
    async with (
        running(config) as devnet,
        coordinator_of(devnet, clock),
        Market(devnet.profiles[0]) as market,
    ):
        for jump in (HOUR, -HOUR):
            run = await market.submit(job_of("meanwhile", image, 4))
            await until_running(run)
            watch.error = jump
            assert abs(clock.now() - time.time()) < JUMP_SECONDS
            await asyncio.sleep(2 * DOUBT_SECONDS)
            assert abs(clock.now() - time.time()) < JUMP_SECONDS, "the clock is still right later"
            later = await market.submit(job_of("wrong", image))
            await ends_well(run, "meanwhile")
            watch.error = 0.0
            await ends_well(later, "wrong")
