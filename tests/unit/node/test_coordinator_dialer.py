"""The connection to one coordinator: libp2p where it works, with WebSocket as stand-in."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from quorate_node.market.coordinator_dialer import (
    LIBP2P,
    REFRESH_SECONDS,
    WEBSOCKET,
    CoordinatorDialer,
)
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Seconds
from support.virtual_clock import VirtualClock, run_virtual

COORDINATOR, PATIENCE = Address(b"\x21" * 20), 3.0


@dataclass
class Line:
    """A connection over one transport (`Dialer`), up and down as the test says."""

    name: bytes
    connections: int = 0
    is_running: bool = False
    is_up: bool = False
    bug: Exception | None = None
    asked: int = 0

    async def run(self) -> None:
        self.is_running = True
        try:
            while self.bug is None:
                await asyncio.sleep(0.1)
            raise self.bug
        finally:
            self.is_running = self.is_up = False

    def connect(self, is_up: bool = True) -> None:
        self.connections += is_up
        self.is_up = is_up

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        self.asked += 1
        return self.name

    def connected(self) -> frozenset[Address]:
        return frozenset([COORDINATOR]) if self.is_up else frozenset()

    async def close(self) -> None:
        """Holds nothing."""


@dataclass
class Lines:
    """A dialer under test with its lines. Each WebSocket line is a new one."""

    clock: VirtualClock
    libp2p: Line = field(default_factory=lambda: Line(b"libp2p"))
    websockets: list[Line] = field(default_factory=list)
    refreshed: int = 0

    def dialer(self, has_libp2p: bool = True, has_websocket: bool = True) -> CoordinatorDialer:
        return CoordinatorDialer(
            COORDINATOR,
            self.new_websocket if has_websocket else None,
            self.libp2p if has_libp2p else None,
            self.clock,
            PATIENCE,
            self.refresh,
        )

    def new_websocket(self) -> Line:
        self.websockets.append(Line(b"websocket"))
        return self.websockets[-1]

    async def refresh(self) -> None:
        self.refreshed += 1


def on_lines(
    test: Callable[[Lines, CoordinatorDialer], Awaitable[None]],
    has_libp2p: bool = True,
    has_websocket: bool = True,
) -> None:
    async def main(clock: VirtualClock) -> None:
        lines = Lines(clock)
        dialer = lines.dialer(has_libp2p, has_websocket)
        task = asyncio.create_task(dialer.run())
        try:
            await test(lines, dialer)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert not lines.libp2p.is_running
        assert not any(line.is_running for line in lines.websockets)

    run_virtual(main)


async def ask(dialer: CoordinatorDialer) -> bytes:
    return await dialer.request(COORDINATOR, b"", Seconds(1))


def test_websocket_stands_in_only_while_libp2p_does_not_get_through() -> None:
    async def test(lines: Lines, dialer: CoordinatorDialer) -> None:
        await lines.clock.sleep(PATIENCE - 1)
        assert lines.websockets == [] and dialer.transport == "" and not dialer.connected()
        with pytest.raises(Unavailable, match="not connected"):
            await ask(dialer)
        await lines.clock.sleep(2)
        [stand_in] = lines.websockets
        assert stand_in.is_running and lines.libp2p.is_running
        stand_in.connect()
        assert (dialer.transport, await ask(dialer)) == (WEBSOCKET, b"websocket")
        assert dialer.connected() == {COORDINATOR} and dialer.connections == 1
        lines.libp2p.connect()
        assert (dialer.transport, await ask(dialer)) == (LIBP2P, b"libp2p")
        await lines.clock.sleep(1)
        assert not stand_in.is_running and dialer.connections == 2, "the count never falls"
        await lines.clock.sleep(1000)
        assert len(lines.websockets) == 1

    on_lines(test)


def test_short_break_of_libp2p_needs_no_stand_in_and_a_long_one_gets_a_new_one() -> None:
    async def test(lines: Lines, dialer: CoordinatorDialer) -> None:
        lines.libp2p.connect()
        await lines.clock.sleep(10)
        for _ in range(20):
            lines.libp2p.connect(is_up=False)
            await lines.clock.sleep(PATIENCE - 1)
            lines.libp2p.connect()
            await lines.clock.sleep(1)
        assert lines.websockets == [] and dialer.connections == 21
        for count in (1, 2):
            lines.libp2p.connect(is_up=False)
            await lines.clock.sleep(PATIENCE + 1)
            lines.websockets[-1].connect()
            assert len(lines.websockets) == count and dialer.transport == WEBSOCKET
            lines.libp2p.connect()
            await lines.clock.sleep(1)
        assert dialer.connections == 25

    on_lines(test)


def test_address_of_the_coordinator_is_asked_for_again_while_libp2p_fails() -> None:
    async def test(lines: Lines, dialer: CoordinatorDialer) -> None:
        await lines.clock.sleep(PATIENCE + 3.5 * REFRESH_SECONDS)
        assert lines.refreshed == 3
        lines.libp2p.connect()
        await lines.clock.sleep(10 * REFRESH_SECONDS)
        assert lines.refreshed == 3

    on_lines(test)


def test_provider_without_libp2p_uses_websocket_at_once() -> None:
    async def test(lines: Lines, dialer: CoordinatorDialer) -> None:
        await lines.clock.sleep(0.1)
        lines.websockets[0].connect()
        assert dialer.transport == WEBSOCKET and not lines.libp2p.is_running

    on_lines(test, has_libp2p=False)


def test_provider_that_insists_on_libp2p_never_uses_websocket() -> None:
    async def test(lines: Lines, dialer: CoordinatorDialer) -> None:
        await lines.clock.sleep(1000)
        assert lines.libp2p.is_running and lines.websockets == [] and dialer.transport == ""

    on_lines(test, has_websocket=False)


@pytest.mark.parametrize("is_stand_in", [True, False])
def test_bug_of_a_frame_handler_ends_the_dialer(is_stand_in: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        lines = Lines(clock)
        task = asyncio.create_task(lines.dialer().run())
        await clock.sleep(PATIENCE + 1)
        line = lines.websockets[0] if is_stand_in else lines.libp2p
        line.bug = ZeroDivisionError()
        with pytest.raises(ExceptionGroup) as group:
            await task
        assert group.value.subgroup(ZeroDivisionError) is not None

    run_virtual(main)
