"""Text from strangers reaches a terminal as plain text: no escape sequences, no cursor movement, no
hidden direction.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from quorate.base.errors import from_answer
from quorate.cli import rendering
from quorate.cli import terminal_text as terminal
from quorate.cli.context import note
from quorate.cli.tables import table as rendering_table
from quorate_protocol.messages.views import JobEvent
from quorate_protocol.refusals import Code
from quorate_protocol.units import Hash32, Sequence, UnixSeconds

HOSTILE = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07x",
    "clear": "\x1b[2J\x1b[Hgone",
    "c1 csi": "\x9b31mred",
    "device": "\x1bP1$r\x1b\\",
    "backspace": "safe\x08\x08\x08\x08evil",
    "carriage return": "honest\rforged",
    "delete": "a\x7fb",
    "nul": "a\x00b",
    "bidi override": "abc\u202edcba",
    "bidi isolate": "\u2066x\u2069",
    "link": "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
}


HOSTILE |= {
    "marks": "\u200eabc\u200f\u061c",
    "line ends": "one\u2028two\u2029",
    "half a letter": "\ud800",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_control_characters_are_removed(text: str) -> None:
    shown = terminal.plain(text)
    assert not any(
        ord(char) < 32 or 127 <= ord(char) < 160
        for char in shown.replace("\n", "").replace("\t", "")
    )
    assert not any(
        char in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" for char in shown
    )


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_text_from_a_coordinator_stays_on_one_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    event = JobEvent(
        Sequence(1),
        UnixSeconds(1),
        Hash32(b"\1" * 32),
        f"{text}\nverdict",
        f"{text}\n0x010101010101  verdict    accepted",
    )
    rendering_table(["A"], [[f"{text}\nforged row"]])
    note(
        str(from_answer(503, {"code": "unavailable", "detail": f"{text}\nPassphrase of /home/x:"}))
    )
    note(str(from_answer(400, {"code": Code.MALFORMED.value, "detail": f"{text}\nforged"})))
    table, told = capsys.readouterr()
    assert len(table.splitlines()) == 2 and len(told.splitlines()) == 2, (
        "a heading and a row, and a line each"
    )
    for shown in (rendering.event_line(event), *table.splitlines(), *told.splitlines()):
        shown.encode()
        assert shown.isprintable() and "\u202e" not in shown


def test_line_ends_tabs_and_letters_are_kept() -> None:
    assert terminal.plain("a\tb\nç \N{GRINNING FACE}") == "a\tb\nç \N{GRINNING FACE}"


async def test_letters_and_escapes_split_between_chunks_are_handled() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for piece in (
            "größe".encode()[:3],
            "größe".encode()[3:],
            b"\x1b",
            b"[31m",
            b"\xff",
            b"\xc3",
        ):
            await asyncio.sleep(0)
            yield piece

    assert (
        "".join([text async for text in terminal.decoded(chunks())]) == "größe\x1b[31m\ufffd\ufffd"
    )
    assert (
        terminal.plain("".join([text async for text in terminal.decoded(chunks())]))
        == "größe[31m\ufffd\ufffd"
    )
