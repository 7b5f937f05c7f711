"""Which executor is chosen without a setting: an engine if one answers, else bubblewrap.

The demo and the daemon choose alike.
"""

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from quorate_devnet import cli
from quorate_devnet.demo.run_demo import DemoOptions
from quorate_devnet.market.config import ExecutorChoice
from quorate_devnet.market.devnet import resolve_executor
from quorate_node.base.config import Config
from quorate_node.executors.selection import choose
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Unavailable
from quorate_runtime.clock import SystemClock


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment names an engine's address where nothing listens."""
    away = f"unix://{tmp_path}/no.sock"
    monkeypatch.setenv("DOCKER_HOST", away)
    return away


@pytest.mark.bwrap
def test_a_devnet_without_an_engine_takes_bwrap(no_engine: str) -> None:
    assert resolve_executor(ExecutorChoice.AUTO) is ExecutorChoice.BWRAP
    with pytest.raises(Unavailable, match="--executor bwrap"):
        resolve_executor(ExecutorChoice.DOCKER)


def test_the_demo_does_not_fix_the_executor() -> None:
    """`quorate devnet demo` without an option asks for what `resolve_executor` decides above."""
    words: Any = get_command(cli.app)
    option = next(item for item in words.commands["demo"].params if item.name == "executor")
    assert ExecutorChoice(option.default) is DemoOptions(Path()).executor is ExecutorChoice.AUTO


@pytest.mark.docker
def test_an_engine_that_answers_comes_first() -> None:
    assert resolve_executor(ExecutorChoice.AUTO) is ExecutorChoice.DOCKER


@pytest.mark.bwrap
async def test_a_daemon_without_an_engine_takes_bwrap(no_engine: str, tmp_path: Path) -> None:
    """The daemon is no devnet's, which would fall back to plain processes."""
    executor = await choose(Config(home=tmp_path / "node", coordinators=()), "owner", SystemClock())
    try:
        assert executor.sandbox is Sandbox.BWRAP
    finally:
        await executor.close()
