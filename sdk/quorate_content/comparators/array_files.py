"""Reads the heads of npy, npz and safetensors files, which a stranger wrote.

Nothing is unpickled. A head has a bounded size, says exactly how many bytes of values follow, and a
file that has more or fewer is refused. Values are read later, in pieces, by `Values`.
"""

import errno
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

PIECE_VALUES = 1 << 18  # values in memory at one time
NPY_HEAD_MAX = 64 * 1024
SAFETENSORS_HEAD_MAX = 16 << 20
ARRAYS_MAX = 16_384  # in one file
DIMENSIONS_MAX = 32
VALUES_MAX = 1 << 40
INFLATED_MAX = 64 << 30  # bytes of one npz
JSON_DEPTH_MAX = 128
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{}]', re.DOTALL)  # and texts
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEAD = re.compile(
    r"\{'descr': '([<>|=])([fiubc])(\d{1,2})', 'fortran_order': (False|True), "
    r"'shape': \(((?:\d{1,13}(?:, ?\d{1,13})*,?)?)\), ?\}\s*"
)
_NPY_TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "c8", "c16")
_SAFETENSORS_TYPES = {  # name -> (kind as numpy has it, or the form of a small float; bytes)
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "BF16": "bf2",
    "F8_E4M3": "e4m3",
    "F8_E5M2": "e5m2",
    "I64": "i8",
    "I32": "i4",
    "I16": "i2",
    "I8": "i1",
    "U64": "u8",
    "U32": "u4",
    "U16": "u2",
    "U8": "u1",
    "BOOL": "b1",
}
_SIZES = {"bf2": 2, "e4m3": 1, "e5m2": 1}


class Malformed(Exception):
    """The file is not what its name says, or is larger than a comparator reads."""


@dataclass(frozen=True, slots=True)
class Array:
    """One array of a file: its type, its shape and where its values are."""

    name: str
    kind: str  # a type of numpy without its byte order, or `bf2`, `e4m3`, `e5m2`
    shape: tuple[int, ...]
    is_fortran: bool
    is_big_endian: bool
    open: Callable[[], AbstractContextManager[BinaryIO]]  # at the first value

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def is_exact(self) -> bool:
        """Whether values have no rounding: integers and truth values are equal or not."""
        return self.kind[0] in "iub" and self.kind != "bf2"

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yields the values in the file's order, at most `PIECE_VALUES` at a time: floats as
        float64 (a complex one as two), others as they are. Raises `Malformed` if they end early.
        """
        size = value_bytes(self.kind)
        with self.open() as file:
            left = self.count
            while left:
                count = min(left, PIECE_VALUES)
                data = _read(file, count * size)
                yield _values(data, self.kind, self.is_big_endian)
                left -= count


def value_bytes(kind: str) -> int:
    """Bytes of one value."""
    return _SIZES.get(kind) or int(kind[1:])


def read_heads(path: Path, suffix: str) -> dict[str, Array]:
    """The arrays of a file by their names (`""` for npy). Raises `Malformed`, `OSError`."""
    return {".npy": _npy_file, ".npz": _npz_file, ".safetensors": _safetensors_file}[suffix](path)


# --------------------------------------------------------------------------------------------- npy


def _npy_file(path: Path) -> dict[str, Array]:
    with path.open("rb") as file:
        array, start = _npy_head("", file, lambda: path.open("rb"))
    size = path.stat().st_size
    if start + array.count * value_bytes(array.kind) != size:
        raise Malformed(f"its head promises another size than {size} bytes")
    return {"": array}


def _npy_head(
    name: str, file: BinaryIO, reopen: Callable[[], AbstractContextManager[BinaryIO]]
) -> tuple[Array, int]:
    """Reads a head; returns its array and the place of the first value."""
    magic = _read(file, 8)
    if magic[:6] != _NPY_MAGIC or magic[6] not in (1, 2, 3) or magic[7] != 0:
        raise Malformed("it is no npy file of version 1 to 3")
    length_bytes = 2 if magic[6] == 1 else 4
    length = int.from_bytes(_read(file, length_bytes), "little")
    if length > NPY_HEAD_MAX:
        raise Malformed(f"its head has {length} bytes, at most {NPY_HEAD_MAX}")
    found = _NPY_HEAD.fullmatch(_read(file, length).decode("latin-1"))
    if found is None:
        raise Malformed("its head has another form, or its values are Python objects")
    order, letter, size, fortran, shape = found.groups()
    kind = letter + size
    if kind not in _NPY_TYPES:
        raise Malformed(f"values of type {kind} are not compared")
    sizes = _shape([int(item) for item in shape.replace(",", " ").split()])
    start = 8 + length_bytes + length

    class _AtValues:
        """Opens the file and passes its head."""

        def __enter__(self) -> BinaryIO:
            self._opened = reopen()
            inner = self._opened.__enter__()
            _skip(inner, start)
            return inner

        def __exit__(self, *error: object) -> None:
            self._opened.__exit__(None, None, None)

    return Array(name, kind, sizes, fortran == "True", order == ">", _AtValues), start


def _shape(sizes: list[int]) -> tuple[int, ...]:
    if len(sizes) > DIMENSIONS_MAX or prod(sizes) > VALUES_MAX:
        raise Malformed(f"its shape has over {DIMENSIONS_MAX} dimensions or {VALUES_MAX} values")
    return tuple(sizes)


# --------------------------------------------------------------------------------------------- npz


def _npz_file(path: Path) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            found = {}
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                with archive.open(entry) as file:
                    array, start = _npy_head(name, _plain(file), _member(path, entry.filename))
                if start + array.count * value_bytes(array.kind) != entry.file_size:
                    raise Malformed(f"the head of {name} promises another size")
                found[name] = array
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError) as error:
        raise Malformed(f"it is no zip archive of numpy: {error}") from error
    except (RuntimeError, UnicodeError) as error:  # encrypted, or names of no known encoding
        raise Malformed(f"it is no zip archive of numpy: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the file's begin
            raise
        raise Malformed("it is no zip archive of numpy: a place lies outside") from error
    return found


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    names = [entry.filename for entry in entries]
    if len(names) > ARRAYS_MAX or len(set(names)) != len(names):
        raise Malformed(f"it has more than {ARRAYS_MAX} arrays, or two of one name")
    if not all(name.endswith(".npy") for name in names):
        raise Malformed("it has a member that is no npy file")
    if any(
        entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries
    ):
        raise Malformed("a member is neither stored nor deflated")
    if sum(entry.file_size for entry in entries) > INFLATED_MAX:
        raise Malformed(f"its arrays have more than {INFLATED_MAX} bytes")


class _Member:
    """Opens one member of an archive."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __enter__(self) -> BinaryIO:
        self._archive = zipfile.ZipFile(self._path)
        self._file = self._archive.open(self._name)
        return _plain(self._file)

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._archive.close()


