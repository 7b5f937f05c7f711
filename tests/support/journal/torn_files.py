"""Damages files at many positions: cuts at fixed and at random positions, and flipped bits."""

import random
from collections.abc import Iterator
from pathlib import Path

STRIDE = 1009  # a prime number, so that cuts fall on every part of a page
SEEDED = 200


def damages(
    data: bytes, seed: int, stride: int = STRIDE, seeded: int = SEEDED
) -> Iterator[tuple[str, bytes]]:
    """Yields (description of the damage, the damaged bytes).

    Half of the random damages cut the file. The other half flip one bit, or all bits of a byte.
    """
    draw = random.Random(seed)
    places = sorted(
        {*range(0, len(data), stride), *(draw.randrange(len(data)) for _ in range(seeded // 2))}
    )
    yield from ((f"cut to {place} of {len(data)} bytes", data[:place]) for place in places)
    for _ in range(seeded - seeded // 2):
        place, mask = draw.randrange(len(data)), draw.choice([1 << draw.randrange(8), 0xFF])
        flipped = bytearray(data)
        flipped[place] ^= mask
        yield f"byte {place} of {len(data)} flipped by {mask:#x}", bytes(flipped)


def restore(folder: Path, files: dict[str, bytes]) -> None:
    """Replaces the folder's files by exactly these."""
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def files_of(folder: Path, *left_out: str) -> dict[str, bytes]:
    """Returns name -> content of the folder's files, without names that end with one of `left_out`.

    SQLite rebuilds the index of a WAL, so a test may leave it out.
    """
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not path.name.endswith(left_out or ("-shm",))
    }
