"""`quorate stream`: copies bytes between standard input and output and a rental.

OpenSSH starts it as its ProxyCommand, once for each connection. So it loads no parser and no keys
while the profile has a token of today. A thread loads them, and pays for the rental meanwhile.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from quorate.base.errors import QuorateError
from quorate.client.base.coordinator_api import Api
from quorate_protocol.units import Hash32
from quorate_runtime.http import byte_streams
from quorate_runtime.http.client_sessions import plain_session

TOKEN_LEFT_SECONDS = 60
KEEP_AFTER_SECONDS = 1.0  # a command that is over by then needs no voucher
LOCKED = "your keys are locked, so nothing more is paid while this runs: `quorate unlock` first"


def run(words: Sequence[str]) -> int | None:
    """Takes the words that `quorate ssh-config` writes: stream --home HOME [...] 0xJOB. Returns the
    exit code, or None for other words and without a token of today: it must be signed first.
    """
    given = dict(zip(words[1:-1:2], words[2:-1:2], strict=False))
    try:
        home, job = Path(given["--home"]), Hash32(bytes.fromhex(words[-1].removeprefix("0x")))
        url = str(json.loads((home / "client.json").read_bytes())["coordinator"])
        kept = json.loads((home / "token.json").read_bytes())
        if float(kept["expires"]) < time.time() + TOKEN_LEFT_SECONDS:
            return None
        token = str(kept["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not re-raised: the parser and the profile say what is wrong
    paying = threading.Timer(KEEP_AFTER_SECONDS, _pay, (given, words[-1]))
    paying.daemon = True
    return asyncio.run(_carry(url, token, job, paying))


async def _carry(url: str, token: str, job: Hash32, paying: threading.Thread) -> int:
    async with plain_session() as session:
        try:
            ws = await Api(url, session, lambda: token).stream(job)
        except QuorateError as error:
            from quorate.cli.context import note

            note(f"quorate: {error}")
            return error.exit_code  # not re-raised: the parser, which says it, is not loaded
        paying.start()
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        output, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sys.stdout
        )
        output.set_write_buffer_limits(0)  # what is written is out when the program ends
        writer = asyncio.StreamWriter(output, protocol, None, loop)

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        await byte_streams.carry(ws, reader.read, write)
    return 0


def _pay(given: dict[str, str], job: str) -> None:
    """Lets the rental go on, until the program ends."""
    from quorate.cli.context import from_environment, note

    file = given.get("--password-file")
    context = from_environment(Path(given["--home"]), None, "", Path(file) if file else None)

    async def work() -> None:
        async with context.reading_market() as market:
            rental = await market.rental(job)
            if not rental.session.can_sign:
                note(LOCKED)
                return
            await rental.keep()
            await asyncio.Event().wait()

    try:
        asyncio.run(work())
    # The stream goes on, and what is signed lasts for a while.
    except Exception as error:  # noqa: BLE001
        note(f"quorate: nothing more is paid for this rental: {error}")
