"""Pictures of the demo as PNG files, from rows of raw pixels: red, green, blue."""

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB = 2
GAP = 8  # pixels between two pictures


def png(width: int, height: int, pixels: bytes) -> bytes:
    """Returns the file's bytes. `pixels` are rows from the top, three bytes per pixel."""
    assert len(pixels) == 3 * width * height, (
        f"{width} x {height} pixels need {3 * width * height} bytes, not {len(pixels)}"
    )
    rows = b"".join(
        b"\0" + pixels[start : start + 3 * width] for start in range(0, len(pixels), 3 * width)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    return (
        SIGNATURE
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows, 9))
        + _chunk(b"IEND", b"")
    )


def assemble(tiles: list[bytes], columns: int, tile_width: int, tile_height: int) -> bytes:
    """Joins tiles, numbered row by row from the top left, into the rows of the whole picture."""
    assert len(tiles) % columns == 0, "tiles fill whole rows"
    rows = []
    for first in range(0, len(tiles), columns):
        for line in range(tile_height):
            start = 3 * tile_width * line
            rows += [
                tile[start : start + 3 * tile_width] for tile in tiles[first : first + columns]
            ]
    return b"".join(rows)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def beside(true: bytes, false: bytes, width: int, height: int) -> bytes:
    """Returns a PNG of two pictures of one size side by side, and where their bytes differ."""
    differing = bytes(
        255 if one != other else one // 4 for one, other in zip(true, false, strict=True)
    )
    gap = bytes([255]) * (3 * GAP)
    rows, size = [], 3 * width
    for start in range(0, size * height, size):
        panels = [_doubled(item[start : start + size]) for item in (true, false, differing)]
        rows += [gap.join(panels)] * 2
    return png(6 * width + 2 * GAP, 2 * height, b"".join(rows))


def _doubled(row: bytes) -> bytes:
    return b"".join(row[place : place + 3] * 2 for place in range(0, len(row), 3))
