"""Runs anvil, if it is on PATH, as the same chain: same chain id, accounts, fork rules and
block time.
"""

import argparse
import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp

from quorate_devnet.chain import CHAIN_ID
from quorate_devnet.chain.accounts import BALANCE_WEI, FUNDED, MNEMONIC
from quorate_devnet.chain.free_port import free_port
from quorate_devnet.chain.ready_file import write_ready
from quorate_protocol.refusals import Unavailable

START_SECONDS = 15.0


def anvil_path() -> str | None:
    return shutil.which("anvil")


@contextlib.asynccontextmanager
async def start_anvil(
    port: int = 0, block_seconds: int | None = 1, host: str = "127.0.0.1", flags: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Runs anvil until the context ends, and yields its URL.

    With `block_seconds` None it makes blocks only by evm_mine. `flags` are added to the command
    line. Raises Unavailable if it does not start.
    """
    program = anvil_path()
    if program is None:
        raise Unavailable("anvil is not on PATH")
    chosen = port or free_port(host)
    process = await asyncio.create_subprocess_exec(
        program,
        *_flags(host, chosen, block_seconds),
        *flags,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://{host}:{chosen}"
    try:
        await _answers(url, process)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            process.terminate()
        await process.wait()


def _flags(host: str, port: int, block_seconds: int | None) -> list[str]:
    # anvil's newest rules reprice modexp (600 gas a beacon round); prague equals py-evm exactly.
    # EIP-7825's gas cap is switched on for the anvils that heed it under prague (1.7.1 does so only
    # under osaka).
    flags = [
        "--host",
        host,
        "--port",
        str(port),
        "--silent",
        "--hardfork",
        "prague",
        "--enable-tx-gas-limit",
    ]
    flags += ["--chain-id", str(CHAIN_ID), "--mnemonic", MNEMONIC]
    flags += ["--accounts", str(FUNDED), "--balance", str(BALANCE_WEI // 10**18), "--order", "fifo"]
    return flags + (
        ["--no-mining"] if block_seconds is None else ["--block-time", str(block_seconds)]
    )


async def _answers(url: str, process: asyncio.subprocess.Process) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    async with aiohttp.ClientSession() as session:
        for _ in range(int(START_SECONDS / 0.05)):
            if process.returncode is not None:
                raise Unavailable(
                    f"anvil ended with status {process.returncode} before it answered"
                )
            with contextlib.suppress(
                aiohttp.ClientError, TimeoutError
            ):  # not re-raised: it is not up yet, and the loop is bounded
                async with session.post(
                    url, json=body, timeout=aiohttp.ClientTimeout(total=2)
                ) as response:
                    if (await response.json()).get("result") == hex(CHAIN_ID):
                        return
            await asyncio.sleep(0.05)
    raise Unavailable(f"anvil did not answer within {START_SECONDS:g} s")


async def _run(port: int, ready_file: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with start_anvil(port) as url:
        write_ready(ready_file, {"url": url})
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m quorate_devnet.chain.anvil_process")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-file", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(_run(options.port, options.ready_file))


if __name__ == "__main__":
    main()
