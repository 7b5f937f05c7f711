"""Reads which shared libraries an ELF file needs, without running it. (`ldd` runs the file's own
loader.)

Source of the layout: System V ABI, chapters "Object Files" and "Dynamic Linking". Supports 64-bit
little-endian files only.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<QQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
_ENTRIES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class ElfFile:
    """Strings of the dynamic section. `search` is DT_RUNPATH or DT_RPATH as written, with $ORIGIN
    not expanded.
    """

    machine: int
    interpreter: str | None
    soname: str | None
    needed: tuple[str, ...]
    search: tuple[str, ...]


def read_elf(path: Path) -> ElfFile | None:
    """Reads the file. Returns None if it is not 64-bit little-endian ELF; raises ValueError if it
    is truncated.
    """
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return None
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            try:
                return _parse(data)
            except struct.error as error:
                raise ValueError(f"{path}: the ELF file is truncated") from error


def _parse(data: memoryview) -> ElfFile:
    header = _HEADER.unpack_from(data)
    machine, program_offset, entry_bytes, entries = header[2], header[5], header[9], header[10]
    programs = [
        _PROGRAM.unpack_from(data, program_offset + index * entry_bytes) for index in range(entries)
    ]
    interpreter = next((_text(data, item[2]) for item in programs if item[0] == _PT_INTERP), None)
    dynamic = next((item for item in programs if item[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return ElfFile(machine, interpreter, None, (), ())
    tags = _dynamic_tags(data, dynamic[2], dynamic[5])
    strings = _file_offset(programs, next(value for tag, value in tags if tag == _DT_STRTAB))
    names = {
        wanted: tuple(_text(data, strings + value) for tag, value in tags if tag == wanted)
        for wanted in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)
    }
    search = tuple(
        part for text in names[_DT_RUNPATH] or names[_DT_RPATH] for part in text.split(":") if part
    )
    return ElfFile(
        machine, interpreter, next(iter(names[_DT_SONAME]), None), names[_DT_NEEDED], search
    )


def _dynamic_tags(data: memoryview, offset: int, size: int) -> list[tuple[int, int]]:
    count = min(size // _DYNAMIC.size, _ENTRIES_MAX)
    return [_DYNAMIC.unpack_from(data, offset + index * _DYNAMIC.size) for index in range(count)]


def _file_offset(programs: list[tuple[int, ...]], address: int) -> int:
    """Returns where in the file a virtual address is."""
    for kind, _flags, offset, start, _physical, in_file, _in_memory, _align in programs:
        if kind == _PT_LOAD and start <= address < start + in_file:
            return offset + address - start
    raise ValueError(f"address {address:#x} is in no segment of the file")


def _text(data: memoryview, offset: int) -> str:
    """Returns the NUL-terminated string at `offset`."""
    end = offset
    while data[end]:
        end += 1
    return bytes(data[offset:end]).decode()
