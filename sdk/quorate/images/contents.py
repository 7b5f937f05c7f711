"""Lists what goes into a Python image: interpreter, standard library, wheels and their shared
libraries.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate.images.libraries import WHEEL_LIBRARIES, find_library, library_closure, library_folder
from quorate.images.wheels import wheel_closure
from quorate_protocol.refusals import Code, Refused

_LEFT_OUT_FOLDERS = frozenset(
    {
        "__pycache__",
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "ensurepip",
        "lib2to3",
        "site-packages",
        "dist-packages",
    }
)
_LEFT_OUT_PREFIXES = ("config-", "_tkinter.", "_test", "_ctypes_test.", "_xxtestfuzz.", "xxlimited")
_LEFT_OUT_SUFFIXES = (".pyc", ".a", ".whl", ".exe")
_PASSWD = b"root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/scratch:/sbin/nologin\n"
_GROUP = b"root:x:0:\nnogroup:x:65534:\n"
_FOLDERS = {
    "dev": 0o755,
    "etc": 0o755,
    "inputs": 0o755,
    "outputs": 0o755,
    "proc": 0o755,
    "scratch": 0o1777,
    "sys": 0o755,
    "tmp": 0o1777,
}

_SHELL_NEEDED = ("sh", "cat", "ls", "mkdir", "tar")
_SHELL_WANTED = (
    *("bash", "basename", "chmod", "cp", "cut", "date", "df", "dirname", "du", "env", "find"),
    *("git", "grep", "gzip", "head", "id", "kill", "less", "ln", "mv", "nano", "printf", "ps"),
    *("pwd", "readlink", "rm", "rmdir", "sed", "sleep", "sort", "stat", "stty", "tail", "tee"),
    *("test", "touch", "tr", "tty", "uname", "uniq", "vi", "wc", "which", "xargs"),
)
_TERMINALS = Path("/usr/share/terminfo"), Path("/lib/terminfo")
_TERMINAL_NAMES = ("x/xterm", "x/xterm-256color", "s/screen", "s/screen-256color", "t/tmux")


@dataclass(frozen=True, slots=True)
class Contents:
    """Files of the image by path, without a leading slash."""

    files: dict[str, bytes | Path]
    folders: dict[str, int]  # path -> mode
    links: dict[str, str]  # path -> target
    packages: tuple[str, ...]
    missing: tuple[str, ...]
    has_shell: bool = False


def python_contents(packages: Sequence[str], has_shell: bool = False) -> Contents:
    """Places this interpreter (the base one, if in a virtual environment) below /usr/local, with
    the named packages, and the machine's shell if that is wanted.
    """
    short = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    interpreter = _base_interpreter(short)
    library = Path(sysconfig.get_path("stdlib"))
    wheels = wheel_closure(packages)
    files: dict[str, bytes | Path] = {
        "etc/passwd": _PASSWD,
        "etc/group": _GROUP,
        f"usr/local/bin/{short}": interpreter,
    }
    for relative, source in _standard_library(library):
        files[f"usr/local/lib/{short}/{relative}"] = source
    for wheel in wheels:
        for relative, source in wheel.files.items():
            files[f"usr/local/lib/{short}/site-packages/{relative}"] = source
    links = {"usr/local/bin/python3": short, "usr/local/bin/python": short}
    if has_shell:
        programs, more = _shell_files()
        files |= programs
        links |= more
    missing = _add_libraries(files)
    return Contents(
        files,
        _folders(files),
        links,
        tuple(f"{wheel.name}=={wheel.version}" for wheel in wheels),
        missing,
        has_shell,
    )


def _base_interpreter(short: str) -> Path:
    """Returns the real executable behind a virtual environment or a version manager's links."""
    for candidate in (Path(sys.base_exec_prefix) / "bin" / short, Path(sys._base_executable)):  # type: ignore[attr-defined]
        if candidate.is_file():
            return candidate.resolve()
    raise Refused(
        Code.UNSUPPORTED,
        f"there is no {short} below {sys.base_exec_prefix}; install an ordinary Python",
    )


def _standard_library(folder: Path) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _LEFT_OUT_FOLDERS and not name.startswith(_LEFT_OUT_PREFIXES)
        )
        for name in sorted(names):
            if not name.startswith(_LEFT_OUT_PREFIXES) and not name.endswith(_LEFT_OUT_SUFFIXES):
                found.append((str((here / name).relative_to(folder)), here / name))
    return found


def _add_libraries(files: dict[str, bytes | Path]) -> tuple[str, ...]:
    """Adds the shared libraries. A standard module whose library is absent here is left out; a
    wheel's stays and is reported.
    """
    placed = {source.resolve(): path for path, source in files.items() if isinstance(source, Path)}
    extra = [found for name in WHEEL_LIBRARIES if (found := find_library(name)) is not None]
    closure = library_closure([*placed, *extra], frozenset(placed))
    for path, source in closure.files.items():
        files[path.lstrip("/")] = source
    for source in extra:
        files[f"{library_folder().lstrip('/')}/{source.name}"] = source.resolve()
    reported: list[str] = []
    for source, names in closure.missing.items():
        path = placed.get(source.resolve(), source.name)
        if "/lib-dynload/" in path:
            del files[path]
        else:
            reported.append(f"{path}: {' '.join(names)}")
    return tuple(sorted(reported))


def _folders(files: dict[str, bytes | Path]) -> dict[str, int]:
    folders = dict(_FOLDERS)
    for path in files:
        for parent in Path(path).parents:
            if str(parent) != ".":
                folders.setdefault(str(parent), 0o755)
    return folders


def _shell_files() -> tuple[dict[str, Path], dict[str, str]]:
    """Returns programs by their path in the image, and links. Raises Refused(UNSUPPORTED) if this
    machine lacks one that every shell needs.
    """
    files: dict[str, Path] = {}
    for name in (*_SHELL_NEEDED, *_SHELL_WANTED):
        found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
        path = Path(found).resolve() if found else None
        if path is not None and _is_program(path):
            files[f"usr/bin/{name}"] = path
        elif name in _SHELL_NEEDED:
            raise Refused(
                Code.UNSUPPORTED, f"--shell: this machine has no program {name}; install it"
            )
    for name in _TERMINAL_NAMES:
        for folder in _TERMINALS:
            if (folder / name).is_file():
                files[f"usr/share/terminfo/{name}"] = (folder / name).resolve()
                break
    return files, {"bin": "usr/bin"}


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
