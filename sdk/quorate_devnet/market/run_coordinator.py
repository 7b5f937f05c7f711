"""`python -m quorate_devnet.market.run_coordinator SETTINGS`: runs the same coordinator that
operators run.

The settings file may appear later. Meanwhile this process does its slow imports.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base.config import GIB, Config
from quorate_coordinator.base.storage_sizes import StagingQuota
from quorate_coordinator.service import Service
from quorate_devnet.market.process_settings import await_file, read_coordinator
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.keys.keystore import Keystore, read_passphrase_file
from quorate_runtime.process import crash_points, gc_tuning, logs


async def serve(service: Service) -> None:
    """Serves until SIGTERM."""
    task = asyncio.ensure_future(service.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return  # the signal asked for it


def main() -> None:
    """Reads the settings and serves."""
    logs.setup(is_json=False)
    logging.getLogger("aiohttp.access").setLevel(
        logging.WARNING
    )  # one line per request would be most of the log
    path = Path(sys.argv[1])
    await_file(path)
    settings = read_coordinator(path)
    crash_points.configure(os.environ.get("QUORATE_CRASH_AT", ""))
    gc_tuning.tune_memory()
    keys = coordinator_keys.load(
        Keystore.at(
            Path(settings.home) / "keys", read_passphrase_file(Path(settings.password_file)), DEVNET
        )
    )
    config = Config(
        home=Path(settings.home),
        deployment=settings.deployment,
        chain_url=settings.chain_url,
        beacon_url=settings.beacon_url,
        port=settings.port,
        p2p_listen=settings.p2p_listen,
        staging=StagingQuota(20 * GIB),
        ready_file=Path(settings.ready_file),
        ipfs_gateways=settings.ipfs_gateways,
    )
    try:
        asyncio.run(serve(Service(config, keys)))
    except (Refused, Unavailable) as error:
        raise SystemExit(str(error)) from error  # the last line says why, without a stack trace


if __name__ == "__main__":
    main()
