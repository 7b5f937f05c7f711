"""Copies the output folder of a hostile program: regular files and directories only, within limits.

It follows no link, opens no FIFO or device, and does not recurse, because a tree of 3,000 levels
would exhaust the stack. It checks the apparent size of a file before the copy and counts bytes
during it. If it refuses one entry, it refuses the whole tree. The caller then commits the empty
directory.
"""

import errno
import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from quorate_content.dag.content_limits import Bounds
from quorate_protocol.refusals import Code, Refused, Unavailable

BOUNDS = Bounds()  # content addressing has the same, so what is collected can be committed
FULL_RETRY_SECONDS = 10.0
_COPY_BYTES = 1 << 20
# Code points that no name of an output may have (PROTOCOL §3, results): control characters, and
# marks that end a line or turn the direction of text. The set is fixed, because a newer Python
# knows more characters of such kinds.
CONTROL_CHARACTERS = frozenset(
    {
        *range(0x20),
        *range(0x7F, 0xA0),
        0x061C,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
        0xFEFF,
    }
)


@dataclass(frozen=True, slots=True)
class OutputCaps:
    """The limits of one output tree. `inodes` counts files and directories below the root."""

    total_bytes: int
    inodes: int


@dataclass(slots=True)
class Allowance:
    """Counts the entries and bytes of a tree against its limits during the copy."""

    caps: OutputCaps
    total_bytes: int = 0
    inodes: int = 0

    def add_entry(self, path: str, name: str, depth: int) -> None:
        check_name(path, name)
        if len(path.encode()) > BOUNDS.path_bytes_max:
            raise Refused(
                Code.MALFORMED,
                f"{path[:200]}: the path is longer than {BOUNDS.path_bytes_max} bytes",
            )
        self.inodes += 1
        if self.inodes > self.caps.inodes:
            raise Refused(
                Code.OVERSIZE, f"{path}: more than {self.caps.inodes} files and directories"
            )
        if depth > BOUNDS.directory_depth_max:
            raise Refused(
                Code.MALFORMED,
                f"{path[:200]}: deeper than {BOUNDS.directory_depth_max} directories",
            )

    def check_size(self, path: str, size: int) -> None:
        """Refuses a file whose apparent size is over the cap, before it is read."""
        if self.total_bytes + size > self.caps.total_bytes:
            raise Refused(
                Code.OVERSIZE, f"{path}: outputs are larger than {self.caps.total_bytes} bytes"
            )

    def add_copied(self, path: str, size: int) -> None:
        """A file may grow while it is read."""
        self.check_size(path, size)
        self.total_bytes += size


def collect_tree(source: Path, destination: Path, caps: OutputCaps) -> None:
    """Complete or not at all. Refused(OVERSIZE | MALFORMED) names the relative path."""
    with new_directory(destination) as partial:
        root = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _copy_tree(root, partial, Allowance(caps))
        finally:
            os.close(root)
        partial.rename(destination)


class new_directory:
    """A context with the empty folder `<destination>.partial`, which it deletes at the end."""

    def __init__(self, destination: Path) -> None:
        self._partial = destination.with_name(destination.name + ".partial")

    def __enter__(self) -> Path:
        delete_tree(self._partial)
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        self._partial.mkdir(mode=0o700)
        return self._partial

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        delete_tree(self._partial)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable(
                f"no room for outputs in {self._partial.parent}: {error.strerror}; free some disk",
                FULL_RETRY_SECONDS,
            ) from error


def delete_tree(path: Path) -> None:
    """By `rm`: shutil.rmtree recurses, and a hostile tree is deeper than the interpreter's stack.
    Raises Unavailable.
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
    """Without root a job may have removed our user's permissions. Follows no links."""
    if os.geteuid() != 0:
        # A path that cannot be changed causes an error later, where the caller uses it.
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], check=False, capture_output=True)


def check_name(path: str, name: str) -> None:
    """Refuses a name that is not UTF-8, has control characters, or is too long."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise Refused(Code.MALFORMED, f"{path[:200]!r}: the name is not UTF-8") from error
    if (
        name in ("", ".", "..")
        or "/" in name
        or any(ord(char) in CONTROL_CHARACTERS for char in name)
    ):
        raise Refused(
            Code.MALFORMED, f"{path[:200]!r}: control characters are not allowed in names"
        )
    if len(encoded) > BOUNDS.name_bytes_max:
        raise Refused(
            Code.MALFORMED, f"{path[:200]}: the name is longer than {BOUNDS.name_bytes_max} bytes"
        )


class _Folder:
    """One open directory. Names are read one by one: there may be more than fit into memory."""

    def __init__(self, descriptor: int, path: str, target: Path) -> None:
        self.descriptor = descriptor
        self.path = path  # relative, "" for the root
        self.target = target
        self._scan = os.scandir(descriptor)

    def next_name(self) -> str | None:
        entry = next(self._scan, None)
        return None if entry is None else entry.name

    def close(self) -> None:
        self._scan.close()
        os.close(self.descriptor)


def _copy_tree(root: int, target: Path, allowance: Allowance) -> None:
    """Copies depth first with an explicit stack; at most `depth` descriptors are open."""
    stack = [_Folder(os.dup(root), "", target)]
    try:
        while stack:
            folder = stack[-1]
            name = folder.next_name()
            if name is None:
                stack.pop().close()
                continue
            path = f"{folder.path}/{name}" if folder.path else name
            allowance.add_entry(path, name, len(stack))
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
    """Opens a regular file or directory without following links or blocking on a FIFO."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise Refused(
                Code.MALFORMED,
                f"{path[:200]}: is a {_kind(kind)}; only files and directories can be outputs",
            )
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
    allowance.check_size(path, os.fstat(source).st_size)
    with target.open("xb") as out:
        while chunk := os.read(source, _COPY_BYTES):
            allowance.add_copied(path, len(chunk))
            out.write(chunk)
