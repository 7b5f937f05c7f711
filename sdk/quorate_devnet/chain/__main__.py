"""`python -m quorate_devnet.chain`: runs the devnet chain until SIGTERM or SIGINT."""

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from quorate_devnet.chain.ready_file import write_ready
from quorate_devnet.chain.server import ChainConfig, running_chain


async def _run(config: ChainConfig, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_chain(config) as chain:
        write_ready(ready_file, {"url": chain.url})
        waits: set[asyncio.Task[object]] = {asyncio.create_task(stop.wait())}
        if chain.ticker is not None:
            waits.add(chain.ticker)
        # When the chain cannot make blocks any more, the program ends with the error. It does not
        # go on answering from old blocks.
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m quorate_devnet.chain",
        description="A development chain: one block a second.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8545, help="0 picks a free one")
    parser.add_argument(
        "--ready-file", type=Path, help='written as {"url": ...} once the chain answers'
    )
    parser.add_argument(
        "--test-control", action="store_true", help="allow evm_mine and anvil_reorg"
    )
    parser.add_argument(
        "--manual",
        action="store_true",
        help="no clock: blocks only by evm_mine (implies --test-control)",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    config = ChainConfig(
        host=options.host,
        port=options.port,
        block_seconds=None if options.manual else 1,
        control=options.test_control or options.manual,
    )
    asyncio.run(_run(config, options.ready_file))


if __name__ == "__main__":
    main()
