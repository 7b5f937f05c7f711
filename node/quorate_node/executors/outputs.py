"""Collecting what a hostile program left in its output folder: regular files and directories
only, within caps.

Never follows a link, never opens a FIFO or device, never recurses (a 3,000-deep tree ends a
recursive walk), never trusts a size: apparent size is checked before the copy, copied bytes
during it. What is refused is refused whole; the caller commits the empty directory then.
"""

import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from quorate_protocol.refusals import Code, Refused, Unavailable

DEPTH_MAX = 64  # of directories; the depth that content addressing allows
NAME_BYTES_MAX = 255
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OutputCaps:
    """Bounds of one output tree. `inodes` counts files and directories below the root."""

    total_bytes: int
    inodes: int
    depth: int = DEPTH_MAX


@dataclass(slots=True)
class Allowance:
    """What is left of the caps while a tree is collected."""

    caps: OutputCaps
    total_bytes: int = 0
    inodes: int = 0

    def entry(self, path: str, name: str, depth: int) -> None:
        """Counts one file or directory and checks its name. Refused names the path."""
        check_name(path, name)
        self.inodes += 1
        if self.inodes > self.caps.inodes:
            raise Refused(
                Code.OVERSIZE, f"{path}: more than {self.caps.inodes} files and directories"
            )
        if depth > self.caps.depth:
            raise Refused(
                Code.MALFORMED, f"{path[:200]}: deeper than {self.caps.depth} directories"
            )

    def promise(self, path: str, size: int) -> None:
        """Refuses a file whose apparent size cannot fit, before one byte of it is read."""
        if self.total_bytes + size > self.caps.total_bytes:
            raise Refused(
                Code.OVERSIZE, f"{path}: outputs are larger than {self.caps.total_bytes} bytes"
            )

    def copied(self, path: str, size: int) -> None:
        """Counts bytes that were really copied: a file may grow while it is read."""
        self.promise(path, size)
        self.total_bytes += size


def collect_tree(source: Path, destination: Path, caps: OutputCaps) -> None:
    """Copies `source` to the new directory `destination`, complete or not at all.

    Refused(OVERSIZE | MALFORMED) names the path relative to the root. Modes, owners and times
    are not kept.
    """
    with fresh_directory(destination) as partial:
        root = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _copy_tree(root, partial, Allowance(caps))
        finally:
            os.close(root)
        partial.rename(destination)


class fresh_directory:
    """Context: `<destination>.partial`, empty; what a crash or refusal left of it is deleted."""

    def __init__(self, destination: Path) -> None:
        self._partial = destination.with_name(destination.name + ".partial")

    def __enter__(self) -> Path:
        delete_tree(self._partial)
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        self._partial.mkdir(mode=0o700)
        return self._partial

    def __exit__(self, *_: object) -> None:
        delete_tree(self._partial)


def delete_tree(path: Path) -> None:
    """Deletes a tree of any depth. Not shutil.rmtree: it recurses, and a hostile tree is deeper
    than the interpreter's stack.

    Unavailable when the machine does not let it go.
    """
    if not (path.is_symlink() or path.exists()):
        return
    command = ["rm", "-rf", "--one-file-system", "--", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode == 0:
        return
    open_up(path)
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode != 0:
        raise Unavailable(
            f"{path} cannot be removed: {done.stderr[-200:].decode(errors='replace').strip()}", 30.0
        )


def open_up(path: Path) -> None:
    """Makes all of a tree readable and writable for this process again: a job may close what it
    leaves behind to its own user, who is ours where the sandbox was made without root. Nobody
    else may work in the tree; links are not followed.
    """
    if os.geteuid() != 0:
        # What cannot be opened up shows where it is needed.
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], check=False, capture_output=True)


def check_name(path: str, name: str) -> None:
    """A name must be UTF-8 text without control characters, and short enough for every file
    system.
    """
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise Refused(Code.MALFORMED, f"{path[:200]!r}: the name is not UTF-8") from error
    if (
        name in ("", ".", "..")
        or "/" in name
        or any(ord(char) < 32 or ord(char) == 127 for char in name)
    ):
        raise Refused(
            Code.MALFORMED, f"{path[:200]!r}: control characters are not allowed in names"
        )
    if len(encoded) > NAME_BYTES_MAX:
        raise Refused(
            Code.MALFORMED, f"{path[:200]}: the name is longer than {NAME_BYTES_MAX} bytes"
        )


class _Folder:
    """One open directory on the way down; owns its descriptor. Names are listed lazily: there
    may be more than memory should hold.
    """

    def __init__(self, descriptor: int, path: str, target: Path) -> None:
        self.descriptor = descriptor
        self.path = path  # relative, "" for the root
        self.target = target
        self._scan = os.scandir(descriptor)

    def next_name(self) -> str | None:
        """The next entry, in the file system's order; None at the end."""
        entry = next(self._scan, None)
        return None if entry is None else entry.name

    def close(self) -> None:
        """Closes the descriptor and the listing."""
        self._scan.close()
        os.close(self.descriptor)


def _copy_tree(root: int, target: Path, allowance: Allowance) -> None:
    """Depth first with an explicit stack: at most `depth` descriptors are open."""
    stack = [_Folder(os.dup(root), "", target)]
    try:
        while stack:
            folder = stack[-1]
            name = folder.next_name()
            if name is None:
                stack.pop().close()
                continue
            path = f"{folder.path}/{name}" if folder.path else name
            allowance.entry(path, name, len(stack))
            below = _open_entry(folder.descriptor, name, path)
            if stat.S_ISDIR(os.fstat(below).st_mode):
                stack.append(_Folder(below, path, folder.target / name))
                (folder.target / name).mkdir()
                continue
            try:
                _copy_file(below, folder.target / name, path, allowance)
            finally:
                os.close(below)
    finally:
        for folder in stack:
            folder.close()


def _open_entry(folder: int, name: str, path: str) -> int:
    """A regular file or directory, opened without following links and without blocking on a
    FIFO.
    """
    kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise Refused(
            Code.MALFORMED,
            f"{path[:200]}: is a {_kind(kind)}; only files and directories can be outputs",
        )
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise Refused(Code.MALFORMED, f"{path[:200]}: cannot be read ({error.strerror})") from error
    if stat.S_IFMT(os.fstat(descriptor).st_mode) != stat.S_IFMT(kind):
        os.close(descriptor)
        raise Refused(Code.MALFORMED, f"{path[:200]}: changed while it was collected")
    return descriptor


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "symbolic link",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
        stat.S_IFBLK: "device",
        stat.S_IFCHR: "device",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")


def _copy_file(source: int, target: Path, path: str, allowance: Allowance) -> None:
    allowance.promise(path, os.fstat(source).st_size)
    with target.open("xb") as out:
        while chunk := os.read(source, _COPY_BYTES):
            allowance.copied(path, len(chunk))
            out.write(chunk)
