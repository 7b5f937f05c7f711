"""Tests a coordinator with an old journal: it ends before it signs a sum.

Archive, chain and providers show what it has signed since the journal was copied.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from fuzz.core_world import DOMAIN, World
from quorate_coordinator.core import events as ev
from quorate_coordinator.core.effects import Effect
from quorate_coordinator.core.state import State
from quorate_coordinator.journal_comparison import JournalComparison
from quorate_coordinator.providers.frame_handler import FrameHandler
from quorate_coordinator.providers.frame_limits import FrameLimits
from quorate_coordinator.request_limits import DEVNET_BOUNDS
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.archive import MemoryArchive
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_node.messaging.statement_echo import StatementEcho
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Statement
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Address, Amount, BlockNumber, Sequence, UnixSeconds
from quorate_runtime.actor.actor import Actor
from quorate_runtime.chain.send_records import Attempt, SendRecord, SendRecords
from quorate_runtime.clock import SystemClock, VirtualClock
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.peers.websocket_peers import HELLO_SECONDS, WebSocketDialer, WebSocketPeers
from support.http_server import on_loopback
from support.markets.archiving_market import ArchivingMarket
from support.markets.scripted_market import Party

SERVER, PROVIDER = Address(b"\xcc" * 20), KeySigner(b"\x01" * 32)


def restored(data: bytes) -> State:
    state = State()
    state.restore(data)
    return state


def test_runs_that_only_the_archive_knows_as_over_show_an_old_journal() -> None:
    market = ArchivingMarket(*[Party(number) for number in range(5)])
    core, archive = market.core, market.archive
    startup_checks.check_archive(core.state, archive)
    before = core.snapshot()
    job_id = market.order(0, 1)
    running = core.snapshot()
    market.is_archive_down = True
    while not market.waiting:
        market.beat()
    market.write()
    startup_checks.check_archive(
        core.state, archive
    )  # the archive wrote it, and the state did not hear of it because of a crash
    startup_checks.check_archive(restored(core.snapshot()), archive)
    market.perform_archive()
    assert job_id not in core.state.jobs
    startup_checks.check_archive(core.state, archive)
    for old in (before, running):
        with pytest.raises(
            startup_checks.JournalOlder,
            match=f"run 0x{job_id.hex()} is over in the archive.*newest journal",
        ):
            startup_checks.check_archive(restored(old), archive)


def test_unknown_epochs_on_the_chain_show_an_old_journal(tmp_path: Path) -> None:
    path = tmp_path / "transactions.sqlite"
    outbox = SendRecords(path, b"chain", SERVER)
    outbox.add(
        SendRecord("epoch-4-1700000000", 0, SERVER, b"", 0, 1, (Attempt(ZERO_HASH, b"raw", 2, 1),))
    )
    outbox.close()
    for newest, known in ((0, 0), (3, 3), (3, 4), (4, 3)):
        startup_checks.check_chain(
            newest, known, path, SERVER
        )  # the last number was given up or removed, and mined after all
    for newest, known in ((1, 0), (4, 2), (5, 4), (40, 3)):
        with pytest.raises(
            startup_checks.JournalOlder,
            match=f"epoch {newest} of this.*journal knows {known or 'none'}.*orders are lost",
        ):
            startup_checks.check_chain(newest, known, path, SERVER)
    with pytest.raises(startup_checks.JournalOlder):
        startup_checks.check_chain(4, 3, path, PROVIDER.address)


@dataclass
class FrameHandlerStage:
    """A coordinator's frame handler, and the statements that it was shown."""

    frame_handler: FrameHandler
    world: World
    shown: list[str]


@pytest.fixture
async def frame_handler_stage() -> AsyncIterator[FrameHandlerStage]:
    world, shown = World(DEVNET, 5), list[str]()
    clock = VirtualClock(float(world.at))
    tolerance, outputs = (
        FrameLimits(DEVNET_BOUNDS, clock.now),
        Outputs(world.core.state, MemoryArchive()),
    )
    actor = cast("Actor[ev.Event, Effect]", None)
    store = cast("FrameHandler", None)
    yield FrameHandlerStage(
        FrameHandler(
            DOMAIN,
            DEVNET,
            world.core,
            actor,
            store,
            clock,
            RunLogs(),
            outputs,
            tolerance,
            shown.append,
        ),
        world,
        shown,
    )  # type: ignore[arg-type]


async def test_only_a_statement_with_the_coordinators_own_signature_shows_an_old_journal(
    frame_handler_stage: FrameHandlerStage,
) -> None:
    rules, owner = frame_handler_stage.world.core.rules, frame_handler_stage.world.owners[0]

    async def show(seq: int, sign: Callable[..., object]) -> None:
        statement = Statement(
            owner.address, Amount(5), Amount(0), Sequence(1), Sequence(seq), ZERO_HASH
        )
        frame = frames.StatementSent(seal(DOMAIN, statement, sign))  # type: ignore[arg-type]
        await frame_handler_stage.frame_handler("0x" + owner.address.hex(), frames.encode(frame))

    known = frame_handler_stage.world.core.state.providers[owner.address].statement_seq
    await show(known, rules.sign)
    assert frame_handler_stage.shown == []
    with pytest.raises(Refused) as refused:
        await show(known + 1, owner.key.sign)
    assert refused.value.code is Code.WRONG_SIGNER and frame_handler_stage.shown == []
    await show(known + 1, rules.sign)
    assert (
        len(frame_handler_stage.shown) == 1
        and f"its statement {known + 1}, and the journal knows {known}"
        in frame_handler_stage.shown[0]
    )


