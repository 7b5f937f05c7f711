"""Fixtures of several integration tests: executors, stages for a daemon, and a fake market."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorate_protocol.messages.ports import Executor, Sandbox
from support.executors.executor_cases import SANDBOXES, ending, make_executor

if TYPE_CHECKING:
    from quorate.client.base.profile import Profile
    from support.markets.coordinator_stage import Stage
    from support.markets.fake_market import FakeMarket
    from support.markets.scripted_coordinator import Stage as ProviderStage


@pytest.fixture(params=SANDBOXES)
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Executor]:
    """Yields one executor of each sandbox, in turn.

    A file that uses it must import something from `support.executors` too. Then `tests/conftest.py`
    puts the file into the process of the sandbox tests.
    """
    async with ending(make_executor(request.param, tmp_path), request.param, tmp_path) as made:
        assert made.sandbox is Sandbox(request.param)
        yield made


@pytest.fixture
async def stage(tmp_path: Path) -> "AsyncIterator[Stage]":
    """Yields chain, beacon and contracts, on which a test runs its coordinator."""
    from support.markets.coordinator_stage import deployed_stage

    async with deployed_stage(tmp_path) as made:
        yield made


@pytest.fixture
async def market(tmp_path: Path) -> "AsyncIterator[ProviderStage]":
    """Yields chain, contracts and a scripted coordinator, to which a test's provider daemons
    connect.
    """
    from support.markets.scripted_coordinator import stage

    async with stage(tmp_path) as made:
        yield made


@pytest.fixture
async def fake(tmp_path: Path) -> "AsyncIterator[FakeMarket]":
    """Yields a fake coordinator for tests of the client. It can cheat."""
    from support.markets.fake_market import fake_market

    async with fake_market(tmp_path / "fake") as market:
        yield market


@pytest.fixture
def profile(fake: "FakeMarket", tmp_path: Path) -> "Profile":
    """Returns a client's profile at the fake market."""
    from quorate.client.base.profile import create_profile

    return create_profile(tmp_path / "client", fake.url, "pass", "devnet")
