"""Unpacks the layers of an image once into a root folder that sandboxes mount read-only.

A stranger made the archive, and this process may be root. So this module resolves every name link
by link inside the root. It opens nothing through a link, and makes no device, setuid bit or sparse
file. Each layer must hash to the diff id in the config: the config's digest is the key of the
cache, and a later job must not get another job's files. Layers:
https://github.com/opencontainers/image-spec/blob/main/layer.md (whiteouts, which delete files,
apply to lower layers only, so each layer is read twice).
"""

import ctypes
import errno
import hashlib
import json
import os
import posixpath
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quorate_content.images.image_info import ImageInfo
from quorate_content.images.layers import MOUNT_POINTS, Layer, opened_layers
from quorate_node.executors.base.hardened_profile import FILES
from quorate_node.executors.base.outputs import delete_tree
from quorate_protocol.refusals import Code, Refused, Unavailable

_ENGINE_FOLDERS = ("sbin",)  # engines make them in every container
_FILES = {
    **{path.lstrip("/"): text for path, text in FILES.items()},
    "etc/hostname": "job\n",
    ".dockerenv": "",
}
_LINKS_MAX = 40
_COPY_BYTES = 1 << 20
_USER = 65534
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_SPARE_BYTES = 512 << 20
_SPARE_INODES = 1 << 16
_WORLD_FAILS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.EMFILE,
        errno.ENFILE,
        errno.EACCES,
        errno.EPERM,
    }
)


def unpack(archive: Path, info: ImageInfo, root: Path) -> None:
    tree = RootfsTree(root)
    try:
        with opened_layers(archive, info) as layers:
            check_room(root.parent, sum(_verified_bytes(layer) for layer in layers))
            root.mkdir(mode=0o755)
            for layer in layers:
                entries = 0
                for _, entry in layer.entries():
                    entries += 1
                    tree.white_out(entry)
                _check_inodes(root, entries)
                for content, entry in layer.entries():
                    tree.place(content, entry)
        tree.finish()
    except OSError as error:
        raise _failure(error) from error


def _failure(error: OSError) -> Refused | Unavailable:
    """Unavailable if the machine failed, Refused if no file system takes the names."""
    if error.errno in _WORLD_FAILS:
        return Unavailable(f"the image cannot be unpacked: {error.strerror}; free some disk", 60.0)
    return Refused(Code.MALFORMED, f"image: cannot be unpacked: {error.strerror}")


def _verified_bytes(layer: Layer) -> int:
    """Checks the hash against the config, and returns the uncompressed size."""
    digest = hashlib.sha256()
    source, size = layer.plain(), 0
    while chunk := source.read(_COPY_BYTES):
        size += len(chunk)
        if size > layer.limits.unpacked_bytes:
            raise Refused(
                Code.OVERSIZE,
                f"{layer.member.name}: unpacks to more than {layer.limits.unpacked_bytes} bytes",
            )
        digest.update(chunk)
    if layer.diff_id != f"sha256:{digest.hexdigest()}":
        raise Refused(
            Code.MALFORMED,
            f"image: {layer.member.name} does not have the hash "
            f"{layer.diff_id[:80]} that the config gives",
        )
    return size


def check_room(folder: Path, needed: int) -> None:
    """Raises Unavailable if the disk of `folder` lacks room to unpack an image."""
    free = shutil.disk_usage(folder).free
    if free < needed + needed // 2 + _SPARE_BYTES:
        raise Unavailable(
            f"no room to unpack an image of {needed} bytes: {free} bytes are free in {folder}", 60.0
        )


def _check_inodes(folder: Path, needed: int) -> None:
    """Images of empty files need many inodes. Inodes made on demand report 0, and pass."""
    found = os.statvfs(folder)
    if found.f_files and found.f_favail < needed + _SPARE_INODES:
        raise Unavailable(
            f"no room to unpack {needed} files: {found.f_favail} inodes are free in {folder}", 60.0
        )