def _member(path: Path, name: str) -> Callable[[], AbstractContextManager[BinaryIO]]:
    return lambda: _Member(path, name)


def _plain(file: io.BufferedIOBase | object) -> BinaryIO:
    return file  # type: ignore[return-value]  # a ZipExtFile reads bytes


# ------------------------------------------------------------------------------------- safetensors


def _safetensors_file(path: Path) -> dict[str, Array]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(_read(file, 8), "little")
        if length > min(SAFETENSORS_HEAD_MAX, size - 8):
            raise Malformed(f"its head has {length} bytes, at most {SAFETENSORS_HEAD_MAX}")
        head = _object(_read(file, length))
    head.pop("__metadata__", None)
    if len(head) > ARRAYS_MAX:
        raise Malformed(f"it has more than {ARRAYS_MAX} tensors")
    found, ends = {}, []
    for name, entry in head.items():
        kind, shape, (begin, end) = _tensor(name, entry)
        if end - begin != prod(shape) * value_bytes(kind):
            raise Malformed(f"the places of {name} do not fit its shape")
        found[name] = Array(name, kind, shape, False, False, _from(path, 8 + length + begin))
        ends.append((begin, end))
    place = 0
    for begin, end in sorted(ends):
        if begin != place:
            raise Malformed("its tensors overlap or leave a gap")
        place = end
    if 8 + length + place != size:
        raise Malformed("its tensors do not fill the file")
    return found


def _object(data: bytes) -> dict[str, object]:
    """A JSON object whose names are unique."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise Malformed("its head has two entries of one name")
        return made

    check_depth(data)
    try:
        head = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"its head is no JSON: {error}") from error
    if not isinstance(head, dict):
        raise Malformed("its head is no JSON object")
    return head


def check_depth(document: bytes) -> None:
    """Raises `Malformed` for JSON of many levels. A program that raised Python's recursion limit
    would crash on it.
    """
    depth = 0
    for found in _BRACKETS.finditer(document):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
        if depth > JSON_DEPTH_MAX:
            raise Malformed(f"its JSON has more than {JSON_DEPTH_MAX} levels")


def _tensor(name: str, entry: object) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    if not isinstance(entry, dict):
        raise Malformed(f"{name} has no description")
    kind = _SAFETENSORS_TYPES.get(str(entry.get("dtype")))
    shape, places = entry.get("shape"), entry.get("data_offsets")
    if kind is None or not _is_sizes(shape) or not _is_sizes(places) or len(places) != 2:
        raise Malformed(f"{name} has an unknown dtype, or no shape or places")
    begin, end = places
    return kind, _shape(shape), (begin, end)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= VALUES_MAX * 8 for item in value
    )


class _At:
    """Opens a file at a place."""

    def __init__(self, path: Path, place: int) -> None:
        self._path, self._place = path, place

    def __enter__(self) -> BinaryIO:
        self._file = self._path.open("rb")
        self._file.seek(self._place)
        return self._file

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _from(path: Path, place: int) -> Callable[[], AbstractContextManager[BinaryIO]]:
    return lambda: _At(path, place)


# ------------------------------------------------------------------------------------------ values


def _read(file: BinaryIO, size: int) -> bytes:
    parts, left = [], size
    while left:
        try:
            data = file.read(left)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise Malformed(f"a member cannot be unpacked: {error}") from error
        if not data:
            raise Malformed("it ends before its last value")
        parts.append(data)
        left -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _skip(file: BinaryIO, size: int) -> None:
    if size:
        _read(file, size)


def _values(data: bytes, kind: str, is_big_endian: bool) -> NDArray[Any]:
    if kind == "bf2":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        return _small_floats(kind)[np.frombuffer(data, np.uint8)]
    if kind == "b1":
        return np.frombuffer(data, np.uint8)
    found = np.frombuffer(data, (">" if is_big_endian else "<") + kind)
    if kind[0] == "c":
        return found.view((">" if is_big_endian else "<") + f"f{int(kind[1:]) // 2}").astype(
            np.float64
        )
    return found.astype(np.float64) if kind[0] == "f" else found


def _small_floats(kind: str) -> NDArray[np.float64]:
    """The 256 values of an 8-bit float (OCP OFP8): E5M2 is the upper half of a float16; E4M3 has no
    infinity and one NaN.
    """
    codes = np.arange(256, dtype=np.uint16)
    if kind == "e5m2":
        return (codes << 8).view(np.float16).astype(np.float64)
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float64)
    size = np.where(
        exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7)
    )
    size[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, size, -size)
