"""Runs one peer made of go-libp2p and boxo (tests/interop/go_peer), for demos and tests.

The project has no IPFS peer of its own. `.ci/make-gopeer` builds this one where Go is installed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import aiohttp
from msgspec import MsgspecError, Struct
from msgspec.json import decode

from quorate_protocol.refusals import Unavailable
from quorate_runtime.http.client_sessions import read_bounded

PROGRAM = Path("tests/interop/go_peer/build/gopeer")  # in a checkout
START_SECONDS = 20.0
END_SECONDS = 10.0
ANSWER_BYTES_MAX = 256 << 20


class Started(Struct, frozen=True):
    """The line that the program prints: `addresses` end with /p2p/<id>."""

    id: str
    addresses: tuple[str, ...]
    control: str
    gateway: str


def built_program() -> Path | None:
    """Returns the program of this checkout, or None if it is not built or not a checkout."""
    program = Path(__file__).resolve().parents[3] / PROGRAM
    return program if program.is_file() else None


@dataclass(frozen=True, slots=True)
class IpfsPeer:
    """One running peer."""

    started: Started
    process: asyncio.subprocess.Process
    session: aiohttp.ClientSession

    async def connect(self, other: "IpfsPeer | str") -> None:
        """Dials a peer, or an address that ends with /p2p/<id>. Raises Unavailable."""
        address = other if isinstance(other, str) else other.started.addresses[0]
        await self.command("connect", address=address)

    async def add(self, data: bytes) -> str:
        """Stores a file and returns its CID. Raises Unavailable."""
        return decode(await self.command("add", data), type=dict[str, str])["cid"]

    async def command(self, name: str, data: bytes = b"", **parameters: str) -> bytes:
        """Sends one of the commands in control.go. Raises Unavailable with what the peer said."""
        url = f"{self.started.control}/{name}"
        try:
            async with self.session.post(url, params=parameters, data=BytesIO(data)) as answer:
                body = await read_bounded(answer, ANSWER_BYTES_MAX)
        except aiohttp.ClientError as error:
            raise Unavailable(f"the IPFS peer does not answer: {error}") from error
        if answer.status != 200:
            raise Unavailable(f"IPFS peer, {name}: {body.decode(errors='replace')[:500]}")
        return body


@asynccontextmanager
async def ipfs_peer(program: Path, *arguments: str) -> AsyncIterator[IpfsPeer]:
    """Runs a peer while the block lasts. It ends by itself when this process does.

    Raises Unavailable if the program does not start.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            str(program), *arguments, stdin=pipe, stdout=pipe
        )
    except OSError as error:
        raise Unavailable(f"{program} does not start: {error}") from error
    assert process.stdin is not None and process.stdout is not None
    try:
        try:
            async with asyncio.timeout(START_SECONDS):
                started = decode(await process.stdout.readline(), type=Started)
        except (TimeoutError, MsgspecError) as error:
            raise Unavailable(f"{program} is no IPFS peer, or it did not start") from error
        async with aiohttp.ClientSession() as session:
            yield IpfsPeer(started, process, session)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            # Not re-raised: a program that does not end with its input is killed.
            process.kill()
            await process.wait()
