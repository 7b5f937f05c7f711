"""The command `quorate devnet chain`. A module of its own, because py-evm takes long to import."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from quorate_devnet.chain import saved_chain
from quorate_devnet.chain.evm_chain import Ledger
from quorate_devnet.chain.server import ChainConfig, running_chain
from quorate_devnet.commands import EXIT_UNAVAILABLE, EXIT_USAGE, AsJson, fail


def chain(
    saved: Annotated[Path, typer.Argument(help="The chain.json that a demo kept.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 picks a free one.")] = 8545,
    as_json: AsJson = False,
) -> None:
    """Serve the chain of a demo again until Ctrl-C, without new blocks: for `verify --rpc`."""
    try:
        ledger = saved_chain.read(saved)
    except ValueError as error:  # the program ends here with a sentence and an exit code
        raise fail(str(error), EXIT_USAGE) from error
    try:
        asyncio.run(_serve_saved(ledger, port, as_json))
    except OSError as error:  # as above
        remedy = "choose another with --port"
        raise fail(f"port {port}: {error.strerror}; {remedy}", EXIT_UNAVAILABLE) from error


async def _serve_saved(ledger: Ledger, port: int, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    config = ChainConfig(port=port, block_seconds=None)
    async with running_chain(config, restored=ledger) as served:
        facts = {"chainUrl": served.url, "blocks": ledger.head.number}
        text = f"the chain answers at {served.url}; Ctrl-C ends it"
        typer.echo(json.dumps(facts) if as_json else text)
        await stop.wait()
