"""Compares two output folders under a comparator, and says what differs and by how much.

`include` names the files that count, by patterns as of `fnmatch` on paths below the folder. The two
folders must have the same files of these. Files of equal bytes have the distance 0, whatever is in
them. Of other files `numeric` reads npy, npz, safetensors, JSON and CSV, `text` reads all as text,
and what neither reads is different.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from quorate_content.comparators import distance, text_files
from quorate_content.comparators.array_files import Array, Malformed, read_heads
from quorate_content.comparators.report import DIFFERENT, SHOWN_MAX, Difference, Report
from quorate_protocol.units import Comparator

ARRAY_SUFFIXES = (".npy", ".npz", ".safetensors")
PIECE_BYTES = 1 << 20
FILES_MAX = 4096


def compare(
    left: Path,
    right: Path,
    comparator: Comparator,
    include: tuple[str, ...],
    shown: int = SHOWN_MAX,
) -> Report:
    """Compares two folders. A file that a stranger made raises nothing: it is different."""
    names, others = included(left, include), included(right, include)
    found = [
        Difference(name, "", DIFFERENT, "only one output has it") for name in sorted(names ^ others)
    ]
    if not names and not others:
        found.append(Difference("", "", DIFFERENT, f"no file is one of {include}"))
    if len(names | others) > FILES_MAX:
        return Report(
            DIFFERENT, 0, (Difference("", "", DIFFERENT, f"over {FILES_MAX} files are included"),)
        )
    for name in sorted(names & others):
        if not is_equal(left / name, right / name):
            found += _file(name, left / name, right / name, comparator)
    found.sort(key=lambda each: (-each.ppb, each.path, each.part))
    worst = max((each.ppb for each in found), default=0)
    return Report(worst, len(names & others), tuple(found[:shown]))


def included(folder: Path, include: tuple[str, ...]) -> set[str]:
    """The paths below the folder that a pattern names. Links are never followed."""
    return {
        name
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and any(fnmatchcase(name := path.relative_to(folder).as_posix(), each) for each in include)
    }


def is_equal(left: Path, right: Path) -> bool:
    """Whether two files have equal bytes."""
    if left.stat().st_size != right.stat().st_size:
        return False
    with left.open("rb") as one, right.open("rb") as other:
        while data := one.read(PIECE_BYTES):
            if data != other.read(PIECE_BYTES):
                return False
    return True


def _file(name: str, left: Path, right: Path, comparator: Comparator) -> Iterator[Difference]:
    suffix = left.suffix.lower()
    try:
        if comparator is Comparator.TEXT:
            yield Difference(name, "", text_files.texts(left, right))
        elif comparator is Comparator.NUMERIC and suffix in ARRAY_SUFFIXES:
            yield from _arrays(name, read_heads(left, suffix), read_heads(right, suffix))
        elif comparator is Comparator.NUMERIC and suffix == ".json":
            yield Difference(name, "", text_files.json_files(left, right))
        elif comparator is Comparator.NUMERIC and suffix == ".csv":
            yield Difference(name, "", text_files.csv_files(left, right))
        else:
            why = f"its bytes differ, and {comparator.name.lower()} does not read files like it"
            yield Difference(name, "", DIFFERENT, why)
    except Malformed as error:
        yield Difference(name, "", DIFFERENT, str(error)[:200])


def _arrays(name: str, left: dict[str, Array], right: dict[str, Array]) -> Iterator[Difference]:
    for part in sorted(left.keys() ^ right.keys()):
        yield Difference(name, part, DIFFERENT, "only one output has this array")
    for part in sorted(left.keys() & right.keys()):
        one, other = left[part], right[part]
        form, wanted = (
            (one.kind, one.shape, one.is_fortran),
            (other.kind, other.shape, other.is_fortran),
        )
        if form != wanted:
            why = f"{one.kind} {one.shape} and {other.kind} {other.shape}, or another order"
            yield Difference(name, part, DIFFERENT, why[:200])
            continue
        measure = distance.equal if one.is_exact else distance.numbers
        with np.errstate(all="ignore"):
            ppb = measure(one.pieces, other.pieces)
        if ppb:
            yield Difference(name, part, ppb)
