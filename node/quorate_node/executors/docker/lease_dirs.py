"""Makes a lease's read-only inputs, and an output folder of limited size that outlives the exit.

Outputs have two forms. LOOP (needs root): a file that holds an ext4 file system, mounted on the
host. VOLUME (no root, or no loop devices): a tmpfs volume of the engine. The volume vanishes with
its last container, so a second container `...-hold`, which only waits, keeps it until removal. Its
pages count in the memory of the job's container, so that limit grows by as much. The engine returns
the outputs as a tar stream.
"""

import hashlib
import io
import json
import os
import platform
import posixpath
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import docker
import docker.errors

from quorate_node.executors.base import cgroups, mounts
from quorate_node.executors.base.hardened_profile import LABEL_LEASE, LABEL_OWNER, ContainerMounts
from quorate_node.executors.base.lease import (
    checked_source,
    is_root,
    mounts_of,
    refuse_disk_scratch,
)
from quorate_node.executors.base.outputs import (
    Allowance,
    OutputCaps,
    collect_tree,
    delete_tree,
    new_directory,
)
from quorate_node.executors.base.start_program import elf_file
from quorate_node.executors.docker.engine_connection import connect
from quorate_protocol.messages.ports import Mount, Task
from quorate_protocol.refusals import Code, Refused, Unavailable

HOLD_SUFFIX = "-hold"
REMOVE_ATTEMPTS = 5
REMOVE_PAUSE_SECONDS = 0.5
_WAITING = b"\x6a\x22\x58\x0f\x05\xeb\xf9"  # push 34 (pause); pop rax; syscall; jmp back


class DockerOutputs(StrEnum):
    """Where the outputs of containers are kept."""

    LOOP = "loop"
    VOLUME = "volume"


def choose_outputs() -> DockerOutputs:
    """LOOP if this process can mount, else VOLUME."""
    return DockerOutputs.LOOP if mounts.can_mount() else DockerOutputs.VOLUME


@dataclass(slots=True)
class LeaseDirs:
    """The folders of leases below `home`. Blocking; every call may be repeated."""

    api: docker.APIClient
    home: Path
    owner: str
    kind: DockerOutputs

    def folder(self, lease_id: str) -> Path:
        return self.home / lease_id

    def make_folder(self, lease_id: str) -> None:
        self.folder(lease_id).mkdir(mode=0o700, parents=True, exist_ok=True)

    def write_file(self, lease_id: str, name: str, content: bytes, mode: int) -> str:
        path = self.folder(lease_id) / "files" / name
        view = self.folder(lease_id) / "inputs" / name
        if mounts.is_mounted(view):
            return str(view)  # a crash came after this, and what it wrote does not change
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        if not is_root():
            return str(path)
        mounts.bind_read_only(path, view)
        return str(view)

    def prepare(self, task: Task, container: str, user: int) -> ContainerMounts:
        folder = self.folder(task.lease_id)
        inputs = tuple(
            (str(self._input(folder, index, mount)), mount.target)
            for index, mount in enumerate(mounts_of(task))
        )
        if self.kind is DockerOutputs.LOOP:
            mounts.mount_sized(
                folder / "outputs.ext4",
                folder / "outputs",
                task.output_bytes,
                task.output_inodes,
                user,
            )
            size = task.disk_scratch_bytes
            return ContainerMounts(
                inputs,
                str(folder / "outputs"),
                is_volume=False,
                are_views=is_root(),
                user=user,
                scratch=(mounts.mount_scratch(folder, size, user, task.is_rental) if size else ()),
            )
        refuse_disk_scratch(task)
        volume = self._volume(task, container, user)
        return ContainerMounts(
            inputs,
            volume,
            is_volume=True,
            outputs_in_memory=task.output_bytes,
            are_views=is_root(),
            user=user,
        )

    def collect(self, lease_id: str, container: str, destination: Path, caps: OutputCaps) -> None:
        folder = self.folder(lease_id)
        if (folder / "outputs.ext4").exists():
            # A restart of the machine unmounted it.
            mounts.mount_sized(folder / "outputs.ext4", folder / "outputs", 0, 0, 0)
            collect_tree(folder / "outputs", destination, caps)
            return
        gone = f"the outputs of lease {lease_id} were lost with the container that held them"
        try:
            # After the engine stopped, the engine still gives an archive, but of an empty volume.
            if not self.api.inspect_container(container + HOLD_SUFFIX)["State"]["Running"]:
                raise Unavailable(gone, 60.0)
            chunks, _ = self.api.get_archive(container + HOLD_SUFFIX, "/outputs")
        except docker.errors.NotFound as error:
            raise Unavailable(gone, 60.0) from error
        collect_tar(iter(chunks), destination, caps)

    def remove(self, lease_id: str, container: str) -> None:
        remove_container(self.api, container + HOLD_SUFFIX)
        try:
            self.api.remove_volume(container + "-outputs", force=True)
        except docker.errors.NotFound:
            pass  # outputs were kept on a loop device
        release_folder(self.folder(lease_id))

    def _input(self, folder: Path, index: int, mount: Mount) -> Path:
        """A read-only, nosuid, nodev mount; without root the input itself."""
        source = checked_source(mount, "container")
        if not is_root():
            return source
        view = folder / "inputs" / str(index)
        mounts.bind_read_only(source, view)
        return view

    def _volume(self, task: Task, container: str, user: int) -> str:
        name = container + "-outputs"
        labels = {LABEL_LEASE: task.lease_id, LABEL_OWNER: self.owner}
        size, inodes = task.output_bytes, task.output_inodes + 1
        flags = f"mode=0755,uid={user},gid={user},nosuid,nodev,noexec"
        options = f"size={size},nr_inodes={inodes},{flags}"
        self.api.create_volume(
            name,
            driver="local",
            driver_opts={"type": "tmpfs", "device": "tmpfs", "o": options},
            labels=labels,
        )
        body = {
            "Image": self._hold_image(),
            "Labels": labels,
            "NetworkDisabled": True,
            "HostConfig": {
                "NetworkMode": "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "IpcMode": "none",
                "PidsLimit": 1,
                "Memory": 16 << 20,
                "MemorySwap": 16 << 20,
                "LogConfig": {"Type": "none", "Config": {}},
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": name,
                        "Target": "/outputs",
                        "VolumeOptions": {"NoCopy": True},
                    }
                ],
            },
        }
        try:
            self.api.create_container_from_config(body, container + HOLD_SUFFIX)  # type: ignore[no-untyped-call]
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            # it exists from an earlier attempt to start this lease
        self.api.start(container + HOLD_SUFFIX)
        return name

    def _hold_image(self) -> str:
        digest, archive = hold_image()
        try:
            self.api.inspect_image(f"sha256:{digest}")  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            for event in self.api.load_image(archive):  # type: ignore[no-untyped-call]
                assert "error" not in event, event
        return f"sha256:{digest}"


