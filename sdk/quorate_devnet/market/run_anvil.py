"""`python -m quorate_devnet.market.run_anvil`: runs anvil instead of the devnet's own chain,
with the same flags and ready file.
"""

import argparse
import asyncio
import signal
from pathlib import Path

from quorate_devnet.chain.anvil_process import start_anvil
from quorate_devnet.chain.ready_file import write_ready


async def _run(port: int, ready_file: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with start_anvil(port) as url:
        write_ready(ready_file, {"url": url})
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m quorate_devnet.market.run_anvil")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-file", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(_run(options.port, options.ready_file))


if __name__ == "__main__":
    main()