class RootfsTree:
    """One root folder while layers are unpacked into it.

    No other process writes there, so a check stays valid until the write.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def white_out(self, entry: tarfile.TarInfo) -> None:
        """Removes the files of lower layers that a whiteout entry names. It ignores other
        entries.
        """
        folder, base = posixpath.split(_clean(entry.name))
        if not base.startswith(_WHITEOUT):
            return
        parent = self._folder(folder)
        gone = base.removeprefix(_WHITEOUT)
        if base == _OPAQUE:
            for name in os.listdir(parent):
                _remove(posixpath.join(parent, name))
        elif gone in ("", ".", ".."):
            raise Refused(Code.MALFORMED, f"image: {entry.name[:200]!r} is not a valid whiteout")
        else:
            _remove(posixpath.join(parent, gone))

    def place(self, content: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        folder, base = posixpath.split(_clean(entry.name))
        if base in ("", ".") or base.startswith(_WHITEOUT):
            return
        path = posixpath.join(self._folder(folder), base)
        if entry.isdir():
            self._directory(path, entry)
            return
        _remove(path)
        if entry.issparse():
            raise Refused(Code.UNSUPPORTED, f"image: {entry.name[:200]!r} is a sparse file")
        if entry.isreg():
            _write_file(path, content, entry)
        elif entry.issym():
            os.symlink(entry.linkname, path)
        elif entry.islnk():
            self._link(path, entry)
        elif entry.isfifo():
            os.mkfifo(path, entry.mode & 0o777)
        else:
            raise Refused(
                Code.UNSUPPORTED, f"image: {entry.name[:200]!r} is not a file, directory or link"
            )

    def make_folders(self, paths: Sequence[str]) -> list[str]:
        """Returns their real paths inside the root. Raises Refused(MALFORMED) or Unavailable."""
        try:
            return [
                posixpath.normpath("/" + posixpath.relpath(self._folder(path), self._root))
                for path in paths
            ]
        except OSError as error:
            raise _failure(error) from error

    def has_folder(self, path: str) -> bool:
        """Returns whether a directory exists, following links inside the root only."""
        try:
            self._folder(path, makes=False)
        except (Refused, OSError):  # not re-raised: then there is no such directory
            return False
        return True

    def finish(self) -> None:
        """Adds mount points, and the files that name the machine (such as /etc/hosts)."""
        for name in MOUNT_POINTS:
            path = posixpath.join(self._root, name)
            if not os.path.lexists(path):
                _make_directory(path, 0o755)
            elif not stat.S_ISDIR(os.lstat(path).st_mode):
                # `read_archive` refuses that by name. Here a link led an entry of a layer to it.
                raise Refused(
                    Code.MALFORMED,
                    f"image: /{name} must be a folder, because something is mounted there",
                )
        for name in _ENGINE_FOLDERS:
            if not os.path.lexists(posixpath.join(self._root, name)):
                _make_directory(posixpath.join(self._root, name), 0o755)
        for name, text in _FILES.items():
            path = posixpath.join(self._folder(posixpath.dirname(name)), posixpath.basename(name))
            _remove(path)
            with open(path, "x", encoding="ascii") as file:
                file.write(text)
            os.chmod(path, 0o644)

    def _directory(self, path: str, entry: tarfile.TarInfo) -> None:
        if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        _make_directory(path, (entry.mode & 0o777) | 0o700)
        _give_user(path, entry)

    def _link(self, path: str, entry: tarfile.TarInfo) -> None:
        folder, base = posixpath.split(_clean(entry.linkname))
        first = posixpath.join(self._folder(folder), base)
        if base in ("", ".") or not os.path.lexists(first) or stat.S_ISDIR(os.lstat(first).st_mode):
            raise Refused(
                Code.MALFORMED,
                f"image: {entry.name[:200]!r} links to {entry.linkname[:200]!r}, which is not "
                "a file of the image",
            )
        os.link(first, path, follow_symlinks=False)

    def _folder(self, name: str, makes: bool = True) -> str:
        """Follows every link on the way inside the root. If `makes`, it makes missing folders."""
        pending = _parts(name)
        real: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part == "..":
                del real[-1:]
                continue
            here = posixpath.join(self._root, *real, part)
            if makes and not os.path.lexists(here):
                _make_directory(here, 0o755)
            kind = os.lstat(here).st_mode
            if stat.S_ISDIR(kind):
                real.append(part)
            elif stat.S_ISLNK(kind) and links < _LINKS_MAX:
                links += 1
                target = os.readlink(here)
                real = [] if target.startswith("/") else real
                pending += _parts(target)
            else:
                raise Refused(
                    Code.MALFORMED,
                    f"image: {name[:200]!r} leads through something that is not a directory",
                )
        return posixpath.join(self._root, *real)


def _clean(name: str) -> str:
    return posixpath.normpath(name.lstrip("/") or ".")


def _parts(path: str) -> list[str]:
    """Returns the path's components, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _remove(path: str) -> None:
    """Removes a path. Only for a directory with entries it starts a process."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif os.listdir(path):
        delete_tree(Path(path))
    else:
        os.rmdir(path)


def _make_directory(path: str, mode: int) -> None:
    if not os.path.lexists(path):
        os.mkdir(path)
    os.chmod(path, mode)  # independent of the umask


def _write_file(path: str, content: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
    source = content.extractfile(entry)
    assert source is not None, "regular members have content"
    descriptor = os.open(
        path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with open(descriptor, "wb") as file:
        shutil.copyfileobj(source, file, _COPY_BYTES)
        os.fchmod(descriptor, entry.mode & 0o777)
    _give_user(path, entry)
    # Compiled Python modules name their source by its time: without it every start would compile
    # them again.
    os.utime(path, (entry.mtime, entry.mtime))


def _give_user(path: str, entry: tarfile.TarInfo) -> None:
    """Outside each job has another user, so all may do with the file what its owner may. The root
    is read-only.
    """
    if entry.uid == _USER and os.geteuid() == 0:
        os.chown(path, _USER, _USER, follow_symlinks=False)
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, mode | mode >> 6)


_NICENESS = 10  # jobs and the daemon go first
_PR_SET_PDEATHSIG = 1
_RETRY_SECONDS = 30.0


def unpack_apart(archive: Path, info: ImageInfo, target: Path) -> None:
    """Writes to the disk. Raises as `unpack`, and Unavailable if the process was killed."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(archive), str(target)],
        input=msgspec.json.encode(info),
        capture_output=True,
        check=False,
    )
    answer = json.loads(done.stdout or b"{}")
    if "code" in answer:
        raise Refused(Code(answer["code"]), answer["detail"])
    if "retry" in answer:
        raise Unavailable(answer["detail"], answer["retry"])
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(f"the image was not unpacked: {last or done.returncode}", _RETRY_SECONDS)


def main(archive: Path, target: Path) -> dict[str, object]:
    info = msgspec.json.decode(sys.stdin.buffer.read(), type=ImageInfo)
    try:
        unpack(archive, info, target)
    except Refused as refused:
        return {"code": refused.code.value, "detail": refused.detail}
    except Unavailable as failed:
        return {"retry": failed.retry_after, "detail": str(failed)}
    os.sync()  # so that a folder that exists after a power cut is complete
    return {}


if __name__ == "__main__":
    # A daemon that ends takes this process along: the next one unpacks into the same folder.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICENESS)
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
