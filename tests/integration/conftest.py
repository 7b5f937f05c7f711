"""What several files of these tests ask for by name: executors, stages for a daemon, and a
market that is none.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorate_protocol.ports import Executor, Sandbox
from support.executors.executor_cases import SANDBOXES, ending, make_executor

if TYPE_CHECKING:
    from quorate.client.profile import Profile
    from support.markets.coordinator_stage import Stage
    from support.markets.fake_market import FakeMarket
    from support.markets.scripted_coordinator import Stage as ProviderStage


@pytest.fixture(params=SANDBOXES)
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Executor]:
    """One of each sandbox. A file that asks for it imports from `executor_support` too, which
    puts it into the sandboxes' process.
    """
    async with ending(make_executor(request.param, tmp_path), request.param, tmp_path) as made:
        assert made.sandbox is Sandbox(request.param)
        yield made


@pytest.fixture
async def stage(tmp_path: Path) -> "AsyncIterator[Stage]":
    """Chain, beacon and contracts, on which a test runs its coordinator."""
    from support.markets.coordinator_stage import deployed_stage

    async with deployed_stage(tmp_path) as made:
        yield made


@pytest.fixture
async def market(tmp_path: Path) -> "AsyncIterator[ProviderStage]":
    """Chain, contracts and a coordinator by script, with which a test's provider daemons deal."""
    from support.markets.scripted_coordinator import stage

    async with stage(tmp_path) as made:
        yield made


@pytest.fixture
async def fake(tmp_path: Path) -> "AsyncIterator[FakeMarket]":
    """A coordinator of the client's own kind, that can be told to cheat."""
    from support.markets.fake_market import fake_market

    async with fake_market(tmp_path / "fake") as market:
        yield market


@pytest.fixture
def profile(fake: "FakeMarket", tmp_path: Path) -> "Profile":
    """A client's, at the fake market."""
    from quorate.client.profile import create_profile

    return create_profile(tmp_path / "client", fake.url, "pass", "devnet")
