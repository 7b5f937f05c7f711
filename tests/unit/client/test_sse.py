"""Tests the client's event stream: events in chunks of any size, and endless input."""

from collections.abc import AsyncIterator

import pytest

from quorate.base.errors import UnavailableError
from quorate.client.base.coordinator_api import ServerEvent, server_events

STREAM = b"id: 1\nevent: acked\ndata: {}\n\n: alive\n\nid:2\r\ndata:a\r\ndata: b\r\n\r\ndata: half"
EVENTS = [ServerEvent("1", "{}"), ServerEvent("2", "a\nb")]


async def read(data: bytes, step: int, bytes_max: int = 1_000) -> list[ServerEvent]:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), step):
            yield data[at : at + step]

    return [event async for event in server_events(pieces(), bytes_max)]


@pytest.mark.parametrize("step", [1, 2, 7, 1_000])
async def test_events_do_not_depend_on_chunk_sizes(step: int) -> None:
    assert await read(STREAM, step) == EVENTS


@pytest.mark.parametrize(
    ("flood", "named"),
    [
        (b"data:\n" * 1_001, "an event"),
        (b"data: x\n" * 501, "an event"),
        (b"data: " + b"x" * 1_000, "a line"),
        (b":" * 1_001, "a line"),
    ],
    ids=["lines without a word", "words", "one line", "a comment"],
)
@pytest.mark.parametrize("step", [3, 100_000])
async def test_endless_lines_and_events_are_refused(flood: bytes, named: str, step: int) -> None:
    """Once empty lines did not count and were kept for ever."""
    with pytest.raises(UnavailableError, match=f"{named} of more than 1000 bytes"):
        await read(flood, step)
    assert await read(b": alive\n\n" * 1_000, step) == [], (
        "but a stream may be silent for as long as it likes"
    )
