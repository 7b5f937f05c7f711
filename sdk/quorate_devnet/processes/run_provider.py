"""`python -m quorate_devnet.processes.run_provider SETTINGS`: one provider of a devnet, the
daemon that owners run; a liar gets another executor.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from quorate_devnet.liar import LyingExecutor
from quorate_devnet.processes.process_settings import ProviderSettings, await_file, read_provider
from quorate_devnet.processes.ready_file import write_ready
from quorate_node.config import Config, ExecutorKind
from quorate_node.daemon import ProviderDaemon
from quorate_node.executors import selection
from quorate_node.keys import provider_keys
from quorate_protocol.limits import DEVNET
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.keystore import Keystore, read_passphrase_file
from quorate_runtime.process import crash_points, gc_tuning, logs


async def serve(told: ProviderSettings) -> None:
    """Until SIGTERM."""
    config = Config(
        home=Path(told.home),
        coordinators=(told.coordinator_url,),
        executor=ExecutorKind(told.executor),
        is_devnet=True,
        slots=told.slots,
        price=told.price,
        listen_host=told.host,
        listen_port=told.port,
        chain_url=told.chain_url,
        stop_on_exit=told.stop_on_exit,
        noop_milliseconds=told.noop_milliseconds,
        images=told.images,
        declined_keep_seconds=told.declined_keep_seconds,
        cpu_millis=1000
        * len(
            os.sched_getaffinity(0)
        ),  # all providers share this machine anyway: each slot may use all of it
    )
    keystore = Keystore.at(
        config.path("keys"), read_passphrase_file(Path(told.password_file)), DEVNET
    )
    keys = provider_keys.load(keystore, None, told.payout)
    clock = SystemClock()
    executor = await selection.choose(config, told.label, clock)
    daemon = ProviderDaemon(
        config, keys, LyingExecutor(executor, told.lie_key) if told.lie_key else executor, clock
    )
    task = asyncio.ensure_future(daemon.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    telling = asyncio.ensure_future(_tell(daemon, Path(told.ready_file)))
    try:
        await task
    except asyncio.CancelledError:
        return  # asked for by the signal
    finally:
        telling.cancel()
        await executor.close()


async def _tell(daemon: ProviderDaemon, path: Path) -> None:
    await daemon.is_on_offer.wait()
    write_ready(path, {"url": daemon.url})


def main() -> None:
    """Reads the settings and serves."""
    logs.setup(is_json=False)
    logging.getLogger("aiohttp.access").setLevel(
        logging.WARNING
    )  # a line a request would be most of the log
    path = Path(sys.argv[1])
    await_file(path)
    crash_points.configure(os.environ.get("QUORATE_CRASH_AT", ""))
    gc_tuning.tune_memory()
    try:
        asyncio.run(serve(read_provider(path)))
    except (Refused, Unavailable) as error:
        raise SystemExit(
            str(error)
        ) from error  # the program's end: its last line says why, without a trace


if __name__ == "__main__":
    main()
