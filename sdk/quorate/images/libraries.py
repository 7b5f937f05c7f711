"""Finds all shared libraries that a set of binaries needs, as the loader would, and where to put
them in the image.
"""

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quorate.images.elf import ElfFile, read_elf

_DEFAULT_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
# What compiled wheels may need of every Linux (PEP 600) without a screen, and `libz`, `libgomp`.
WHEEL_LIBRARIES = (
    "libgcc_s.so.1",  # the C library loads it too, when a thread is cancelled
    "libstdc++.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libc.so.6",
    "libutil.so.1",
    "libpthread.so.0",
    "libresolv.so.2",
    "libgomp.so.1",
    "libz.so.1",
)
_CONFIG = Path("/etc/ld.so.conf")
_INCLUDE_DEPTH_MAX = 8


@dataclass(frozen=True, slots=True)
class Closure:
    """Libraries to add, as path in the image -> file here. `missing` maps a binary to the names
    that were not found.
    """

    files: dict[str, Path]
    missing: dict[Path, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Binary:
    path: Path
    elf: ElfFile


def library_closure(roots: Iterable[Path], placed: frozenset[Path]) -> Closure:
    """Returns everything that `roots` need, recursively.

    `placed` are files that the image already holds beside their users: extension modules and
    bundled libraries of wheels. They are followed but not copied. All other libraries go next to
    the C library under their SONAME, because the copied loader always searches that folder.
    """
    folders = _system_folders()
    home = _libc_folder(folders)
    files: dict[str, Path] = {}
    missing: dict[Path, tuple[str, ...]] = {}
    queue = [_Binary(path, elf) for path in sorted(roots) if (elf := read_elf(path)) is not None]
    seen = {binary.path.resolve() for binary in queue}
    while queue:
        binary = queue.pop()
        if binary.elf.interpreter is not None:
            files[binary.elf.interpreter] = Path(binary.elf.interpreter).resolve()
        for name in binary.elf.needed:
            if name.startswith("ld-"):
                # This is the loader itself. It has its own fixed path and is already loaded.
                continue
            found = _find(name, binary, folders)
            if found is None:
                missing[binary.path] = (*missing.get(binary.path, ()), name)
                continue
            if found.path.resolve() not in placed:
                files[f"{home}/{name}"] = found.path.resolve()
            if found.path.resolve() not in seen:
                seen.add(found.path.resolve())
                queue.append(found)
    return Closure(files, missing)


def find_library(name: str) -> Path | None:
    """Returns a library by SONAME from the system's folders, for libraries opened at run time
    (libgcc_s).
    """
    for folder in _system_folders():
        if (folder / name).is_file():
            return folder / name
    return None


def library_folder() -> str:
    return _libc_folder(_system_folders())


def _find(name: str, binary: _Binary, folders: tuple[Path, ...]) -> _Binary | None:
    """Searches like the loader: the binary's own path with $ORIGIN, then the system's folders.

    Skips files for other machine types.
    """
    origin = str(binary.path.resolve().parent)
    own = [
        Path(text.replace("$ORIGIN", origin).replace("${ORIGIN}", origin))
        for text in binary.elf.search
    ]
    for folder in (*own, *folders):
        candidate = folder / name
        if candidate.is_file():
            elf = read_elf(candidate)
            if elf is not None and elf.machine == binary.elf.machine:
                return _Binary(candidate, elf)
    return None


def _libc_folder(folders: tuple[Path, ...]) -> str:
    for folder in folders:
        if (folder / "libc.so.6").is_file():
            return str(folder)
    raise FileNotFoundError(
        "there is no libc.so.6 in the system's library folders; build images on Linux with glibc"
    )


def _system_folders() -> tuple[Path, ...]:
    """Returns the default folders first, because the copied loader searches them without a cache,
    then those of ld.so.conf.
    """
    folders = [Path(name) for name in _DEFAULT_FOLDERS if Path(name).is_dir()]
    return tuple(dict.fromkeys(folders + _configured(_CONFIG, 0)))


def _configured(path: Path, depth: int) -> list[Path]:
    if depth > _INCLUDE_DEPTH_MAX or not path.is_file():
        return []
    folders: list[Path] = []
    for line in path.read_text().splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("include "):
            for included in sorted(glob.glob(str(path.parent / text.split(maxsplit=1)[1]))):
                folders += _configured(Path(included), depth + 1)
        elif text:
            folders.append(Path(text))
    return folders