def waiting_program() -> bytes:
    return elf_file(b"", _WAITING)


def remove_container(api: docker.APIClient, name: str) -> None:
    """No error if it is absent. An engine under load may answer 500, and succeed later."""
    for attempt in range(REMOVE_ATTEMPTS):
        try:
            api.remove_container(name, force=True, v=True)
            return
        except docker.errors.NotFound:
            return  # nothing to remove
        except docker.errors.APIError as error:
            if error.status_code == 409:
                return  # it is being removed already
            if error.status_code != 500 or attempt + 1 == REMOVE_ATTEMPTS:
                raise
        time.sleep(REMOVE_PAUSE_SECONDS)


def lend_secrets(folder: Path, user: int) -> None:
    """Lets the job's user read the files, and nobody else."""
    for path in (*folder.iterdir(), folder):
        os.chown(path, user, user)


def release_folder(folder: Path) -> None:
    """Unmounts and removes; a daemon and its keeper may do so at once."""
    inputs, views = folder / "inputs", list[Path]()
    with suppress(FileNotFoundError):  # the other one has removed it
        # A crash may have left the passing mount.
        views = [*inputs.glob("*"), *inputs.glob("stage/*/passing")]
    for view in views:
        mounts.unmount(view)
    mounts.unmount_volumes(folder)
    delete_tree(folder)


def release_secrets(home: Path, lease_id: str) -> None:
    """`home`: the folder of the daemon's containers."""
    mounts.remove_unswapped(home.with_name(mounts.SECRETS_NAME) / lease_id)


def reap(owner: str, home: Path | None = None) -> int:
    """Removes what a daemon left that will not start again, such as a killed devnet's.

    Returns how many containers it removed; may be repeated, also by another process. Raises the
    SDK's error if the engine does not answer.
    """
    api = connect()
    try:
        label = {"label": f"{LABEL_OWNER}={owner}"}
        found = api.containers(all=True, filters=label)
        for item in found:
            remove_container(api, item["Id"])
        for volume in api.volumes(filters=label)["Volumes"] or ():
            try:
                api.remove_volume(volume["Name"], force=True)
            except docker.errors.NotFound:
                pass  # another process removed it first
        for lease in {str(item["Labels"][LABEL_LEASE]) for item in found}:
            cgroups.remove_lease_groups(lease)
        if home is not None and home.is_dir():
            for folder in home.iterdir():
                release_folder(folder)
            for place in home.with_name(mounts.SECRETS_NAME).glob("*"):
                release_secrets(home, place.name)
        return len(found)
    finally:
        api.close()


