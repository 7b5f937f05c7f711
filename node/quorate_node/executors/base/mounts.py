"""Makes the mounts that the daemon needs as root: views of inputs, file systems for outputs.

It calls mount(2) directly. Starting the mount program twice for each input would take longer than
setting up the container.
"""

import contextlib
import ctypes
import os
import subprocess
import time
from pathlib import Path

from quorate_node.executors.base.neutral_mounts import OpenedSource
from quorate_protocol.refusals import Unavailable
from quorate_runtime.process.crash_points import crash_point

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_PRIVATE = 1, 2, 4, 32, 4096, 1 << 18
_MNT_DETACH = 2
STAGE_NAME = "stage"  # a folder beside views of inputs
_UNMOUNT_TRIES = 20
_INODE_BYTES = 256
_BLOCK_BYTES = 4096
_SLACK_BYTES = 4 << 20
_FULL_BYTES = 64 << 10
_PROGRAM_SECONDS = 60
SCRATCH_NAME = "scratch"
SECRETS_NAME = "secrets"  # beside the folder of leases, with a file system in memory for each
SCRATCH_INODES_LEAST, SCRATCH_INODES_MAX = 16_384, 1 << 20
_SCRATCH_FILE_BYTES = 64 << 10  # one inode for so many bytes
_libc = ctypes.CDLL(None, use_errno=True)


def can_mount() -> bool:
    """Needs root, loop devices and mkfs.ext4."""
    return (
        os.geteuid() == 0
        and Path("/dev/loop-control").exists()
        and find_program("mkfs.ext4") is not None
    )


