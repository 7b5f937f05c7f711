"""`Market.local()`: a whole market for people's own tests, gone when the block ends."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from quorate.client.market import Market
from quorate_devnet.config import DevnetConfig, ExecutorChoice
from quorate_devnet.devnet import running


@contextlib.asynccontextmanager
async def local_market(
    *, executor: str = "process", providers: int = 3, liars: int = 0, folder: Path | None = None
) -> AsyncIterator[Market]:
    """A devnet and a market of its first client, with money. `executor`: process (default),
    docker, auto, or noop (nothing runs).

    Starting takes some seconds: share one among tests. ValueError for options that make no
    sense, Unavailable when it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="quorate-local-") as temporary:
        config = DevnetConfig(
            folder or Path(temporary) / "devnet",
            providers,
            liars,
            clients=1,
            executor=ExecutorChoice(executor),
        )
        async with running(config) as devnet, Market(devnet.profiles[0]) as market:
            yield market
