"""The `Peers` port in memory, for tests and the simulator.

Its hub may drop, delay, repeat and reorder frames. Inside `clock.run_virtual` deadlines and delays
are virtual, and the same conditions give the same order of events.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.messages.ports import Clock, Handler
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Seconds


@dataclass(frozen=True, slots=True)
class Hop:
    """One frame on its way; `number` counts all hops of the hub."""

    number: int
    sender: Address
    to: Address
    is_answer: bool
    frame: bytes  # empty for an answer that is an error


Conditions = Callable[[Hop], tuple[float, ...]]
"""Delays in seconds after which copies of the frame arrive: () drops it, two entries repeat it."""

Answer = bytes | Refused | Unavailable


def fair_weather(_: Hop) -> tuple[float, ...]:
    """Every frame arrives once and at once."""
    return (0.0,)


class MemoryHub:
    """The network. `async with` owns the frames on their way.

    Leaving the block raises what a handler raised because of a bug.
    """

    def __init__(self, clock: Clock, conditions: Conditions = fair_weather) -> None:
        """`conditions` may be replaced at any time, to break the network and to repair it."""
        self.conditions = conditions
        self._clock = clock
        self._handlers: dict[Address, Handler] = {}
        self._group = asyncio.TaskGroup()
        self._flying: set[asyncio.Task[None]] = set()
        self._hops = 0

    async def __aenter__(self) -> "MemoryHub":
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handlers.clear()
        for task in self._flying:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def join(self, account: Address, handler: Handler) -> "MemoryPeers":
        """Connects an account to all others. Joining again, as after a crash, replaces the
        handler.
        """
        self._handlers[account] = handler
        return MemoryPeers(self, account)

    def leave(self, account: Address) -> None:
        """Disconnects an account. Frames on their way to it are lost."""
        self._handlers.pop(account, None)

    def joined(self) -> frozenset[Address]:
        """Accounts that are connected now."""
        return frozenset(self._handlers)

    def send(
        self, sender: Address, to: Address, frame: bytes, answer: "asyncio.Future[bytes]"
    ) -> None:
        """Sends a request as often as the conditions say: not at all, once, or several times.

        The first answer that comes back becomes the result of `answer`.
        """
        for delay in self._delays(sender, to, False, frame):
            task = self._group.create_task(self._deliver(sender, to, frame, delay, answer))
            self._flying.add(task)
            task.add_done_callback(self._flying.discard)

    async def _deliver(
        self,
        sender: Address,
        to: Address,
        frame: bytes,
        delay: float,
        answer: "asyncio.Future[bytes]",
    ) -> None:
        await self._clock.sleep(delay)
        handler = self._handlers.get(to)
        if handler is None:
            return  # the receiver left meanwhile: the sender's deadline passes
        result: Answer
        try:
            result = await handler("0x" + sender.hex(), frame)
        except (Refused, Unavailable) as error:
            # Not re-raised here: the error is the answer, and is raised at the sender.
            result = error
        back = self._delays(to, sender, True, result if isinstance(result, bytes) else b"")
        if not back:
            return
        await self._clock.sleep(min(back))
        if sender in self._handlers and not answer.done():
            _settle(answer, result)

    def _delays(
        self, sender: Address, to: Address, is_answer: bool, frame: bytes
    ) -> tuple[float, ...]:
        self._hops += 1
        return self.conditions(Hop(self._hops, sender, to, is_answer, frame))


class MemoryPeers:
    """`ports.Peers` of one account on a hub."""

    def __init__(self, hub: MemoryHub, account: Address) -> None:
        """Use `MemoryHub.join`."""
        self._hub, self._account = hub, account

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        """See `ports.Peers`."""
        if len(frame) > FRAME_BYTES_MAX:
            raise Refused(
                Code.OVERSIZE, f"a frame of {len(frame)} bytes; at most {FRAME_BYTES_MAX}"
            )
        if not {peer, self._account} <= self._hub.joined():
            raise Unavailable(f"0x{peer.hex()} is not connected", 2.0)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._hub.send(self._account, peer, frame, answer)
        try:
            async with asyncio.timeout(deadline):
                return await answer
        except TimeoutError as error:
            raise Unavailable(f"0x{peer.hex()} did not answer within {deadline} s") from error

    def connected(self) -> frozenset[Address]:
        """See `ports.Peers`."""
        joined = self._hub.joined()
        return joined - {self._account} if self._account in joined else frozenset()

    async def close(self) -> None:
        """See `ports.Peers`."""
        self._hub.leave(self._account)


def _settle(answer: "asyncio.Future[bytes]", result: Answer) -> None:
    match result:
        case bytes():
            answer.set_result(result)
        case Refused(code=code, detail=detail):
            answer.set_exception(Refused(code, detail))
        case Unavailable():
            answer.set_exception(Unavailable(str(result), result.retry_after))
