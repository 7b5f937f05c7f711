"""A provider and a coordinator name their problems and end in order.

Operators and service managers act on both.
"""

import asyncio
import logging
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from quorate_node.core import events
from quorate_node.status.node_gateway import TOKEN_HEADER, control_token
from quorate_protocol.messages import frames
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import UnixSeconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.process import health, logs
from quorate_runtime.process.health import Board, chain_problem, disk_problem, silence_problem
from quorate_runtime.process.shutdown import serve_until_signal
from quorate_runtime.process.systemd_notify import Notifier
from support.markets.coordinator_stage import Stage as CoordinatorStage
from support.markets.coordinator_stage import running as running_service
from support.markets.scripted_coordinator import Stage, running, until


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


# -------------------------------------------------------------------------------------------- parts


def test_the_board_keeps_the_newest_problem_of_each_part() -> None:
    board = Board()
    board.put("engine", "away\nfor a while")
    board.put("chain", "old")
    board.put("chain", "older")
    assert [(item.name, item.text) for item in board.problems()] == [
        ("chain", "older"),
        ("engine", "away for a while"),
    ]
    board.put("engine")
    board.put("chain", "")
    assert board.problems() == ()


def test_a_late_chain_and_a_full_disk_are_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SystemClock()
    now = int(clock.now())
    assert not silence_problem(clock, now - 15, "http://c")
    assert "http://c has not answered for 25 s" in silence_problem(clock, now - 25, "http://c")
    assert "no block" in chain_problem(clock, UnixSeconds(0), "http://c")
    assert "s old; look at the chain node at http://c" in chain_problem(
        clock, UnixSeconds(now - 90), "http://c"
    )
    assert chain_problem(clock, UnixSeconds(now - 5), "http://c") == ""
    assert disk_problem(tmp_path) == ""
    assert "cannot be read" in disk_problem(tmp_path / "nowhere")
    monkeypatch.setattr(health, "DISK_BYTES_LEAST", 1 << 62)
    assert "free some" in disk_problem(tmp_path)


async def test_the_service_manager_gets_datagrams(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        notifier = Notifier(
            {
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": "40000",
                "WATCHDOG_PID": str(os.getpid()),
            }
        )
        notifier.ready("serves at\nhttp://x")
        assert manager.recv(1000) == b"READY=1\nSTATUS=serves at http://x"
        watching = asyncio.create_task(notifier.watch(SystemClock()))
        for _ in range(3):
            assert await asyncio.to_thread(manager.recv, 1000) == b"WATCHDOG=1"
        watching.cancel()
        notifier.stopping()
        told = [manager.recv(1000)]
        while told[-1] == b"WATCHDOG=1":
            told.append(manager.recv(1000))
        assert told[-1] == b"STOPPING=1"


async def test_a_missing_service_manager_is_no_failure(tmp_path: Path) -> None:
    for environment in (
        {"NOTIFY_SOCKET": str(tmp_path / "gone")},
        {"NOTIFY_SOCKET": "relative"},
        {},
    ):
        notifier = Notifier(environment)
        notifier.ready("x")
        await asyncio.wait_for(notifier.watch(SystemClock()), 5)


def test_a_log_file_turns_over_and_stays_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root_logger: logging.Logger
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 2000)
    logs.setup(is_json=True, file=tmp_path / "log" / "node.log")
    for number in range(200):
        root_logger.info("line %d %s", number, "x" * 80)
    kept = sorted((tmp_path / "log").iterdir())
    assert [path.name for path in kept] == [
        "node.log",
        *(f"node.log.{number}" for number in range(1, logs.FILES_KEPT + 1)),
    ]
    assert all(
        path.stat().st_size <= 2000 and stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept
    )
    assert "line 199 " in kept[0].read_text()


# ----------------------------------------------------------------------------------------- stopping


async def run_for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("run")


async def test_the_first_signal_shuts_down_in_order() -> None:
    ended: list[str] = []

    async def leave() -> None:
        ended.append("leave")

    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(serve_until_signal(run_for_ever(ended), leave, 30), 20)
    assert ended == ["leave", "run"]


@pytest.mark.parametrize(("seconds", "signals"), [(0.2, 1), (600.0, 2)])
async def test_shutdown_is_bounded_and_a_second_signal_ends_it(
    seconds: float, signals: int
) -> None:
    ended: list[str] = []

    async def never() -> None:
        await asyncio.Event().wait()

    for number in range(signals):
        asyncio.get_running_loop().call_later(
            0.05 + 0.1 * number, os.kill, os.getpid(), signal.SIGTERM
        )
    assert await asyncio.wait_for(serve_until_signal(run_for_ever(ended), never, seconds), 20)
    assert ended == ["run"]


async def test_an_error_is_not_taken_for_a_signal() -> None:
    async def broken() -> None:
        raise Unavailable("no journal")

    async def leave() -> None:
        raise AssertionError("nobody asked it to")

    with pytest.raises(Unavailable, match="no journal"):
        await serve_until_signal(broken(), leave, 1)


# ------------------------------------------------------------------------------------- the provider


