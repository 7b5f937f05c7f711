"""Scripted providers on real sockets, for tests of the coordinator as a service.

They connect, offer, send heartbeats, upload and answer as daemons do. A run lasts exactly as long
as the test says.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from quorate_content.dag.cid import Cid, parse
from quorate_content.transfer.sealed import seal_directory
from quorate_content.transfer.staging_routes import upload_file
from quorate_protocol.codec.eip712 import Domain, digest
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.messages import frames, job_spec
from quorate_protocol.messages.beacon_rounds import round_at
from quorate_protocol.messages.commitment import commitment, result_digest
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.messages.signed import (
    Accept,
    Assignment,
    Commit,
    Heartbeat,
    LeaseProgress,
    Reveal,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_ADDRESS,
    Address,
    ExitStatus,
    Hash32,
    Milliseconds,
    Round,
    Seconds,
    Sequence,
    UnixSeconds,
    WorkStage,
)
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.peers.websocket_peers import WebSocketDialer
from support.markets.coordinator_stage import Stage, token
from support.markets.scripted_market import CPUS
from support.offers import MACHINE, a_slot, an_offer, class_of

BEAT_SECONDS = 2.0
ASK_SECONDS = Seconds(20)


@dataclass(frozen=True, slots=True)
class Place:
    """What a provider must know of the coordinator that it serves."""

    url: str
    coordinator: Address
    domain: Domain
    chain_id: int
    beacon: BeaconInfo

    @classmethod
    def of(cls, stage: Stage, url: str) -> "Place":
        """Returns the facts of a coordinator of this stage."""
        deployment = stage.deployment
        return cls(
            url,
            stage.coordinator,
            deployment.domain(),
            deployment.chain_id,
            deployment.beacon_info(),
        )


@dataclass
class Floor:
    """All wired providers together: the jobs matched so far, and the runs that the test has to
    end.
    """

    place: Place
    folder: Path
    matched: list[str] = field(default_factory=list)  # names of the jobs
    runs: list[asyncio.Event] = field(
        default_factory=list
    )  # one event per match; a run ends once its event is set
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until_matched(self, count: int, seconds: float = 30.0) -> None:
        """Waits until `count` jobs were matched in all."""
        async with asyncio.timeout(seconds), self.moved:
            await self.moved.wait_for(lambda: len(self.matched) >= count)

    async def end_one(self, seconds: float = 30.0) -> str:
        """Ends the oldest run; returns the name of the job that gets its slot."""
        event = next(item for item in self.runs if not item.is_set())
        count = len(self.matched)
        event.set()
        await self.until_matched(count + 1, seconds)
        return self.matched[count]

    async def begin(self, name: str) -> asyncio.Event:
        """Records a match; returns the event that ends its run."""
        async with self.moved:
            self.matched.append(name)
            self.runs.append(asyncio.Event())
            self.moved.notify_all()
            return self.runs[-1]


@dataclass
class WiredProvider:
    """One scripted provider with `slots` slots of class CPUS.

    `key` is its operator key. `account` is its owner's account, if that differs.
    """

    key: KeySigner
    floor: Floor
    session: aiohttp.ClientSession
    reveals: dict[Hash32, Reveal] = field(default_factory=dict)
    taken: set[Hash32] = field(default_factory=set)
    account: Address = ZERO_ADDRESS
    slots: int = 1
    answer: str = "42\n"  # what its outputs contain
    usage: Milliseconds = Milliseconds(5)
    dialer: WebSocketDialer = field(init=False)
    group: asyncio.TaskGroup = field(init=False)
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    def __post_init__(self) -> None:
        place = self.floor.place
        self.account = self.key.address if self.account == ZERO_ADDRESS else self.account
        url = place.url.replace("http", "ws", 1) + "/v1/peers"
        self.dialer = WebSocketDialer(
            url,
            place.coordinator,
            self.account,
            self.key,
            self._handle,
            SystemClock(),
            retry_max=0.5,
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["WiredProvider"]:
        """Connects, offers and sends heartbeats until the block ends."""
        async with asyncio.TaskGroup() as self.group:
            self._spawn(self.dialer.run())
            async with asyncio.timeout(30):
                while not self.dialer.connected():
                    await asyncio.sleep(0.05)
            await self._offer()
            self._spawn(self._beat())
            try:
                yield self
            finally:
                for task in self.tasks:
                    task.cancel()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self.group.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send(self, frame: frames.Frame) -> None:
        place = self.floor.place
        assert (
            frames.decode(
                await self.dialer.request(place.coordinator, frames.encode(frame), ASK_SECONDS)
            )
            == frames.Ok()
        )

    async def _offer(self) -> None:
        slots = (a_slot(CPUS, 100_000, self.slots),)
        offer = an_offer(self.account, 1, int(time.time()) + 900, slots)
        sealed = seal(self.floor.place.domain, offer.signed(), self.key.sign)
        async with asyncio.timeout(30):
            while True:
                try:
                    return await self._send(frames.OfferSent(OfferEnvelope(offer, sealed)))
                except Refused as refused:  # until the coordinator has read the block of the stake
                    if refused.code is not Code.OVER_STAKE:
                        raise
                await asyncio.sleep(0.2)

    async def _beat(self) -> None:
        number = 0
        while True:
            number += 1
            now, leases = UnixSeconds(int(time.time())), self._progress()
            beat = Heartbeat(self.account, Sequence(number), (), leases, now)
            await self._send(
                frames.HeartbeatSent(seal(self.floor.place.domain, beat, self.key.sign))
            )
            await asyncio.sleep(BEAT_SECONDS)

    def _progress(self) -> tuple[LeaseProgress, ...]:
        running = sorted(self.taken - self.reveals.keys())
        return tuple(LeaseProgress(item, WorkStage.RUNNING) for item in running)

    async def _handle(self, _: str, data: bytes) -> bytes:
        match frames.decode(data):
            case frames.AssignmentSent(assignment, spec, _):
                hashed = digest(self.floor.place.domain, assignment.message)
                if hashed not in self.taken:
                    self.taken.add(hashed)
                    self._spawn(self._run(assignment.message, hashed, spec))
            case frames.CommitSetSent(assignment_hash, _):
                self._spawn(self._send(frames.RevealSent(self.reveals[assignment_hash])))
            case _:
                pass
        return frames.encode(frames.Ok())

    async def _run(self, assignment: Assignment, hashed: Hash32, spec: job_spec.JobSpec) -> None:
        domain, at = self.floor.place.domain, UnixSeconds(int(time.time()))
        await self._send(
            frames.AcceptSent(
                seal(
                    domain,
                    Accept(hashed, MACHINE.digest(), Seconds(0), Seconds(1), Seconds(0), at),
                    self.key.sign,
                )
            )
        )
        may_end = await self.floor.begin(spec.env[0].value)
        await may_end.wait()
        salt = hash_tuple("salt", self.account, hashed)
        output, cid = await self._sealed(hashed, salt)
        self.reveals[hashed] = Reveal(hashed, self.account, ExitStatus(0), output, salt)
        value = commitment(hashed, self.account, salt, result_digest(ExitStatus(0), output))
        ahead = Round(round_at(self.floor.place.beacon, int(time.time())) + 3)
        commit = Commit(hashed, class_of(spec), value, Hash32(cid.digest), self.usage, ahead)
        await self._send(frames.CommitSent(seal(domain, commit, self.key.sign)))

    async def _sealed(self, hashed: Hash32, salt: Hash32) -> tuple[Hash32, Cid]:
        """Stores an output of one file with the coordinator; returns its digest and the CID of
        its ciphertext.
        """
        folder = self.floor.folder / hashed.hex()
        folder.mkdir(parents=True)
        (folder / "result").write_text(self.answer)
        ciphertext = folder.with_suffix(".sealed")
        output, cid, _ = await asyncio.to_thread(seal_directory, folder, salt, ciphertext)
        place = self.floor.place
        headers = token(
            self.account, self.key, place.coordinator, place.chain_id, int(time.time()) + 60
        )
        stored = await upload_file(
            self.session, f"{place.url}/v1/content", ciphertext, cid, headers
        )
        return output, parse(str(stored.cid))
