"""Streams read in a thread: a finished reader is freed, and errors reach both sides."""

import asyncio
import functools
import gc
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from quorate_content.store.threads import Stopped, StopSignal, StreamReader, in_thread
from quorate_protocol.refusals import Refused, Unavailable

THREADS = ThreadPoolExecutor(1)


async def pieces(
    *chunks: bytes, ended: list[str] | None = None, hangs: bool = False
) -> AsyncIterator[bytes]:
    """A stream that records when it ends."""
    try:
        for chunk in chunks:
            yield chunk
        if hangs:
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        (ended if ended is not None else []).append("cancelled")
        raise


def all_of(reader: StreamReader) -> bytes:
    """Reads to the end, two bytes at a time."""
    found, buffer = b"", memoryview(bytearray(2))
    while count := reader.readinto(buffer):
        found += buffer[:count]
    return found


async def test_a_reader_is_freed_without_garbage_collection() -> None:
    gc.collect()
    gc.disable()
    try:
        stop = StopSignal(60)
        stream = pieces(b"abc", b"", b"de")
        reader = StreamReader(stream, asyncio.get_running_loop(), stop, 5)
        assert await in_thread(THREADS, functools.partial(all_of, reader), stop) == b"abcde"
        gone = [weakref.ref(thing) for thing in (stop, reader, stream)]
        del reader, stop, stream
        # the thread drops its last piece of work when the next one comes
        await in_thread(THREADS, lambda: None)
        await asyncio.sleep(0)
        assert [thing() for thing in gone] == [None, None, None]
    finally:
        gc.enable()


async def test_cancellation_ends_thread_and_stream() -> None:
    ended: list[str] = []
    stop = StopSignal(60)
    reader = StreamReader(
        pieces(b"abc", ended=ended, hangs=True), asyncio.get_running_loop(), stop, 5
    )
    seen: list[type[BaseException]] = []

    def work() -> None:
        try:
            all_of(reader)
        except BaseException as error:
            seen.append(type(error))
            raise

    task = asyncio.create_task(in_thread(THREADS, work, stop))
    while (
        reader._waiting is None
        or reader._waiting.done()
        or reader._pulling is None
        or reader._pulling.done()
    ):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        while not ended:
            await asyncio.sleep(0.001)
    assert seen == [Stopped] and ended == ["cancelled"]


async def test_a_streams_error_and_excess_length_reach_the_reader() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise Unavailable("the peer has gone", retry_after=1.0)

    loop = asyncio.get_running_loop()
    with pytest.raises(Unavailable, match="the peer has gone"):
        await in_thread(THREADS, lambda: all_of(StreamReader(broken(), loop, StopSignal(60), 5)))
    with pytest.raises(Refused, match="bytes of a stream"):
        await in_thread(
            THREADS, lambda: all_of(StreamReader(pieces(b"abc", b"def"), loop, StopSignal(60), 5))
        )
    with pytest.raises(Unavailable, match="within its deadline"):
        await in_thread(
            THREADS, lambda: all_of(StreamReader(pieces(hangs=True), loop, StopSignal(0.05), 5))
        )
