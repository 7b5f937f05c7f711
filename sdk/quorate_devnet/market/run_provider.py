"""`python -m quorate_devnet.market.run_provider SETTINGS`: runs the provider daemon; a liar gets
another executor.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from quorate_devnet.chain.ready_file import write_ready
from quorate_devnet.market.liar import LyingExecutor
from quorate_devnet.market.process_settings import ProviderSettings, await_file, read_provider
from quorate_node.base import provider_keys
from quorate_node.base.config import Config, ExecutorKind
from quorate_node.daemon import ProviderDaemon
from quorate_node.executors import selection
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.keystore import Keystore, read_passphrase_file
from quorate_runtime.process import crash_points, gc_tuning, logs


async def serve(settings: ProviderSettings) -> None:
    """Serves until SIGTERM."""
    config = Config(
        home=Path(settings.home),
        coordinators=(settings.coordinator_url,),
        executor=ExecutorKind(settings.executor),
        is_devnet=True,
        slots=settings.slots,
        price=settings.price,
        listen_host=settings.host,
        listen_port=settings.port,
        chain_url=settings.chain_url,
        stop_on_exit=settings.stop_on_exit,
        noop_milliseconds=settings.noop_milliseconds,
        images=settings.images,
        declined_keep_seconds=settings.declined_keep_seconds,
        ipfs_gateways=settings.ipfs_gateways,
        attestation=settings.attestation,
        cpu_millis=1000
        * len(
            os.sched_getaffinity(0)
        ),  # all providers share this machine, so each slot may use all of it
    )
    keystore = Keystore.at(
        config.path("keys"), read_passphrase_file(Path(settings.password_file)), DEVNET
    )
    keys = provider_keys.load(keystore, None, settings.payout)
    clock = SystemClock()
    executor = await selection.choose(config, settings.label, clock)
    daemon = ProviderDaemon(
        config,
        keys,
        LyingExecutor(executor, settings.lie_key) if settings.lie_key else executor,
        clock,
    )
    task = asyncio.ensure_future(daemon.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    ready_task = asyncio.ensure_future(_write_ready_file(daemon, Path(settings.ready_file)))
    try:
        await task
    except asyncio.CancelledError:
        return  # the signal asked for it
    finally:
        ready_task.cancel()
        await executor.close()


async def _write_ready_file(daemon: ProviderDaemon, path: Path) -> None:
    await daemon.is_on_offer.wait()
    write_ready(path, {"url": daemon.url})


def main() -> None:
    """Reads the settings and serves."""
    logs.setup(is_json=False)
    logging.getLogger("aiohttp.access").setLevel(
        logging.WARNING
    )  # one line per request would be most of the log
    path = Path(sys.argv[1])
    await_file(path)
    crash_points.configure(os.environ.get("QUORATE_CRASH_AT", ""))
    gc_tuning.tune_memory()
    try:
        asyncio.run(serve(read_provider(path)))
    except (Refused, Unavailable) as error:
        raise SystemExit(str(error)) from error  # the last line says why, without a stack trace


if __name__ == "__main__":
    main()