@asynccontextmanager
async def listening(taken: list[bytes]) -> AsyncIterator[str]:
    async def handle(_: str, frame: bytes) -> bytes:
        taken.append(frame)
        return frames.encode(frames.Ok())

    async def authorize(_: Address, key: Address) -> bool:
        return key == PROVIDER.address

    app, server = web.Application(), WebSocketPeers(SERVER, handle, authorize)
    app.router.add_routes(server.routes())
    async with on_loopback(app) as url:
        try:
            yield f"{url.replace('http', 'ws', 1)}/v1/peers"
        finally:
            await server.close()


async def test_a_provider_sends_its_newest_statement_at_each_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate_node.messaging.statement_echo.POLL_SECONDS", 0.01)
    newest: list[Envelope[Statement]] = []
    taken: list[bytes] = []

    async def ignore(_: str, frame: bytes) -> bytes:
        return frame

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(taken) < count:
                await asyncio.sleep(0.01)

    statement = Statement(
        PROVIDER.address, Amount(5), Amount(0), Sequence(1), Sequence(7), ZERO_HASH
    )
    newest.append(seal(DOMAIN, statement, KeySigner(b"\x02" * 32).sign))
    async with listening(taken) as url:
        dialer = WebSocketDialer(
            url, SERVER, PROVIDER.address, PROVIDER, ignore, SystemClock(), retry_max=0.01
        )
        showing = StatementEcho(lambda _: newest[-1], {SERVER: dialer}, SystemClock())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(dialer.run()), group.create_task(showing.run())]
            for count in (1, 2):
                await until(count)
                assert taken == [frames.encode(frames.StatementSent(newest[0]))] * count, (
                    "once a connection"
                )
                assert dialer._ws is not None
                await dialer._ws.close()
            await until(3)
            for task in tasks:
                task.cancel()


def test_a_start_that_ended_because_of_newer_statements_leaves_the_journal_old() -> None:
    """The next start must notice the old journal too.

    Once a coordinator learned its epoch from the chain's logs, ended, and was started again at
    once. It then trusted its journal, heard no provider, and signed lower sums.
    """
    world = World(DEVNET, 5)
    core, now = world.core, world.at
    assert startup_checks.JournalAtStart.of(
        core.state.own, 0, now
    ) == startup_checks.JournalAtStart(0, False), "nothing was ever done here"
    assert startup_checks.JournalAtStart.of(
        core.state.own, now - 5, now
    ) == startup_checks.JournalAtStart(0, False), "a crash"
    assert startup_checks.JournalAtStart.of(
        core.state.own, now - 3600, now
    ) == startup_checks.JournalAtStart(0, True), "a backup, or a long time away"
    assert world.send(ev.Restarted())
    assert startup_checks.JournalAtStart.of(
        core.state.own, now - 5, now
    ) == startup_checks.JournalAtStart(0, False), "as an older program left it, which noted nothing"
    assert world.send(ev.Compared())
    assert world.send(ev.Restarted())
    assert world.send(
        ev.ChainAdvanced(
            BlockNumber(10**6), ZERO_HASH, UnixSeconds(now), (ev.ChainEpochPosted(7, ZERO_HASH),)
        )
    )
    assert core.state.own.epoch == 7
    for _ in range(2):
        again = startup_checks.JournalAtStart.of(restored(core.snapshot()).own, now, now)
        assert again == startup_checks.JournalAtStart(0, True), (
            "and the next start, and the one after it"
        )
        assert world.send(ev.Restarted())
    assert world.send(ev.Compared())
    assert startup_checks.JournalAtStart.of(
        core.state.own, now, now
    ) == startup_checks.JournalAtStart(7, False)


@pytest.mark.parametrize("may_be_older", [False, True])
async def test_a_start_waits_for_statements_as_long_as_a_provider_may_need_to_reconnect(
    may_be_older: bool,
) -> None:
    """A provider pauses for up to one and a half heartbeats between two tries. The coordinator
    once waited for one heartbeat.
    """
    clock, nobody = VirtualClock(0.0), cast("Any", None)
    core = cast("Any", SimpleNamespace(rules=SimpleNamespace(limits=MAINNET)))
    comparison = JournalComparison(nobody, core, nobody, nobody, nobody, nobody, clock)
    comparison.found = startup_checks.JournalAtStart(0, may_be_older)
    comparison.compared.set()
    await comparison.wait()
    assert (
        clock.elapsed >= 1.5 * MAINNET.heartbeat_every + HELLO_SECONDS
        if may_be_older
        else clock.elapsed == 0
    )
