"""Tests a coordinator with an old journal: it ends before it signs a sum.

Archive, chain and providers show what it has signed since the journal was copied.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from fuzz.core_world import DOMAIN, World
from quorate_coordinator.base.config import RESTORED
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Payee
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.money import payees
from quorate_coordinator.journal_comparison import JournalComparison
from quorate_coordinator.market.frame_handler import FrameHandler
from quorate_coordinator.market.frame_limits import FrameLimits
from quorate_coordinator.storage import startup_checks
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_logs import RunLogs
from quorate_node.core.debts import Debt
from quorate_node.market_entry import SignedEcho
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.refusals import Code
from quorate_protocol.rules.tabs import Tab
from quorate_protocol.units import Address, Amount, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from quorate_runtime.peers.websocket_peers import HELLO_SECONDS, WebSocketDialer, WebSocketPeers
from support.http_server import on_loopback
from support.markets.archiving_market import ArchivingMarket
from support.markets.coordinator_stage import READY_SECONDS, Stage, running, until
from support.markets.scripted_market import Party
from support.memory_archive import MemoryArchive
from support.refusals import refuses
from support.virtual_clock import VirtualClock

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


def test_what_the_chain_paid_beyond_what_was_signed_shows_an_old_journal() -> None:
    world = World(DEVNET, 5)
    state, owner = world.core.state, world.owners[0].address
    for paid, vouched, is_old in ((0, 0, False), (5, 5, False), (4, 5, False), (6, 5, True)):
        state.payees[owner] = Payee(owner, vouched=Amount(vouched), tab=Tab(paid=Amount(paid)))
        told = f"the chain paid 0x{owner.hex()}"
        older = pytest.raises(startup_checks.JournalOlder, match=told)
        with older if is_old else nullcontext():
            startup_checks.check_paid(state)


@dataclass
class FrameHandlerStage:
    """A coordinator's frame handler, and the vouchers that it was shown."""

    frame_handler: FrameHandler
    world: World
    shown: list[str]


@pytest.fixture
def frame_handler_stage() -> FrameHandlerStage:
    world, shown, nobody = World(DEVNET, 5), list[str](), cast("Any", None)
    clock, outputs = VirtualClock(float(world.at)), Outputs(world.core.state, MemoryArchive())
    rest = clock, RunLogs(), outputs, FrameLimits(DEVNET_BOUNDS, clock.now), shown.append
    handler = FrameHandler(DOMAIN, DEVNET, world.core, nobody, nobody, *rest)
    return FrameHandlerStage(handler, world, shown)


async def test_only_a_voucher_with_the_coordinators_own_signature_shows_an_old_journal(
    frame_handler_stage: FrameHandlerStage,
) -> None:
    rules, owner = frame_handler_stage.world.core.rules, frame_handler_stage.world.owners[0]

    async def show(cumulative: int, sign: Callable[..., object]) -> None:
        voucher = Voucher(rules.coordinator, owner.address, Amount(cumulative))
        frame = frames.VoucherSent(seal(DOMAIN, voucher, sign))  # type: ignore[arg-type]
        await frame_handler_stage.frame_handler("0x" + owner.address.hex(), frames.encode(frame))

    known = payees.of(frame_handler_stage.world.core.state, owner.address).vouched
    await show(known, rules.sign)
    assert frame_handler_stage.shown == []
    with refuses(Code.WRONG_SIGNER):
        await show(known + 1, owner.key.sign)
    assert frame_handler_stage.shown == []
    await show(known + 1, rules.sign)
    assert len(frame_handler_stage.shown) == 1
    assert "has shown a voucher" in frame_handler_stage.shown[0]


@pytest.mark.rule("6.88")
async def test_only_an_assignment_with_the_coordinators_own_signature_shows_an_old_journal(
    frame_handler_stage: FrameHandlerStage,
) -> None:
    """Nothing that a provider says unsigned, or signs itself, stops a coordinator (I11)."""
    world = frame_handler_stage.world
    world.everybody_is_well()
    old = world.core.snapshot()
    assert world.order(0, 1, {}, {})
    [lease] = world.leases()
    frame = frames.encode(frames.AssignmentShown(lease.assignment))
    sender = "0x" + lease.provider.hex()
    await frame_handler_stage.frame_handler(sender, frame)
    assert frame_handler_stage.shown == [], "its own journal has it"
    later = replace(lease.assignment.message, accept_by=UnixSeconds(2**40))
    own = frames.AssignmentShown(seal(DOMAIN, later, world.owners[0].key.sign))
    with refuses(Code.WRONG_SIGNER):
        await frame_handler_stage.frame_handler(sender, frames.encode(own))
    assert frame_handler_stage.shown == []
    world.core.state.restore(old)
    await frame_handler_stage.frame_handler(sender, frame)
    assert "has shown an Assignment" in frame_handler_stage.shown[0]


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


