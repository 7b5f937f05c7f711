"""What strangers write reaches a terminal as text: no escape sequence, no cursor movement, no
hidden direction.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from quorate.cli import rendering
from quorate.cli import terminal_text as terminal
from quorate.cli.context import note
from quorate.errors import from_answer
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
def test_nothing_that_a_terminal_acts_on_is_left(text: str) -> None:
    shown = terminal.plain(text)
    assert not any(
        ord(char) < 32 or 127 <= ord(char) < 160
        for char in shown.replace("\n", "").replace("\t", "")
    )
    assert not any(
        char in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" for char in shown
    )


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_a_coordinator_tells_is_one_line_wherever_it_is_shown(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    event = JobEvent(
        Sequence(1),
        UnixSeconds(1),
        Hash32(b"\1" * 32),
        f"{text}\nverdict",
        f"{text}\n0x010101010101  verdict    accepted",
    )
    rendering.table(["A"], [[f"{text}\nforged row"]])
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


def test_lines_tabs_and_letters_stay() -> None:
    assert terminal.plain("a\tb\nç \N{GRINNING FACE}") == "a\tb\nç \N{GRINNING FACE}"


async def test_a_letter_cut_in_two_is_one_letter_and_an_escape_cut_in_two_is_none() -> None:
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
