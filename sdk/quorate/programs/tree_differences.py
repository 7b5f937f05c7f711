"""Says where two output folders differ: which file, and from which byte on."""

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

BLOCK_BYTES = 1 << 20
SHOWN_BYTES = 24
LINES_MAX = 5
ENTRIES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `path` is relative to the outputs; `sentence` names it too."""

    path: str
    sentence: str


def tree_differences(first: Path, second: Path) -> list[Difference]:
    """Returns at most five differences of two folders, by path. It blocks; call it in a thread."""
    one, other = _entries(first), _entries(second)
    found = (_difference(first, second, path, one, other) for path in sorted(one.keys() | other))
    return list(islice((item for item in found if item is not None), LINES_MAX))


def _entries(root: Path) -> dict[str, bool]:
    """Returns relative path -> is folder. Outputs have only regular files and folders."""
    found: dict[str, bool] = {}
    for folder, folders, files in os.walk(root):
        base = Path(folder).relative_to(root)
        found |= {str(base / name): True for name in folders}
        found |= {str(base / name): False for name in files}
        if len(found) > ENTRIES_MAX:
            break
    return found


def _difference(
    first: Path, second: Path, path: str, one: dict[str, bool], other: dict[str, bool]
) -> Difference | None:
    shown = path.encode(errors="backslashreplace").decode()
    if (path in one) != (path in other):
        return Difference(path, f"{shown} is in one result only")
    if one[path] != other[path]:
        return Difference(path, f"{shown} is a file in one result and a folder in the other")
    if one[path]:
        return None
    found = _first_difference(first / path, second / path)
    if found is None:
        return None
    at, a, b = found
    sizes = (first / path).stat().st_size, (second / path).stat().st_size
    lengths = "" if sizes[0] == sizes[1] else f" ({sizes[0]} and {sizes[1]} bytes long)"
    return Difference(path, f"{shown}{lengths} differs from byte {at} on: {a!r} and {b!r}")


def _first_difference(first: Path, second: Path) -> tuple[int, bytes, bytes] | None:
    """Returns the position of the first differing byte and what each file has around it."""
    at = 0
    with first.open("rb") as one, second.open("rb") as other:
        while True:
            a, b = one.read(BLOCK_BYTES), other.read(BLOCK_BYTES)
            if a != b:
                step = next(
                    (index for index, pair in enumerate(zip(a, b)) if pair[0] != pair[1]),
                    min(len(a), len(b)),
                )
                start = max(0, step - SHOWN_BYTES // 3)
                end = start + SHOWN_BYTES
                return at + step, a[start:end], b[start:end]
            if not a:
                return None
            at += len(a)