def hold_image() -> tuple[str, bytes]:
    """Returns (config digest, archive) of an image that only waits.

    The job's image may have no program that sleeps, and a registry may be out of reach.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(
            "outputs without root need an x86-64 machine; run the provider as root", 3600.0
        )
    layer = _tar({"hold": (waiting_program(), 0o755)})
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Entrypoint": ["/hold"], "User": "65534:65534"},
            "history": [{"created": "1970-01-01T00:00:00Z"}],
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
        },
        sort_keys=True,
    ).encode()
    digest = hashlib.sha256(config).hexdigest()
    manifest = json.dumps(
        [{"Config": f"{digest}.json", "Layers": ["layer.tar"], "RepoTags": None}]
    ).encode()
    return digest, _tar(
        {
            f"{digest}.json": (config, 0o644),
            "layer.tar": (layer, 0o644),
            "manifest.json": (manifest, 0o644),
        }
    )


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


_COPY_BYTES = 1 << 20
_READ_MAX = 4 << 20


def collect_tar(chunks: Iterator[bytes], destination: Path, caps: OutputCaps) -> None:
    """Complete or not at all, by the rules of `outputs`. The engine sends sparse files at their
    full size, and links as links. The tar module extracts nothing.
    """
    with new_directory(destination) as partial:
        allowance = Allowance(caps)
        try:
            with tarfile.open(fileobj=_Stream(chunks), mode="r|") as archive:
                for member in archive:
                    try:
                        _take(archive, member, partial, allowance)
                    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
                        raise Refused(
                            Code.MALFORMED,
                            f"{member.name[:200]!r}: appears twice, or before its folder",
                        ) from error
                    # the module would keep every header in memory
                    archive.members = []  # type: ignore[attr-defined]
        except (tarfile.TarError, EOFError, RecursionError, UnicodeError) as error:
            raise Refused(Code.MALFORMED, f"outputs cannot be read: {error}") from error
        partial.rename(destination)


class _Stream(io.RawIOBase):
    """Chunks as a file, in bounded reads: the tar module reads a header in one piece."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = b""

    def read(self, size: int = -1, /) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        if size < 0 or size > _READ_MAX:
            raise Refused(Code.MALFORMED, "an extended tar header is larger than 4 MiB")
        parts = [self._buffer]
        held = len(self._buffer)
        while held < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            held += len(chunk)
        data = b"".join(parts)
        self._buffer = data[size:]
        return data[:size]


def _take(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, allowance: Allowance
) -> None:
    parts = member.name.strip("/").split("/")[1:]  # the first is the folder itself
    if not parts:
        return
    path = "/".join(parts)
    allowance.add_entry(path, parts[-1], len(parts))
    for part in parts[:-1]:
        if part in ("", ".", ".."):
            raise Refused(Code.MALFORMED, f"{path[:200]}: leads out of the outputs")
    if member.isdir():
        (target / path).mkdir()
    elif member.isreg() and not member.issparse():
        allowance.check_size(path, member.size)
        file = archive.extractfile(member)
        assert file is not None, "regular members have content"
        with (target / path).open("xb") as out:
            while chunk := file.read(_COPY_BYTES):
                allowance.add_copied(path, len(chunk))
                out.write(chunk)
    elif member.islnk():
        _copy_linked(target, path, member.linkname, allowance)
    else:
        raise Refused(
            Code.MALFORMED,
            f"{path[:200]}: is a link or special file; only files and directories can be outputs",
        )


def _copy_linked(target: Path, path: str, link: str, allowance: Allowance) -> None:
    """Copies the second name of one file from the first, which was written before."""
    first = posixpath.normpath("/".join(link.strip("/").split("/")[1:]))
    if first.startswith(("..", "/")) or not (target / first).is_file():
        raise Refused(Code.MALFORMED, f"{path[:200]}: links to something outside the outputs")
    with (target / first).open("rb") as source, (target / path).open("xb") as out:
        while chunk := source.read(_COPY_BYTES):
            allowance.add_copied(path, len(chunk))
            out.write(chunk)
