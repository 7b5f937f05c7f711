"""`python -m quorate_devnet.processes.run_coordinator SETTINGS`: the coordinator of a devnet,
exactly the one that operators run.

The settings file may appear later: the slow part, importing, is over by then.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from quorate_coordinator import coordinator_keys
from quorate_coordinator.config import GIB, Config
from quorate_coordinator.service import Service
from quorate_coordinator.storage.staging_quota import StagingQuota
from quorate_devnet.processes.process_settings import await_file, read_coordinator
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.keys.keystore import Keystore, read_passphrase_file
from quorate_runtime.process import crash_points, gc_tuning, logs


async def serve(service: Service) -> None:
    """Until SIGTERM."""
    task = asyncio.ensure_future(service.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return  # asked for by the signal


def main() -> None:
    """Reads the settings and serves."""
    logs.setup(is_json=False)
    logging.getLogger("aiohttp.access").setLevel(
        logging.WARNING
    )  # a line a request would be most of the log
    path = Path(sys.argv[1])
    await_file(path)
    told = read_coordinator(path)
    crash_points.configure(os.environ.get("QUORATE_CRASH_AT", ""))
    gc_tuning.tune_memory()
    keys = coordinator_keys.load(
        Keystore.at(
            Path(told.home) / "keys", read_passphrase_file(Path(told.password_file)), DEVNET
        )
    )
    config = Config(
        home=Path(told.home),
        deployment=told.deployment,
        chain_url=told.chain_url,
        beacon_url=told.beacon_url,
        port=told.port,
        staging=StagingQuota(20 * GIB),
        ready_file=Path(told.ready_file),
        claims_for_all=told.claims_for_all,
    )
    try:
        asyncio.run(serve(Service(config, keys)))
    except (Refused, Unavailable) as error:
        raise SystemExit(
            str(error)
        ) from error  # the program's end: its last line says why, without a trace


if __name__ == "__main__":
    main()
