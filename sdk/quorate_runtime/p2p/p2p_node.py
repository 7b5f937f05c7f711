"""A libp2p host for an asyncio program: kept running, restarted with the same key after a crash."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32, Seconds
from quorate_runtime.keys.crypto import PeerKey
from quorate_runtime.p2p.host.guarded_pubsub import Intake
from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress
from quorate_runtime.p2p.host.host_session import HostSession, host_session
from quorate_runtime.p2p.host.stream_socket import StreamSocket
from quorate_runtime.p2p.host.trio_thread import TrioThread
from quorate_runtime.process.shield import finish_before_cancel

RESTART_FIRST_SECONDS, RESTART_MAX_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0  # a host that ran so long restarts at once
CONVERSATIONS_MAX = 4096  # inbound streams at a time

Converse = Callable[[StreamSocket], Awaitable[None]]
"""Serves one inbound stream and returns when it has ended."""

R = TypeVar("R")

log = logging.getLogger(__name__)


class P2pNode:
    """One libp2p host. `serve` and `listen` first, then `run`."""

    def __init__(self, config: HostConfig, clock: Clock) -> None:
        self.peer_key: Hash32 = PeerKey(config.seed).public
        self.restarts = 0
        self._config, self._clock = config, clock
        self._listen = config.listen
        self._services: dict[str, Converse] = {}
        self._intake: Intake | None = None
        self._running: tuple[TrioThread[HostSession], HostSession] | None = None
        self._change = asyncio.Condition()
        self._group: asyncio.TaskGroup | None = None
        self._conversations = 0
        self._has_started, self._is_closed = False, False

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(self.peer_key, self._config.announce or self._listen)

    def serve(self, protocol: str, converse: Converse) -> None:
        """Serves inbound streams of a protocol. Call it before `run`."""
        assert self._group is None, "serve before run"
        self._services[protocol] = converse

    def listen(self, intake: Intake) -> None:
        """Gives the topic's messages to `intake`, also after a restart."""
        assert self._config.topic, "the config names a topic"
        self._intake = intake
        if self._running is not None:
            thread, session = self._running
            thread.post(lambda: session.nursery.start_soon(session.listen, intake))

    async def stop_listening(self, deadline: Seconds) -> None:
        """Leaves the topic, also for the next restart. ConnectionError or TimeoutError."""
        self._intake = None
        await self.call(HostSession.leave, deadline)

    async def run(self) -> None:
        """Keeps the host running until `close` or until cancelled. Raises Unavailable with the
        remedy if the host cannot start the first time.
        """
        async with asyncio.TaskGroup() as self._group:
            delay = RESTART_FIRST_SECONDS
            while not self._is_closed:
                began = self._clock.now()
                try:
                    await self._run_once()
                except Exception as error:
                    # A stranger may have ended it, whatever it raises.
                    if not self._has_started:
                        raise Unavailable(f"libp2p: {_first(error)}") from error
                    log.error("the libp2p host ended and is restarted: %r", _first(error))
                if self._clock.now() - began >= STEADY_SECONDS:
                    delay = RESTART_FIRST_SECONDS
                delay = await self._pause(delay)

    async def _pause(self, delay: float) -> float:
        """Waits before a restart. The next pause in seconds."""
        if not self._is_closed:
            self.restarts += 1
            await self._clock.sleep(delay)
        return min(2 * delay, RESTART_MAX_SECONDS)

    async def wait_until_up(self) -> None:
        async with self._change:
            await self._change.wait_for(lambda: self._running is not None)

    @property
    def is_up(self) -> bool:
        return self._running is not None

    async def open_stream(
        self, peer: PeerAddress, protocol: str, deadline: Seconds
    ) -> StreamSocket:
        return await self.call(lambda session: session.open_stream(peer, protocol), deadline)

    async def connect(self, peer: PeerAddress, deadline: Seconds) -> None:
        await self.call(lambda session: session.connect(peer), deadline)

    async def publish(self, data: bytes, deadline: Seconds) -> None:
        await self.call(lambda session: session.publish(data), deadline)

    async def call(self, function: Callable[[HostSession], Awaitable[R]], deadline: Seconds) -> R:
        """Runs a function of the host's session in its thread. Errors as `TrioThread.call`."""
        if self._running is None:
            raise ConnectionError("the libp2p host does not run")
        thread, session = self._running
        return await thread.call(lambda: function(session), deadline)

    async def close(self) -> None:
        """Stops the host. `run` returns."""
        self._is_closed = True
        if self._running is not None:
            await _stop(self._running[0])

    async def _run_once(self) -> None:
        intake = self._intake
        thread = TrioThread(self._session(intake))
        try:
            session = await thread.start()
            self._has_started = True
            self._listen = session.listen_addresses()
            await self._set_running((thread, session))
            if self._intake is not None and intake is None:
                self.listen(self._intake)  # it came while the host started
            if not self._is_closed:
                await asyncio.shield(asyncio.wrap_future(thread.done))
        finally:
            self._running = None
            await finish_before_cancel(_stop(thread))

    def _session(
        self, intake: Intake | None
    ) -> Callable[[], AbstractAsyncContextManager[HostSession]]:
        loop = asyncio.get_running_loop()
        # After a restart the same ports as before.
        config = replace(self._config, listen=self._listen)
        services = {
            protocol: partial(self._accept, converse)
            for protocol, converse in self._services.items()
        }
        return lambda: host_session(config, loop, services, intake)

    async def _set_running(self, running: tuple[TrioThread[HostSession], HostSession]) -> None:
        async with self._change:
            self._running = running
            self._change.notify_all()

    def _accept(self, converse: Converse, stream: StreamSocket) -> None:
        assert self._group is not None, "the host runs inside run"
        is_crowded = self._conversations >= CONVERSATIONS_MAX
        self._conversations += 1
        self._group.create_task(self._converse(None if is_crowded else converse, stream))

    async def _converse(self, converse: Converse | None, stream: StreamSocket) -> None:
        try:
            if converse is not None:
                await converse(stream)
        except Exception:
            # A bug in one conversation must not end the others. HTTP servers do the
            # same.
            log.exception("the conversation with %s failed", stream.remote.address)
        finally:
            await finish_before_cancel(stream.close(""))
            self._conversations -= 1


async def _stop(thread: TrioThread[HostSession]) -> None:
    try:
        await thread.stop()
    except TimeoutError:
        # The thread ends with the process, or when the machine is less busy.
        log.error("the libp2p host did not stop in time")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