async def named(daemon_url: str) -> tuple[int, list[str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{daemon_url}/v1/ready") as response,
    ):
        tree = await response.json()
        assert tree["ready"] is (response.status == 200)
        return response.status, tree["problems"]


async def test_a_provider_reports_which_part_is_away(
    market: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate_node.periodic.CHECK_SECONDS", 0.1)
    daemon = market.daemon(market.coordinator.url)

    async def problems(wanted: set[str]) -> bool | None:
        return True if set((await named(daemon.url))[1]) == wanted else None

    async with running(market, daemon):
        limit = asyncio.get_running_loop().time() + 30
        while not await problems(set()):
            assert asyncio.get_running_loop().time() < limit, await named(daemon.url)
            await asyncio.sleep(0.05)

        async def away() -> None:
            raise Unavailable("the engine sleeps")

        monkeypatch.setattr(daemon.executor, "leases", away)
        while not await problems({"engine"}):
            assert asyncio.get_running_loop().time() < limit, await named(daemon.url)
            await asyncio.sleep(0.05)
        assert [item.text for item in daemon.board.problems()] == ["the engine sleeps"]


async def test_a_draining_provider_takes_no_jobs_until_its_next_start(market: Stage) -> None:
    first = market.daemon(market.coordinator.url)

    async def offered(is_withdrawn: bool) -> None:
        await until(
            lambda: (
                True if (sent := expiries()) and (sent[-1] == WITHDRAWN) is is_withdrawn else None
            )
        )

    def expiries() -> list[int]:
        return [frame.offer.offer.expires for frame in market.coordinator.got(frames.OfferSent)]

    async with running(market, first):
        assert first.drain is not None and first.core is not None
        await offered(False)
        async with aiohttp.ClientSession(
            headers={TOKEN_HEADER: control_token(first.config.home)}
        ) as owner:
            for query, is_withdrawn in (("", True), ("?off=1", False)):
                async with owner.post(f"{first.url}/v1/drain{query}") as response:
                    assert response.status == 200
                await offered(is_withdrawn)
        (first.config.home / "stopping").touch()
        draining = asyncio.create_task(first.drain.drain_for_exit())
        await until(lambda: True if draining.done() else None)
        await draining
        assert (
            not first.core.scalars.is_draining and not (first.config.home / "stopping").exists()
        ), "it has drained: nothing ran"
        await first.leave()
        assert "stopping" in {item.name for item in first.board.problems()}
        assert first.core.scalars.is_draining and expiries()[-1] == WITHDRAWN, (
            "told when it ends, however short its outbox had"
        )
    second = market.daemon(market.coordinator.url)
    async with running(market, second):
        assert second.core is not None and not second.core.scalars.is_draining
        await offered(False)


async def test_a_provider_killed_while_draining_takes_jobs_after_its_next_start(
    market: Stage,
) -> None:
    first = market.daemon(market.coordinator.url)
    async with running(market, first):
        assert first.drain is not None and first.core is not None
        await first.drain.actor.submit(events.DrainRequested(True))
        (first.config.home / "stopping").touch()  # as the crash left it
    second = market.daemon(market.coordinator.url)
    async with running(market, second):
        assert second.core is not None and not second.core.scalars.is_draining


# ---------------------------------------------------------------------------------- the coordinator


async def get(url: str) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.json()


async def test_a_coordinator_reports_what_is_away_and_takes_no_orders_while_it_ends(
    stage: CoordinatorStage,
) -> None:
    async with running_service(stage.service()) as service:
        limit = asyncio.get_running_loop().time() + 30
        while (await get(f"{service.url}/v1/ready"))[0] != 200:
            assert asyncio.get_running_loop().time() < limit, await get(f"{service.url}/v1/health")
            await asyncio.sleep(0.1)
        service.board.put("beacon", "it sleeps")
        status, told = await get(f"{service.url}/v1/ready")
        assert (status, told["code"], told["detail"]) == (503, "unavailable", "beacon: it sleeps")
        status, told = await get(f"{service.url}/v1/health")
        assert (
            status == 200
            and told["ok"] is False
            and told["problems"] == [{"name": "beacon", "text": "it sleeps"}]
        )

        async with asyncio.timeout(20):
            await service.leave()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{service.url}/v1/orders", json={}) as response,
        ):
            assert response.status == 503 and "stopping" in (await response.json())["detail"]
        assert (await get(f"{service.url}/v1/info"))[0] == 200, "questions are still answered"


async def test_a_clock_that_was_ahead_is_a_problem_until_it_has_caught_up(
    stage: CoordinatorStage,
) -> None:
    ahead, service = 3600.0, stage.service()
    service.clock = SystemClock(lambda: time.time() + ahead, doubt_seconds=0)
    async with running_service(service):
        ahead = 0.0
        status, told = await get(f"{service.url}/v1/ready")
        assert status == 503 and "; clock: the clock is " in f"; {told['detail']}"
        assert "s behind the journal: no deadline passes" in str(told["detail"])
        ahead = 3700.0
        _, told = await get(f"{service.url}/v1/ready")
        assert "the journal" not in str(told["detail"]), "it has caught up"
