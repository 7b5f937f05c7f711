"""One process with many providers, which the soak kills with SIGKILL and restarts.

Run as `python -m soak.provider_host SETTINGS`.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from quorate_devnet.chain.ready_file import write_ready
from quorate_runtime.process import logs
from soak.light_provider import ProviderSettings, run_light_provider
from soak.plan import provider_keys


async def serve(told: dict[str, str], ready_file: Path) -> None:
    """Serves until killed. A provider that fails ends the process, and the soak reports it."""
    indices = range(int(told["first"]), int(told["after"]))
    missing = set(indices)

    def reached(index: int) -> Callable[[], None]:
        def connected() -> None:
            missing.discard(index)
            if not missing:
                write_ready(ready_file, {"first": told["first"]})

        return connected

    async with asyncio.TaskGroup() as group:
        for index in indices:
            settings = ProviderSettings(
                told["coordinator_url"], told["chain_url"], Path(told["home"]) / str(index), index
            )
            keys = provider_keys(bytes.fromhex(told["seed"]), index)
            group.create_task(
                run_light_provider(settings, keys, reached(index)), name=f"provider {index}"
            )


def main() -> None:
    """Reads the settings and serves."""
    logs.setup(is_json=False)
    logging.getLogger().setLevel(logging.WARNING)
    path = Path(sys.argv[1])
    asyncio.run(serve(json.loads(path.read_text()), path.with_suffix(".ready")))


if __name__ == "__main__":
    main()
