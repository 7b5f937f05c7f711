"""Reads an image's command from an archive that the coordinator's store holds.

Only headers and the configuration are fetched, a few kilobytes; no layer is. The bytes are not
verified: a wrong answer can only refuse an order that the store's owner could refuse anyway.
"""

import tarfile
from collections.abc import Awaitable, Callable

from quorate.base.errors import QuorateError
from quorate_content.images.image_config import json_object, parse_json, text_list
from quorate_protocol.refusals import Refused

BLOCK = 512
MEMBERS_MAX = 300
CONFIG_BYTES_MAX = 1 << 20
Read = Callable[[int, int], Awaitable[bytes]]
"""Returns so many bytes of the archive from a place on."""


async def words_of_stored(read: Read, size_bytes: int) -> tuple[str, ...] | None:
    """Returns ENTRYPOINT and CMD of a docker archive of `size_bytes`; None if it cannot be read."""
    try:
        places = await _members(read, size_bytes)
        manifest = parse_json(await _member(read, places, "manifest.json"), "manifest.json")
        first = json_object(manifest[0] if isinstance(manifest, list) else None, "manifest.json")
        name = str(first.get("Config"))
        config = json_object(parse_json(await _member(read, places, name), name), name)
        inner = json_object(config.get("config") or {}, "config")
        return text_list(inner.get("Entrypoint"), name) + text_list(inner.get("Cmd"), name)
    except (QuorateError, Refused, tarfile.TarError, KeyError, IndexError):
        return None  # not re-raised: the provider reads it too, and says what is wrong


async def _members(read: Read, size_bytes: int) -> dict[str, tuple[int, int]]:
    """Returns place and size of each member, by its name."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    while at + BLOCK <= size_bytes and len(found) < MEMBERS_MAX:
        header = await read(at, BLOCK)
        if not header.strip(b"\0"):
            break
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        found[member.name.removeprefix("./")] = at + BLOCK, member.size
        at += BLOCK + -(-member.size // BLOCK) * BLOCK
    return found


async def _member(read: Read, places: dict[str, tuple[int, int]], name: str) -> bytes:
    at, size = places[name]
    if size > CONFIG_BYTES_MAX:
        raise KeyError(name)
    return await read(at, size)