def bind_read_only(source: Path, target: Path) -> None:
    """Makes a read-only, nosuid, nodev view at `target`; may be repeated."""
    if not is_mounted(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        crash_point("mount.before")
        _mount_source(source, target)
        crash_point("mount.after")
    # Always done: a crash may have come after the mount, which is writable until here.
    _mount(None, target, _MS_PRIVATE)
    _mount(None, target, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _mount_source(source: Path, target: Path) -> None:
    """Mounts `source`, and where the kernel can, so that a job cannot read where it lies."""
    opened = OpenedSource(str(source))
    try:
        opened.mount_neutral(str(target), str(target.with_name(STAGE_NAME)))
    except OSError:
        # Not re-raised: some file systems take no overlay. The job can then read the path.
        _mount(str(source), target, _MS_BIND)
    finally:
        opened.close()


def mount_sized(
    disk: Path, target: Path, total_bytes: int, inodes: int, user: int, flags: str = "noexec"
) -> None:
    """Mounts an ext4 file of bounded size. All blocks are reserved now, so that the host's disk
    cannot fill up under a running job. May be repeated.
    """
    if not is_mounted(target):
        target.mkdir(parents=True, exist_ok=True)
        if not disk.exists():
            _make_disk(
                disk,
                total_bytes + (inodes + 16) * (_INODE_BYTES + _BLOCK_BYTES) + _SLACK_BYTES,
                inodes + 16,
                user,
            )
        crash_point("mount.before")
        options = f"loop,nosuid,nodev,{flags},noatime"
        _run("mount", "-t", "ext4", "-o", options, str(disk), str(target))
        crash_point("mount.after")
    # Always done: after a crash the folder would become part of the result on this machine only.
    lost_and_found = target / "lost+found"
    if (
        lost_and_found.is_dir()
        and not lost_and_found.is_symlink()
        and lost_and_found.stat().st_uid == 0
    ):
        lost_and_found.rmdir()


def mount_scratch(
    folder: Path, total_bytes: int, user: int, has_home: bool = False
) -> tuple[str, ...]:
    """Makes one volume for /scratch, /tmp and perhaps /home below `folder`; returns what to mount
    there. Programs in it may run, as in a memory file system. May be repeated.
    """
    volume = folder / SCRATCH_NAME
    inodes = min(SCRATCH_INODES_MAX, max(SCRATCH_INODES_LEAST, total_bytes // _SCRATCH_FILE_BYTES))
    mount_sized(volume.with_suffix(".ext4"), volume, total_bytes, inodes, user, "exec")
    places = [volume / "scratch", volume / "tmp", *([volume / "home"] if has_home else [])]
    for place in places:  # the job sees what is in them, and nothing beside them
        place.mkdir(exist_ok=True)
        place.chmod(0o1777)
    return tuple(map(str, places))


def unmount_volumes(folder: Path) -> None:
    """Of a lease. Raises Unavailable while one is in use."""
    for volume in (folder / "outputs", folder / SCRATCH_NAME):
        unmount(volume)
        if is_mounted(volume):
            raise Unavailable(f"{volume} is still in use")


def full_volumes(folder: Path) -> tuple[str, ...]:
    """Names the volumes of a lease in which a program could not write on."""
    found = []
    for name in ("outputs", SCRATCH_NAME):
        if (folder / f"{name}.ext4").exists() and is_mounted(folder / name):
            place = os.statvfs(folder / name)
            if place.f_bavail * place.f_frsize < _FULL_BYTES or not place.f_favail:
                found.append(name)
    return tuple(found)


def mount_memory(target: Path, total_bytes: int, inodes: int, user: int) -> None:
    """For root without loop devices. Lost when the machine restarts."""
    if is_mounted(target):
        return
    target.mkdir(parents=True, exist_ok=True)
    options = f"size={total_bytes},nr_inodes={inodes + 1},mode=0755,uid={user},gid={user}"
    crash_point("mount.before")
    _run("mount", "-t", "tmpfs", "-o", f"{options},nosuid,nodev,noexec", "tmpfs", str(target))
    crash_point("mount.after")


def mount_unswapped(target: Path) -> None:
    """Memory that is never swapped to disk, of the kernel's ramfs, for little that root writes. It
    has no limit of size.
    """
    if not is_mounted(target):
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        _run("mount", "-t", "ramfs", "-o", "mode=0700,nosuid,nodev,noexec", "ramfs", str(target))


def remove_unswapped(target: Path) -> None:
    """Ends `mount_unswapped`; a daemon and the keeper of its containers may do so at once."""
    if target.exists():
        unmount(target)
        with contextlib.suppress(FileNotFoundError):  # the other one has removed it
            target.rmdir()


def unmount(target: Path) -> None:
    """A mount that is still busy after a second is detached, and goes when its last user ends."""
    for attempt in range(_UNMOUNT_TRIES):
        if not is_mounted(target):
            return
        flags = _MNT_DETACH if attempt == _UNMOUNT_TRIES - 1 else 0
        crash_point("unmount.before")
        if _libc.umount2(os.fsencode(target), flags) != 0:
            time.sleep(0.05)  # the kernel releases a dead container's mounts a little later
        else:
            crash_point("unmount.after")


def is_mounted(target: Path) -> bool:
    """Reads the kernel's list: device numbers do not show a bind mount within one file system."""
    wanted = (
        str(target)
        .replace("\\", "\\134")
        .replace(" ", "\\040")
        .replace("\t", "\\011")
        .replace("\n", "\\012")
    )
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return any(line.split(" ")[4] == wanted for line in lines)


def _make_disk(disk: Path, size: int, inodes: int, user: int) -> None:
    fresh = disk.with_suffix(".new")
    descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        fresh.unlink()
        raise Unavailable(
            f"no room for {disk.stem} of a job ({size} bytes): {error.strerror}; free some disk",
            60.0,
        ) from error
    finally:
        os.close(descriptor)
    owner = f"root_owner={user}:{user},nodiscard,lazy_itable_init=1"
    _run(
        "mkfs.ext4",
        "-q",
        "-F",
        "-m",
        "0",
        "-b",
        str(_BLOCK_BYTES),
        "-O",
        "^has_journal",
        "-N",
        str(inodes),
        "-E",
        owner,
        str(fresh),
    )
    fresh.rename(disk)


def _mount(source: str | None, target: Path, flags: int) -> None:
    if (
        _libc.mount(
            source and os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None
        )
        != 0
    ):
        number = ctypes.get_errno()
        raise Unavailable(f"mount {target}: {os.strerror(number)}")


def find_program(name: str) -> str | None:
    """Looks also in folders that a PATH may lack."""
    for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin"):
        with contextlib.suppress(OSError):
            if os.access(f"{folder}/{name}", os.X_OK):
                return f"{folder}/{name}"
    return None


def _run(name: str, *arguments: str) -> None:
    program = find_program(name)
    if program is None:
        raise Unavailable(f"{name} is not installed", 60.0)
    try:
        subprocess.run(
            [program, *arguments],
            check=True,
            capture_output=True,
            timeout=_PROGRAM_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.CalledProcessError as error:
        raise Unavailable(
            f"{name} failed: {error.stderr.decode(errors='replace').strip()}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name} did not end within {_PROGRAM_SECONDS} s") from error
