"""Makes text from strangers safe to print on a terminal."""

import codecs
from collections.abc import AsyncIterator

DIRECTIONS = (
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)  # invisible characters that make text look different from what it is
CONTROL: dict[int, str | None] = {
    code: None for code in (*range(32), *range(127, 160), *DIRECTIONS) if code not in (9, 10)
}
CONTROL |= dict.fromkeys(
    range(0xD800, 0xE000), "\ufffd"
)  # lone surrogates, which JSON allows and terminals cannot encode


def plain(text: str) -> str:
    """Removes control characters and hidden direction marks, so that text neither controls the
    terminal nor misleads.
    """
    return text.translate(CONTROL)


def one_line(text: str) -> str:
    """Returns plain text that cannot look like another line or another row of a table."""
    return plain(text.replace("\n", " ").replace("\t", " "))


async def decoded(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Decodes pieces of UTF-8, also where a piece ends inside a character. Shows invalid bytes as
    replacement characters.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    async for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)
