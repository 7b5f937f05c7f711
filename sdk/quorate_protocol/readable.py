"""The base of documents that people read in a debugger: ids and signatures print as hex."""

from msgspec import Struct
from msgspec.structs import fields

BYTES_SHOWN = 32


class Readable(Struct, frozen=True):
    """A Struct whose bytes print as 0x-hex; long ones as their beginning and length."""

    def __repr__(self) -> str:
        shown = (f"{item.name}={text_of(getattr(self, item.name))}" for item in fields(self))
        return f"{type(self).__name__}({', '.join(shown)})"


def text_of(value: object) -> str:
    if isinstance(value, bytes):
        return hex_text(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(text_of, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def hex_text(data: bytes) -> str:
    """Returns 0x-hex of at most 32 bytes, else the beginning and the length."""
    if len(data) <= BYTES_SHOWN:
        return f"0x{data.hex()}"
    return f"0x{data[:8].hex()}...({len(data)} bytes)"
