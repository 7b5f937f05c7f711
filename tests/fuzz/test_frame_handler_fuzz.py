"""Tests the frame handler, before a real actor, with frames of a hostile registered provider.

The answer must be Ok or a typed refusal.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fuzz.core_world import CODEC, DOMAIN, Owner, World
from quorate_content.store.content_store import ContentStore
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.jobs import orders
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Effect
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames as frames_module
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Accept, Commit, Stop
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Hash32, Milliseconds, Round, Seconds, UnixSeconds
from quorate_runtime.actor.actor import Actor
from quorate_runtime.keys.crypto import new_secret
from support.fuzz_properties import COUNTS, codec_inputs
from support.journal.memory_journal import MemoryDisk, MemoryJournal
from support.memory_archive import MemoryArchive
from support.offers import machine_of
from support.value_strategies import values_of
from support.virtual_clock import VirtualClock

EXAMPLES = 60 * int(os.environ.get("QUORATE_FUZZ", "1"))


@dataclass
class HandlerSetup:
    """A frame handler with everything behind it except the network."""

    world: World
    frame_handler: FrameHandler
    outputs: Outputs

    async def take(self, sender: str, data: bytes) -> None:
        """Takes one frame; every exception except the two typed errors fails the test."""
        try:
            async with asyncio.timeout(10):
                assert await self.frame_handler(sender, data) == frames_module.encode(
                    frames_module.Ok()
                )
        except (Refused, Unavailable):
            return

    async def commit(self, lease: leases.Lease, owner: Owner, digest: Hash32) -> None:
        """Accepts, and commits to a ciphertext."""
        at = UnixSeconds(self.world.at)
        host = machine_of(self.world.pool_of(lease)).digest()
        accept = Accept(lease.assignment_hash, host, Seconds(0), Seconds(1), Seconds(0), at)
        await self.frame_handler(
            "0x" + owner.address.hex(),
            frames_module.encode(frames_module.AcceptSent(seal(DOMAIN, accept, owner.key.sign))),
        )
        commit = Commit(
            lease.assignment_hash,
            self.world.class_of(lease),
            Hash32(b"\x07" * 32),
            digest,
            Milliseconds(5),
            Round(0),
        )
        await self.frame_handler(
            "0x" + owner.address.hex(),
            frames_module.encode(frames_module.CommitSent(seal(DOMAIN, commit, owner.key.sign))),
        )


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[HandlerSetup]:
    world = World(DEVNET, 5)
    clock = VirtualClock(float(world.at))

    async def perform(_: Effect) -> None:
        return

    actor: Actor[ev.Event, Effect] = Actor(
        world.core, MemoryJournal(MemoryDisk()), clock, CODEC, new_secret
    )
    actor.bind(perform)
    await actor.start()
    running = asyncio.create_task(actor.run())
    store = ContentStore(tmp_path / "store", 64 << 20)
    outputs = Outputs(world.core.state, MemoryArchive())
    tolerance = FrameLimits(DEVNET_BOUNDS, clock.now)
    yield HandlerSetup(
        world,
        FrameHandler(
            DOMAIN, DEVNET, world.core, actor, store, clock, RunLogs(), outputs, tolerance
        ),
        outputs,
    )
    assert not running.done(), "the actor died"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()


@pytest.mark.rule("3.8")
async def test_no_frame_ends_the_actor(stand: HandlerSetup) -> None:
    stand.world.order(0, 1, {}, {})
    lease = stand.world.leases()[-1]
    frames: list[Any] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
    )
    @given(values_of(frames_module.Frame), codec_inputs())
    def collect(frame: Any, data: bytes) -> None:
        frames.extend([frames_module.encode(frame), data])

    collect()
    senders = ["0x" + owner.address.hex() for owner in stand.world.owners] + ["0x", "nobody"]
    COUNTS["frames"] += len(frames)
    for number, data in enumerate(frames):
        await stand.take(f"{senders[number % len(senders)]}", data)
    for text in (b"x" * frames_module.LOG_TEXT_MAX, b"x" * (frames_module.LOG_TEXT_MAX + 1)):
        await stand.take(
            "0x" + lease.provider.hex(),
            frames_module.encode(frames_module.LogsSent(lease.assignment_hash, 0, text)),
        )


async def test_a_flood_of_refused_frames_is_slowed_down_for_its_sender_alone(
    stand: HandlerSetup,
) -> None:
    bad, good = ("0x" + owner.address.hex() for owner in stand.world.owners[:2])
    told: list[type] = []
    for _ in range(int(DEVNET_BOUNDS.offences_burst) + 5):
        try:
            await stand.frame_handler(bad, b"nonsense")
        except (Refused, Unavailable) as error:
            told.append(type(error))
    assert told[0] is Refused and told[-1] is Unavailable
    with pytest.raises(Refused):
        await stand.frame_handler(good, b"nonsense")


def test_one_client_cannot_take_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "JOBS_PER_CLIENT_MAX", 3)
    world = World(DEVNET, 5)
    assert all(world.order(0, nonce, {}, {}) for nonce in range(1, 4))
    assert not world.order(0, 4, {}, {}), "all of its places are taken"
    assert world.order(1, 1, {}, {}), "another client does not notice"
    first, second, third = (job.id for job in world.jobs()[:3])
    key = world.sessions[0]
    lease = world.leases()[1]
    assert lease.job_id == second
    assert world.send(
        ev.StopReceived(seal(DOMAIN, Stop(second, UnixSeconds(world.at)), key.sign), key.address)
    )
    assert world.order(0, 5, {}, {}), "what is over makes room, although an older one is under way"
    live = world.core.state.live
    assert world.core.state.clients[world.clients[0].address].under_way == 3
    assert first in live and third in live and second not in live


async def test_only_its_client_and_its_provider_read_an_output(stand: HandlerSetup) -> None:
    world = stand.world
    stat = await stand.frame_handler.store.put(b"sealed" * 100, "x")
    digest = Hash32(stat.cid.digest)
    assert not stand.outputs.may_read(digest, None), "before it is committed to, it is nobody's"
    assert world.order(0, 1, {}, {}) and world.order(1, 2, {}, {})
    first, second = (item for item in world.leases() if isinstance(item.phase, leases.Assigned))
    await stand.commit(first, world.owner_of(first), digest)
    client = world.core.state.jobs[first.job_id].submission.order.message.client
    other = world.core.state.jobs[second.job_id].submission.order.message.client
    for account, may in (
        (client, False),  # until it is charged
        (first.provider, True),
        (other, False),
        (second.provider, False),
        (None, False),
    ):
        assert stand.outputs.may_read(digest, account) is may
    with pytest.raises(Refused) as refused:
        await stand.commit(second, world.owner_of(second), digest)
    assert refused.value.code is Code.EQUIVOCATION, (
        "committing to somebody else's ciphertext must not open it"
    )
    assert not stand.outputs.may_read(digest, other)
    again = Outputs(world.core.state, MemoryArchive())
    again.load()
    assert again.by_digest == stand.outputs.by_digest == {digest: first.assignment_hash}, (
        "the same after a restart"
    )
