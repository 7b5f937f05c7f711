"""Requests and answers between two peers over one connection. Both sides may ask.

A message is one byte of kind, 16 bytes of id and at most 1 MiB of frame. An answer carries the id
of its request. A malformed message ends this connection and no other.
"""

import asyncio
import logging
import os
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.messages.ports import Handler
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Milliseconds, Seconds
from quorate_runtime.actor.journal_port import JournalFailed

ID_BYTES = 16
HEAD_BYTES = 1 + ID_BYTES
MESSAGE_BYTES_MAX = HEAD_BYTES + FRAME_BYTES_MAX
INFLIGHT_MAX = 64  # unanswered requests in each direction
TEXT_MAX = 1000  # characters of a refusal's detail

log = logging.getLogger(__name__)


class Kind(IntEnum):
    """First byte of a message."""

    REQUEST = 1
    ANSWER = 2
    REFUSED = 3
    UNAVAILABLE = 4


class _Refusal(Struct, frozen=True):
    code: Code
    detail: str


class _Failure(Struct, frozen=True):
    what: str
    retry_after_ms: Milliseconds


class Socket(Protocol):
    """Carries messages whole and in order."""

    async def send(self, message: bytes) -> None:
        """Sends one message. ConnectionError when the connection has ended."""

    async def receive(self) -> bytes | None:
        """The next message; None when the connection has ended or the data is no message."""

    async def close(self, reason: str) -> None: ...


class Channel:
    """Requests and answers over one socket. `run` reads until the socket ends."""

    def __init__(self, socket: Socket, peer: str, handler: Handler) -> None:
        self._socket, self._peer, self._handler = socket, peer, handler
        self._asked: dict[bytes, asyncio.Future[bytes]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def request(self, frame: bytes, deadline: Seconds) -> bytes:
        if len(frame) > FRAME_BYTES_MAX:
            raise Refused(
                Code.OVERSIZE, f"a frame of {len(frame)} bytes; at most {FRAME_BYTES_MAX}"
            )
        if self._is_over or len(self._asked) >= INFLIGHT_MAX:
            raise Unavailable(
                f"{self._peer} has {len(self._asked)} unanswered requests, or went away", 0.5
            )
        number = os.urandom(ID_BYTES)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(deadline):
                await self._socket.send(bytes([Kind.REQUEST]) + number + frame)
                return await answer
        except TimeoutError as error:
            raise Unavailable(f"{self._peer} did not answer within {deadline} s") from error
        except ConnectionError as error:
            raise Unavailable(f"{self._peer} went away") from error
        finally:
            del self._asked[number]
            if answer.done() and not answer.cancelled():
                # Retrieved, so that asyncio does not warn if the deadline passed at the same time.
                answer.exception()

    async def run(self) -> None:
        """Reads until the other side ends the connection or sends a malformed message. Raises what
        the handler raises because of a bug.
        """
        try:
            async with asyncio.TaskGroup() as group:
                while (message := await self._socket.receive()) is not None:
                    if not await self._take(message, group):
                        log.warning(
                            "%s sent a malformed message: the connection is closed", self._peer
                        )
                        break
                self._end()
        finally:
            self._end()
            await self._socket.close("")

    def _end(self) -> None:
        """Fails the open requests, and cancels answers that could no longer be sent. Either side
        may repeat a request over its next connection.
        """
        self._is_over = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"{self._peer} went away"))
        for task in self._answering:
            task.cancel()

    async def _take(self, message: bytes, group: asyncio.TaskGroup) -> bool:
        """Handles one message. False when it is malformed."""
        if (
            not HEAD_BYTES <= len(message) <= MESSAGE_BYTES_MAX
            or message[0] not in Kind.__members__.values()
        ):
            return False
        kind, number, body = Kind(message[0]), message[1:HEAD_BYTES], message[HEAD_BYTES:]
        if kind is not Kind.REQUEST:
            return self._settle(kind, number, body)
        if len(self._answering) >= INFLIGHT_MAX:
            await self._send(
                Kind.UNAVAILABLE,
                number,
                canonical.encode(_Failure("too many requests at once", Milliseconds(500))),
            )
            return True
        task = group.create_task(self._answer(number, body))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return True

    def _settle(self, kind: Kind, number: bytes, body: bytes) -> bool:
        answer = self._asked.get(number)
        try:
            result = body if kind is Kind.ANSWER else _error_of(kind, body)
        except Refused:
            return False
        if answer is None or answer.done():
            return True  # late: the request has timed out
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)
        return True

    async def _answer(self, number: bytes, frame: bytes) -> None:
        try:
            kind, body = Kind.ANSWER, await self._handler(self._peer, frame)
        except Refused as refusal:
            # It is the answer. The handler has counted it.
            kind, body = (
                Kind.REFUSED,
                canonical.encode(_Refusal(refusal.code, refusal.detail[:TEXT_MAX])),
            )
        except Unavailable as failure:
            after = Milliseconds(max(0, int(failure.retry_after * 1000)))
            kind, body = (
                Kind.UNAVAILABLE,
                canonical.encode(_Failure(str(failure)[:TEXT_MAX], after)),
            )
        except JournalFailed as error:
            # Not re-raised, because it is no bug: the actor ends the daemon when the journal cannot
            # be written, and logs the reason and the remedy.
            log.error("no answer to %s: %s", self._peer, error)
            kind, body = (
                Kind.UNAVAILABLE,
                canonical.encode(_Failure("the daemon is stopping", Milliseconds(1000))),
            )
        except Exception:
            # A bug. It ends this connection, and a server may drop the exception with it, so it is
            # logged here.
            log.exception("the handler of frames from %s failed", self._peer)
            raise
        assert len(body) <= FRAME_BYTES_MAX, "an answer is a frame"
        await self._send(kind, number, body)

    async def _send(self, kind: Kind, number: bytes, body: bytes) -> None:
        try:
            await self._socket.send(bytes([kind]) + number + body)
        except ConnectionError:
            # The other side repeats its request over the next connection.
            log.info("%s went away before its answer", self._peer)


def _error_of(kind: Kind, body: bytes) -> Refused | Unavailable:
    if kind is Kind.REFUSED:
        refusal = canonical.decode(_Refusal, body, 8 * TEXT_MAX)
        return Refused(refusal.code, refusal.detail)
    failure = canonical.decode(_Failure, body, 8 * TEXT_MAX)
    return Unavailable(failure.what, failure.retry_after_ms / 1000)
