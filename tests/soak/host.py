"""`python -m soak.host SETTINGS`: one process with many providers. Killed with -9 and started
again by the soak.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from quorate_devnet.processes.ready_file import write_ready
from quorate_runtime.process import logs
from soak.member import Place, run_member
from soak.plan import provider_keys


async def serve(told: dict[str, str], ready_file: Path) -> None:
    """Until killed. A provider that fails ends the process: the soak says so."""
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
            place = Place(
                told["coordinator_url"], told["chain_url"], Path(told["home"]) / str(index), index
            )
            keys = provider_keys(bytes.fromhex(told["seed"]), index)
            group.create_task(run_member(place, keys, reached(index)), name=f"provider {index}")


def main() -> None:
    """Reads the settings and serves."""
    logs.setup(is_json=False)
    logging.getLogger().setLevel(logging.WARNING)
    path = Path(sys.argv[1])
    asyncio.run(serve(json.loads(path.read_text()), path.with_suffix(".ready")))


if __name__ == "__main__":
    main()
