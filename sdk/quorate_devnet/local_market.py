"""Implements `Market.local()`: a whole market for users' own tests, which ends with the block."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from quorate.client.market import Market
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import running
from quorate_node.base.config import TransportChoice


@contextlib.asynccontextmanager
async def local_market(
    *,
    executor: str = "process",
    providers: int = 3,
    liars: int = 0,
    folder: Path | None = None,
    cpu_levels: tuple[str, ...] = (),
) -> AsyncIterator[Market]:
    """Starts a devnet and yields a market of its funded first client.

    `executor`: process (default), docker, auto, or noop (runs nothing). `cpu_levels`: of the
    providers in turn, such as ("v3", "v2"), for several determinism classes. Starting takes some
    seconds, so share one among tests. Raises ValueError for wrong options, Unavailable if it does
    not start.
    """
    with tempfile.TemporaryDirectory(prefix="quorate-local-") as temporary:
        config = DevnetConfig(
            folder or Path(temporary) / "devnet",
            providers,
            liars,
            clients=1,
            executor=ExecutorChoice(executor),
            cpu_levels=cpu_levels,
            transport=TransportChoice.WEBSOCKET,  # it starts faster
        )
        async with running(config) as devnet, Market(devnet.profiles[0]) as market:
            yield market
