"""Text of strangers for a terminal, which acts on some of what it is shown."""

import codecs
from collections.abc import AsyncIterator

DIRECTIONS = (
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)  # hidden: text then reads otherwise than it is
CONTROL: dict[int, str | None] = {
    code: None for code in (*range(32), *range(127, 160), *DIRECTIONS) if code not in (9, 10)
}
CONTROL |= dict.fromkeys(
    range(0xD800, 0xE000), "\ufffd"
)  # halves of letters, which JSON allows and no terminal's encoding has


def plain(text: str) -> str:
    """Text without control characters and hidden directions: a terminal must not act on it, nor
    a reader be misled.
    """
    return text.translate(CONTROL)


def one_line(text: str) -> str:
    """Plain text that cannot pass for another line, or another row of a table."""
    return plain(text.replace("\n", " ").replace("\t", " "))


async def decoded(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Pieces of UTF-8 as text, a letter that is cut between two of them whole; what is no UTF-8
    is shown as such.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    async for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)
