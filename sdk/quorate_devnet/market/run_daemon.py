"""`python -m quorate_devnet.market.run_daemon SETTINGS LIE WORDS`: runs `quorate WORDS`, which is
`coordinator up` or `node up`, as soon as the settings file exists.

Meanwhile it does the daemon's slow imports. A provider with a LIE gets another executor.
"""

import sys
import time
from importlib import import_module
from pathlib import Path

from quorate.cli.main import main
from quorate_devnet.market.liar import LyingExecutor
from quorate_node.base.config import Config
from quorate_node.executors import selection
from quorate_protocol.messages.ports import Clock, Executor

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02
MODULES = {"coordinator": "quorate_coordinator.service", "node": "quorate_node.daemon"}


def await_file(path: Path) -> None:
    """Waits until a file exists, but not for ever, because its writer may have failed. Blocks."""
    limit = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > limit:
            raise SystemExit(f"{path} was not written in time; the parent may have failed")
        time.sleep(POLL_SECONDS)


def make_liar(key: bytes) -> None:
    choose = selection.choose

    async def choose_liar(config: Config, owner: str, clock: Clock) -> Executor:
        return LyingExecutor(await choose(config, owner, clock), key)

    selection.choose = choose_liar


if __name__ == "__main__":
    settings, lie, *words = sys.argv[1:]
    import_module(MODULES[words[0]])
    await_file(Path(settings))
    if lie:
        make_liar(lie.encode())
    sys.argv[1:] = words
    main()
