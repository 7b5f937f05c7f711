"""The distance of two JSON, CSV or plain text files.

A JSON or CSV file is a structure that must be equal, with numbers in it, whose distance is that of
an array. A plain text is a row of words; its distance is the share of words that must be removed or
added to get from one to the other.
"""

import csv
import io
import json
import math
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np

from quorate_content.comparators import distance
from quorate_content.comparators.array_files import Malformed, check_depth
from quorate_content.comparators.report import DIFFERENT, PPB_ONE

TEXT_BYTES_MAX = 8 << 20
EDITS_MAX = 2048  # words that two texts may differ by, else they are different
CELLS_MAX = 1 << 20
CELL_MAX = 128 * 1024
csv.field_size_limit(CELL_MAX)


def json_files(left: Path, right: Path) -> int:
    """The distance of two JSON documents. Raises `Malformed`."""
    return _flat(_json_leaves(left), _json_leaves(right))


def csv_files(left: Path, right: Path) -> int:
    """The distance of two tables: rows and columns as they stand. Raises `Malformed`."""
    return _flat(_csv_cells(left), _csv_cells(right))


def texts(left: Path, right: Path) -> int:
    """The distance of two texts by their words, in ppb. Raises `Malformed`."""
    a, b = _text(left).split(), _text(right).split()
    edits = edit_count(a, b, EDITS_MAX)
    if edits is None:
        return DIFFERENT
    return math.ceil(edits * PPB_ONE / max(1, len(a) + len(b)))


def edit_count(a: list[str], b: list[str], most: int) -> int | None:
    """How many words are removed and added to make `b` of `a`; None if more than `most`. By Myers,
    "An O(ND) Difference Algorithm" (1986).
    """
    furthest = {1: 0}
    for edits in range(min(most, len(a) + len(b)) + 1):
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits
                and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(a) and y >= len(b):
                return edits
    return None


Leaf = tuple[str, float | None]
"""The form of a place, and its number; None if the form says all."""


def _flat(left: Iterator[Leaf], right: Iterator[Leaf]) -> int:
    numbers_left, numbers_right = list[float](), list[float]()
    for count, (one, other) in enumerate(zip_longest(left, right)):
        if count >= CELLS_MAX:
            raise Malformed(f"it has more than {CELLS_MAX} values")
        if one is None or other is None or one[0] != other[0]:
            return DIFFERENT
        if one[1] is not None and other[1] is not None:
            numbers_left.append(one[1])
            numbers_right.append(other[1])
    a, b = np.asarray(numbers_left), np.asarray(numbers_right)
    return distance.numbers(lambda: [a], lambda: [b])


def _json_leaves(path: Path) -> Iterator[Leaf]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise Malformed("an object has two entries of one name")
        return made

    text = _text(path)
    check_depth(text.encode())
    try:
        document = json.loads(text, object_pairs_hook=unique, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"it is no JSON: {error}") from error
    waiting = [document]
    while waiting:
        match waiting.pop():
            case dict() as members:
                names = sorted(members)
                yield json.dumps(names), None
                waiting += [members[name] for name in reversed(names)]
            case list() as items:
                yield f"[{len(items)}]", None
                waiting += reversed(items)
            case float() as number:
                yield "number", number
            case other:  # a text, a whole number, true, false or null
                yield json.dumps(other), None


def _whole(digits: str) -> int:
    if len(digits) > 400:
        raise Malformed("a number has more than 400 digits")
    return int(digits)


def _csv_cells(path: Path) -> Iterator[Leaf]:
    try:
        for row in csv.reader(io.StringIO(_text(path), newline=""), strict=True):
            yield f"row {len(row)}", None
            for cell in row:
                yield _cell(cell)
    except csv.Error as error:
        raise Malformed(f"it is no CSV: {error}") from error


def _cell(text: str) -> Leaf:
    """A number with a point or an exponent is compared as a number; everything else is a text."""
    if not any(letter in text for letter in ".eE") or len(text) > 64:
        return text, None
    try:
        number = float(text)
    except ValueError:
        return text, None
    return ("number", number) if math.isfinite(number) else (text, None)


def _text(path: Path) -> str:
    if path.stat().st_size > TEXT_BYTES_MAX:
        raise Malformed(f"it has more than {TEXT_BYTES_MAX} bytes")
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"it is no UTF-8: {error}") from error
