"""The scripted providers of the jobs benchmark, in a process of their own.

They decode, sign and encode there, as real providers do. Frames go over two pipes, all of one turn
of the loop together, with the bytes that the coordinator would send over its sockets. A provider
takes every assignment, has done the work at once and reveals when it is asked to. Its commit waits
until its accept was answered.
"""

import asyncio
import os
import pickle
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.eip712 import Domain, struct_hash
from quorate_protocol.codec.hashing import hash_tuple, keccak256
from quorate_protocol.limits import MAINNET
from quorate_protocol.messages import frames, job_spec
from quorate_protocol.messages.commitment import commitment, result_digest
from quorate_protocol.messages.envelope import Envelope, Sign
from quorate_protocol.messages.signed import Accept, Assignment, Commit, Reveal
from quorate_protocol.units import (
    Address,
    ExitStatus,
    Hash32,
    Milliseconds,
    Round,
    Seconds,
    Signature,
    UnixSeconds,
)
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.process import gc_tuning
from support.offers import MACHINE, class_of

DOMAIN = Domain(31337, Address(b"\x11" * 20))
IMAGE = document_cid(b"image")
FIRST_SEED = 1_000
CHUNK_BYTES = 1 << 20
BATCH_BYTES_MAX = 64 << 20

Batch = list[tuple[Address, int, bytes]]
"""Frames with the provider that they are from or for. `number` 0: no answer is wanted; an answer
has no bytes.
"""

M = TypeVar("M")


def digest(domain: Domain, message: object) -> Hash32:
    """`eip712.digest`, computed without the coordinator's caches, as in another process."""
    return keccak256(b"\x19\x01" + domain.separator() + struct_hash(message))


def seal(domain: Domain, message: M, sign: Sign) -> Envelope[M]:
    """As `envelope.seal`."""
    return Envelope(message, sign(digest(domain, message)))


class Party:
    """An account with its key; it signs outside the coordinator's time."""

    def __init__(self, seed: int, is_real: bool) -> None:
        self.key = KeySigner(hash_tuple("bench", seed))
        self.address = self.key.address
        self._is_real = is_real

    def sign(self, hashed: Hash32) -> Signature:
        """A real signature, or the constant."""
        return self.key.sign(hashed) if self._is_real else Signature(hashed + hashed + b"\x1b")


def parties(count: int, is_real: bool) -> list[Party]:
    """All providers."""
    return [Party(FIRST_SEED + number, is_real) for number in range(count)]


def now_seconds() -> UnixSeconds:
    """The present time in whole seconds."""
    return UnixSeconds(int(time.time()))


# ---------------------------------------------------------------------------------------- the pipes


class Pipe:
    """One end of both pipes; everything sent in one turn of the loop goes together."""

    def __init__(self, reader: asyncio.StreamReader, write: Callable[[bytes], None]) -> None:
        self._reader, self._write = reader, write
        self._waiting: Batch = []

    def send(self, peer: Address, number: int, data: bytes) -> None:
        """Sends before the loop sleeps."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append((peer, number, data))

    def _flush(self) -> None:
        data, self._waiting = pickle.dumps(self._waiting), []
        self._write(len(data).to_bytes(4, "big") + data)

    async def receive(self) -> Batch:
        """The next batch; empty at the end."""
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
        except asyncio.IncompleteReadError:
            # The other end is closed.
            return []
        assert length <= BATCH_BYTES_MAX, f"a batch of {length} bytes"
        batch: Batch = pickle.loads(await self._reader.readexactly(length))
        return batch


@dataclass(slots=True)
class Providers:
    """The coordinator's end."""

    process: asyncio.subprocess.Process
    pipe: Pipe

    @classmethod
    async def start(cls, count: int, is_signed: bool) -> "Providers":
        """Starts the process and waits until it is ready."""
        program = (sys.executable, __file__, str(count), str(int(is_signed)))
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=CHUNK_BYTES,
        )
        assert process.stdin is not None and process.stdout is not None
        providers = cls(process, Pipe(process.stdout, process.stdin.write))
        assert await providers.pipe.receive(), "the providers did not start"
        return providers

    async def serve(
        self, take: Callable[[Address, bytes], Awaitable[None]], group: asyncio.TaskGroup
    ) -> None:
        """Handles every frame in a task of its own, as a gateway does, and answers afterwards."""

        async def one(peer: Address, number: int, data: bytes) -> None:
            await take(peer, data)
            self.pipe.send(peer, number, b"")

        while batch := await self.pipe.receive():
            for peer, number, data in batch:
                group.create_task(one(peer, number, data))

    async def stop(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await self.process.wait() == 0, "the providers failed"


# ------------------------------------------------------------------------------------ the providers


@dataclass(slots=True)
class _Fleet:
    pipe: Pipe
    parties: dict[Address, Party]
    reveals: dict[Hash32, Reveal] = field(default_factory=dict)
    commits: dict[int, bytes] = field(default_factory=dict)  # by the number of the accept before it
    sent: int = 0

    def take(self, peer: Address, number: int, data: bytes) -> None:
        """Takes a frame, or the answer to one."""
        if not data:
            commit = self.commits.pop(number, None)
            if commit is not None:
                self._send(peer, commit)
            return
        match frames.decode(data):
            case frames.AssignmentSent(assignment, spec):
                self._run(self.parties[peer], assignment.message, spec)
            case frames.CommitSetSent(assignment_hash):
                # A slow coordinator signs a set a second time: repeated, or past its verdict.
                reveal = self.reveals.get(assignment_hash)
                if reveal is not None:
                    self._send(peer, frames.encode(frames.RevealSent(reveal)))
            case frames.VerdictSent(assignment_hash):
                self.reveals.pop(assignment_hash, None)
            case _:
                pass

    def _send(self, peer: Address, data: bytes) -> None:
        self.sent += 1
        self.pipe.send(peer, self.sent, data)

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        hashed, at = digest(DOMAIN, assignment), _accepted_at(assignment)
        accept = seal(
            DOMAIN,
            Accept(hashed, MACHINE.digest(), Seconds(0), Seconds(1), Seconds(0), at),
            party.sign,
        )
        self._send(party.address, frames.encode(frames.AcceptSent(accept)))
        output, salt = assignment.spec_hash, hash_tuple("salt", party.address, hashed)
        self.reveals[hashed] = Reveal(hashed, party.address, ExitStatus(0), output, salt)
        value = commitment(hashed, party.address, salt, result_digest(ExitStatus(0), output))
        commit = Commit(hashed, class_of(spec), value, output, Milliseconds(3_600), Round(0))
        self.commits[self.sent] = frames.encode(frames.CommitSent(seal(DOMAIN, commit, party.sign)))


def _accepted_at(assignment: Assignment) -> UnixSeconds:
    """The moment of an Accept: at least the one at which its Assignment was signed. That is ahead
    of the clock, as the rounds of this benchmark's beacon are.
    """
    return UnixSeconds(max(now_seconds(), assignment.accept_by - MAINNET.accept_within))


async def _play(count: int, is_signed: bool) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(CHUNK_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(1, "wb"))
    fleet = _Fleet(
        Pipe(reader, writer.write), {party.address: party for party in parties(count, is_signed)}
    )
    gc_tuning.tune_memory()
    fleet.pipe.send(Address(bytes(20)), 0, b"ready")
    while batch := await fleet.pipe.receive():
        for peer, number, data in batch:
            fleet.take(peer, number, data)


if __name__ == "__main__":
    asyncio.run(_play(int(sys.argv[1]), bool(int(sys.argv[2]))))
