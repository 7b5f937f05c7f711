"""Starts peers that are built from go-libp2p and boxo (tests/interop/go_peer) and commands them.

`.ci/make-gopeer` builds the program. Tests that need it are marked `gopeer`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO

import aiohttp
from msgspec import Struct
from msgspec.json import decode, encode

from support.requirements import GO_PEER

START_SECONDS = 20.0
END_SECONDS = 10.0


class Received(Struct, frozen=True):
    """What the peer read of a file. `sha256` is in hex."""

    bytes: int
    sha256: str
    seconds: float


class Message(Struct, frozen=True, rename={"signer": "from"}):
    """One gossip message: its signer, the neighbour that sent it, and its bytes."""

    signer: str
    via: str
    data: bytes


class _Answer(Struct, frozen=True):
    answer: bytes


class Started(Struct, frozen=True):
    """The line that the program prints: `addresses` end with /p2p/<id>."""

    id: str
    addresses: tuple[str, ...]
    control: str
    gateway: str


@dataclass(frozen=True, slots=True)
class GoPeer:
    """One running peer."""

    started: Started
    process: asyncio.subprocess.Process
    session: aiohttp.ClientSession

    @property
    def ipfs_url(self) -> str:
        """The base of its trustless gateway, as a source names it."""
        return f"{self.started.gateway}/ipfs"

    async def connect(self, other: "GoPeer | str") -> None:
        """Dials a peer, or an address that ends with /p2p/<id>."""
        address = other if isinstance(other, str) else other.started.addresses[0]
        await self._command("connect", address=address)

    async def add(self, data: bytes) -> str:
        """Stores a file and returns its CID."""
        return decode(await self._command("add", data), type=dict[str, str])["cid"]

    async def fetch(self, cid: str) -> Received:
        """Reads a file, which the peers that it is connected to send by bitswap."""
        return decode(await self._command("fetch", cid=cid), type=Received)

    async def read(self, cid: str, gateway: str) -> Received:
        """Reads a file from a gateway, block by block. `gateway` is its URL without /ipfs."""
        return decode(await self._command("read", cid=cid, gateway=gateway), type=Received)

    async def exchange(self, peer: str, protocol: str, data: bytes, count: int = 1) -> bytes:
        """Opens a stream, sends a message `count` times, and returns the last answer."""
        raw = await self._command("exchange", data, peer=peer, protocol=protocol, count=str(count))
        return decode(raw, type=_Answer).answer

    async def welcome(self, answer: bytes) -> None:
        """Sets what it sends after the hello of a peers' stream that somebody opens to it. It
        answers each request there with the request's own frame.
        """
        await self._command("welcome", answer)

    async def converse(
        self, peer: str, protocol: str, messages: list[bytes], keep: bool = False
    ) -> list[bytes]:
        """Opens a stream, sends each message after the answer to the one before, and returns the
        answers. With `keep` the stream stays open, and the peer answers requests on it.
        """
        more = {"keep": "1"} if keep else {}
        raw = await self._command(
            "converse", encode(messages), peer=peer, protocol=protocol, **more
        )
        return decode(raw, type=list[bytes])

    async def send(self, peer: str, protocol: str, data: bytes) -> None:
        """Opens a stream and writes bytes as they are."""
        await self._command("send", data, peer=peer, protocol=protocol)

    async def join(self, topic: str) -> None:
        """Subscribes to a gossip topic."""
        await self._command("join", topic=topic)

    async def publish(self, topic: str, data: bytes) -> None:
        """Publishes to a topic that it has joined."""
        await self._command("publish", data, topic=topic)

    async def neighbours(self, topic: str) -> list[str]:
        """The ids of connected peers that take the topic's messages."""
        return decode(await self._command("neighbours", topic=topic), type=list[str])

    async def messages(self, topic: str, first: int = 0) -> list[Message]:
        """The topic's messages from number `first` on."""
        raw = await self._command("messages", topic=topic, **{"from": str(first)})
        return decode(raw, type=list[Message])

    async def _command(self, name: str, data: bytes = b"", **parameters: str) -> bytes:
        url = f"{self.started.control}/{name}"
        async with self.session.post(url, params=parameters, data=BytesIO(data)) as answer:
            body = await answer.read()
            assert answer.status == 200, f"gopeer {name}: {body.decode(errors='replace')}"
            return body


@asynccontextmanager
async def go_peer(
    seed: bytes = b"", is_limited: bool = False, port: int = 0
) -> AsyncIterator[GoPeer]:
    """A peer for as long as the block lasts. It ends by itself when this process does."""
    arguments = [f"-port={port}"] + [f"-seed={seed.hex()}"] * bool(seed)
    arguments += ["-limited"] * is_limited
    process = await asyncio.create_subprocess_exec(
        str(GO_PEER), *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        async with aiohttp.ClientSession() as session:
            yield GoPeer(decode(line, type=Started), process, session)
    finally:
        if process.returncode is None:
            process.stdin.close()
            await asyncio.wait_for(process.wait(), END_SECONDS)