async def test_a_provider_sends_its_newest_voucher_at_each_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate_node.market_entry.POLL_SECONDS", 0.01)
    newest: list[Envelope[Voucher]] = []
    taken: list[bytes] = []

    async def ignore(_: str, frame: bytes) -> bytes:
        return frame

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(taken) < count:
                await asyncio.sleep(0.01)

    voucher = Voucher(SERVER, PROVIDER.address, Amount(5))
    newest.append(seal(DOMAIN, voucher, KeySigner(b"\x02" * 32).sign))
    async with listening(taken) as url:
        dialer = WebSocketDialer(
            url, SERVER, PROVIDER.address, PROVIDER, ignore, SystemClock(), retry_max=0.01
        )
        showing = SignedEcho(lambda _: Debt(voucher=newest[-1]), {SERVER: dialer}, SystemClock())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(dialer.run()), group.create_task(showing.run())]
            for count in (1, 2):
                await until(count)
                assert taken == [frames.encode(frames.VoucherSent(newest[0]))] * count, (
                    "once a connection"
                )
                assert dialer._ws is not None
                await dialer._ws.close()
            await until(3)
            for task in tasks:
                task.cancel()


def test_a_start_that_ended_because_of_newer_vouchers_leaves_the_journal_old() -> None:
    """The next start must notice the old journal too. Once it trusted its journal after a restart,
    heard no provider, and signed lower sums.
    """
    world = World(DEVNET, 5)
    core, now, may_be_older = world.core, world.at, startup_checks.may_be_older
    assert not may_be_older(core.state.own, 0, now), "nothing was ever done here"
    assert not may_be_older(core.state.own, now - 5, now), "a crash"
    assert may_be_older(core.state.own, now - 3600, now), "a backup, or a long time away"
    assert world.send(ev.Restarted())
    for _ in range(2):
        assert may_be_older(restored(core.snapshot()).own, now, now), "and the one after it"
        assert world.send(ev.Restarted())
    assert world.send(ev.Compared())
    assert not may_be_older(core.state.own, now, now)


@pytest.mark.parametrize("may_be_older", [False, True])
async def test_a_start_waits_for_vouchers_as_long_as_a_provider_may_need_to_reconnect(
    may_be_older: bool,
) -> None:
    """A provider pauses for up to one and a half heartbeats between two tries. The coordinator
    once waited for one heartbeat.
    """
    clock, nobody = VirtualClock(0.0), cast("Any", None)
    core = cast("Any", SimpleNamespace(rules=SimpleNamespace(limits=MAINNET)))
    comparison = JournalComparison(nobody, core, *[nobody] * 4, clock, nobody)
    comparison.may_be_older = may_be_older
    comparison.compared.set()
    await comparison.wait()
    assert (
        clock.elapsed >= 1.5 * MAINNET.heartbeat_every + HELLO_SECONDS
        if may_be_older
        else clock.elapsed == 0
    )


@pytest.mark.rule("6.88")
async def test_orders_get_503_while_the_journal_may_be_old(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions and vouchers of earlier orders are taken all the time."""
    compared = asyncio.Event()
    monkeypatch.setattr(JournalComparison, "wait", lambda _: compared.wait())
    stage.home.mkdir(mode=0o700)
    (stage.home / RESTORED).touch()
    async with running(stage.service()) as service:

        async def post(path: str) -> tuple[int, str, str]:
            async with stage.session.post(f"{service.url}/v1/{path}", data=b"{}") as response:
                retry = response.headers.get("Retry-After", "")
                return response.status, (await response.json())["code"], retry

        assert await post("orders") == (503, "unavailable", "5")
        for path in ("sessions", "vouchers"):
            assert (await post(path))[:2] == (400, "malformed"), path
        async with stage.session.get(f"{service.url}/v1/info") as response:
            assert response.status == 200
        compared.set()
        taken = await until(lambda: post("orders"), lambda answer: answer[0] != 503)
        assert taken[:2] == (400, "malformed")
    assert not (stage.home / RESTORED).exists()


@pytest.mark.rule("6.88")
async def test_a_service_ends_once_a_provider_has_shown_what_its_journal_lacks(
    stage: Stage,
) -> None:
    """So of two coordinators with one key each ends that meets a provider of the other."""
    service = stage.service()
    task = asyncio.create_task(service.run())
    async with asyncio.timeout(READY_SECONDS):
        await service.ready.wait()
        assert service.comparison is not None
        service.comparison.show("a provider has shown a voucher")
        with pytest.raises(ExceptionGroup) as caught:
            await task
    assert caught.group_contains(startup_checks.JournalOlder, match="a provider has shown")
