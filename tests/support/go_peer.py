"""Starts peers that are built from go-libp2p and boxo (tests/interop/go_peer) and commands them.

`.ci/make-gopeer` builds the program. Tests that need it are marked `gopeer`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.json import decode, encode

from quorate_devnet.market.ipfs_peer import IpfsPeer, ipfs_peer
from support.requirements import GO_PEER


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


class GoPeer(IpfsPeer):
    """One running peer, with all its commands."""

    __slots__ = ()

    @property
    def ipfs_url(self) -> str:
        """The base of its trustless gateway, as a source names it."""
        return f"{self.started.gateway}/ipfs"

    async def import_car(self, car: bytes) -> str:
        """Stores the blocks of a CAR and returns its root."""
        return decode(await self.command("import", car), type=dict[str, str])["cid"]

    async def fetch(self, cid: str) -> Received:
        """Reads a file, which the peers that it is connected to send by bitswap."""
        return decode(await self.command("fetch", cid=cid), type=Received)

    async def read(self, cid: str, gateway: str) -> Received:
        """Reads a file from a gateway, block by block. `gateway` is its URL without /ipfs."""
        return decode(await self.command("read", cid=cid, gateway=gateway), type=Received)

    async def exchange(self, peer: str, protocol: str, data: bytes, count: int = 1) -> bytes:
        """Opens a stream, sends a message `count` times, and returns the last answer."""
        raw = await self.command("exchange", data, peer=peer, protocol=protocol, count=str(count))
        return decode(raw, type=_Answer).answer

    async def welcome(self, answer: bytes) -> None:
        """Sets what it sends after the hello of a peers' stream that somebody opens to it. It
        answers each request there with the request's own frame.
        """
        await self.command("welcome", answer)

    async def converse(
        self, peer: str, protocol: str, messages: list[bytes], keep: bool = False
    ) -> list[bytes]:
        """Opens a stream, sends each message after the answer to the one before, and returns the
        answers. With `keep` the stream stays open, and the peer answers requests on it.
        """
        more = {"keep": "1"} if keep else {}
        raw = await self.command("converse", encode(messages), peer=peer, protocol=protocol, **more)
        return decode(raw, type=list[bytes])

    async def send(self, peer: str, protocol: str, data: bytes) -> None:
        """Opens a stream and writes bytes as they are."""
        await self.command("send", data, peer=peer, protocol=protocol)

    async def join(self, topic: str) -> None:
        """Subscribes to a gossip topic."""
        await self.command("join", topic=topic)

    async def publish(self, topic: str, data: bytes) -> None:
        """Publishes to a topic that it has joined."""
        await self.command("publish", data, topic=topic)

    async def neighbours(self, topic: str) -> list[str]:
        """The ids of connected peers that take the topic's messages."""
        return decode(await self.command("neighbours", topic=topic), type=list[str])

    async def messages(self, topic: str, first: int = 0) -> list[Message]:
        """The topic's messages from number `first` on."""
        raw = await self.command("messages", topic=topic, **{"from": str(first)})
        return decode(raw, type=list[Message])


@asynccontextmanager
async def go_peer(
    seed: bytes = b"", is_limited: bool = False, port: int = 0
) -> AsyncIterator[GoPeer]:
    """A peer for as long as the block lasts. It ends by itself when this process does."""
    arguments = [f"-port={port}"] + [f"-seed={seed.hex()}"] * bool(seed)
    arguments += ["-limited"] * is_limited
    async with ipfs_peer(GO_PEER, *arguments) as peer:
        yield GoPeer(peer.started, peer.process, peer.session)
