"""The executor for machines without a container engine: runs tasks in bubblewrap.

Uses namespaces, our seccomp profile and control groups. The supervisor gives up root before it
starts bubblewrap, so an escape from the sandbox leads to user 65534 and not to root. Without root,
or without writable control groups, the supervisor polls memory and outputs, and nothing limits
processor shares. `limits` says which applies.
"""

import asyncio
import json
import os
import platform
import posixpath
import resource
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from quorate_content.images.image_info import ImageInfo, refuse_shell_command
from quorate_node.executors.base import cgroups, mounts
from quorate_node.executors.base.cgroups import Counters, LeaseGroups, LeaseLimits
from quorate_node.executors.base.hardened_profile import (
    LEAST_BYTES,
    LIMITS,
    PATH_DEFAULT,
    SCRATCH_TARGETS,
    check_targets,
    program_env,
)
from quorate_node.executors.base.images import ArchiveInfoCache, volumes_to_mount_over
from quorate_node.executors.base.lease import (
    checked_source,
    is_root,
    mounts_of,
    refuse_disk_scratch,
)
from quorate_node.executors.base.outputs import OutputCaps, open_up
from quorate_node.executors.base.seccomp_bpf import ARCHITECTURES, filter_for
from quorate_node.executors.base.slot_users import SlotUsers
from quorate_node.executors.sandbox.rootfs import RootfsTree
from quorate_node.executors.sandbox.rootfs_cache import RootfsCache
from quorate_node.executors.sandbox.supervised_leases import (
    SupervisedExecutor,
    end_lease,
    lease_state,
    spawn_supervisor,
)
from quorate_protocol.messages.ports import Clock, Exit, Sandbox, Task, TaskState, Usage
from quorate_protocol.refusals import Code, Refused, Unavailable

# The supervisor mounts over this folder, in a mount namespace that ends with the program. Every
# machine has it.
STAGE = "/tmp"
_MASKED = (
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
)
# Python has no name for the last two; the numbers are those of x86-64 and aarch64.
_LIMIT_NUMBERS = {
    "core": resource.RLIMIT_CORE,
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "sigpending": 11,
    "msgqueue": 12,
}
# One process in the group is not the job's: bubblewrap's, outside the sandbox. Its first process
# inside counts for the job, as an engine's init does.
_BESIDE = 1
_TRIAL_SECONDS = 20
_WATCHED = (
    "processes and memory by polling (kernels from "
    f"{'.'.join(map(str, cgroups.COUNTING_KERNEL))} on count processes themselves)"
)
# Only control groups count memory that belongs to no process.
_UNCOUNTED = frozenset({"shmget", "semget", "msgget"})
_NO_GROUPS = "no control groups can be made here, run as root where /sys/fs/cgroup can be written"
_INSTALL = "install it: apt-get install bubblewrap"


class BwrapOutputs(StrEnum):
    """How outputs are kept within their size."""

    LOOP = "loop"  # an ext4 file system in a file
    # A memory file system. Its pages count in the memory of the job, so that limit
    # grows by its size.
    MEMORY = "memory"
    FOLDER = "folder"  # without root: an ordinary folder whose size is polled


class BwrapExecutor(SupervisedExecutor):
    """`Executor` on bubblewrap. `images` holds the unpacked images."""

    sandbox = Sandbox.BWRAP

    def __init__(
        self,
        home: Path,
        images: Path,
        clock: Clock,
        outputs: BwrapOutputs | None = None,
        first_user: int = 0,
    ) -> None:
        super().__init__(home, clock)
        self._outputs = outputs or choose_outputs()
        self.has_volumes = self._outputs is BwrapOutputs.LOOP
        self._infos = ArchiveInfoCache()
        self._roots = RootfsCache(images, self._roots_in_use)
        self._users = SlotUsers(home, first_user)
        self._has_groups = False

    @property
    def limits(self) -> str:
        if self._has_groups:
            return f"limits by control groups, outputs in a {self._outputs.value}"
        counted = (
            "processes by the kernel, memory by polling"
            if cgroups.counts_by_namespace(platform.release())
            else _WATCHED
        )
        return (
            f"limits of {counted}, no processor shares: {_NO_GROUPS}; outputs in a "
            f"{self._outputs.value}"
        )

    async def check(self) -> None:
        """Makes one sandbox as a trial. Raises Unavailable with the remedy."""
        await super().check()
        await asyncio.to_thread(self._try)

    def _try(self) -> None:
        check_bwrap()
        self._has_groups = cgroups.can_make_groups()

    # ---------------------------------------------------------------------------- in worker threads

    def _begin(self, task: Task) -> None:
        if not isinstance(task.image, Path):
            raise Refused(
                Code.UNSUPPORTED,
                "image: registry images need a container engine; name the image by CID",
            )
        info = self._infos.of(task.image)
        check_task(task, info)
        if not self.has_volumes:
            refuse_disk_scratch(task)
        folder = self._folder(task.lease_id)
        end_lease(folder)  # a killed supervisor may have left it; the program runs again
        folder.mkdir(mode=0o700)
        try:
            root = self._roots.ensure(task.image, info)
            covered = _paths_to_mount_over(root, task, info)
            _check_folder(root, task.working_dir)
            # without root, all jobs run as this process's own user
            user = self._users.of(task.lease_id) if is_root() else USER
            self._make_outputs(task, folder, user)
            size = task.disk_scratch_bytes
            scratch = mounts.mount_scratch(folder, size, user) if size else ()
            spawn_supervisor(folder, self._plan_of(task, info, root, covered, scratch, user))
        except (Refused, Unavailable):
            end_lease(folder)
            raise

    def _make_outputs(self, task: Task, folder: Path, user: int) -> None:
        match self._outputs:
            case BwrapOutputs.LOOP:
                mounts.mount_sized(
                    folder / "outputs.ext4",
                    folder / "outputs",
                    task.output_bytes,
                    task.output_inodes,
                    user,
                )
            case BwrapOutputs.MEMORY:
                mounts.mount_memory(folder / "outputs", task.output_bytes, task.output_inodes, user)
            case BwrapOutputs.FOLDER:
                (folder / "outputs").mkdir()
                if is_root():
                    os.chown(folder / "outputs", user, user)

    def _plan_of(
        self,
        task: Task,
        info: ImageInfo,
        root: Path,
        covered: tuple[str, ...],
        scratch: tuple[str, ...],
        user: int,
    ) -> Mapping[str, object]:
        folder = self._folder(task.lease_id)
        written = (str(folder / "outputs"), *scratch)
        sources = [
            str(root),
            *written,
            *(str(checked_source(mount, "sandbox")) for mount in mounts_of(task)),
        ]
        seen = [f"{STAGE}/{index}" for index in range(len(sources))] if is_root() else sources
        masks = [path for path in _MASKED if os.path.isfile(path)]
        groups = self._groups(task)
        (folder / "seccomp").write_bytes(
            filter_for(platform.machine(), frozenset() if groups else _UNCOUNTED)
        )
        is_watched = self._outputs is BwrapOutputs.FOLDER
        return {
            "argv": bwrap_command(
                _program(),
                task,
                info,
                SandboxMounts(
                    seen[0],
                    seen[1],
                    tuple(seen[1 + len(written) :]),
                    covered,
                    tuple(seen[2 : 1 + len(written)]),
                ),
                masks,
            ),
            "env": {},
            "cwd": "/",
            "root": root.name,
            "max_duration": task.max_duration,
            "memory_bytes": task.memory_bytes,
            "file_bytes": max(task.output_bytes, task.scratch_bytes, task.shm_bytes)
            if is_watched
            else -1,
            "output_bytes": task.output_bytes,
            "output_inodes": task.output_inodes,
            "sandbox": {
                "seccomp": str(folder / "seccomp"),
                "groups": [str(group) for group in groups.folders] if groups else [],
                "kills": str(groups.kills) if groups else "",
                "processes": task.pids,
                "processes_counted": task.pids
                if groups is None and cgroups.counts_by_namespace(platform.release())
                else -1,
                "stage": STAGE if is_root() else "",
                "sources": sources,
                "written": len(written),
                "user": user,
                "limits": {_LIMIT_NUMBERS[name]: limit for name, limit in LIMITS.items()},
                "in_memory": [
                    str(root),
                    [
                        *(() if scratch else SCRATCH_TARGETS),
                        *(["/dev/shm"] if task.shm_bytes else []),
                        *covered,
                    ],
                ],
                "watched": str(folder / "outputs") if is_watched else "",
            },
        }

    def _groups(self, task: Task) -> LeaseGroups | None:
        memory = task.memory_bytes + (
            task.output_bytes if self._outputs is BwrapOutputs.MEMORY else 0
        )
        return cgroups.make_lease_groups(
            task.lease_id, LeaseLimits(memory, task.pids + _BESIDE, task.cpu_millis)
        )

    def _exit(self, lease_id: str) -> Exit:
        ended = super()._exit(lease_id)
        counted = cgroups.lease_counters(lease_id)
        counters = (
            counted
            if counted.cpu_ms
            else Counters(ended.usage.cpu_ms, ended.usage.peak_memory_bytes)
        )
        usage = Usage(ended.usage.wall_ms, counters.cpu_ms, counters.peak_memory_bytes)
        return Exit(ended.status, usage, mounts.full_volumes(self._folder(lease_id)))

    def _collect(self, folder: Path, destination: Path, caps: OutputCaps) -> None:
        if lease_state(folder) is not TaskState.EXITED:
            raise Unavailable(f"lease {folder.name} has not ended")
        if (folder / "outputs.ext4").exists():
            # Needed after a restart of the machine, which unmounts it.
            mounts.mount_sized(folder / "outputs.ext4", folder / "outputs", 0, 0, 0)
        elif (
            not any((folder / "outputs").iterdir())
            and self._outputs is BwrapOutputs.MEMORY
            and not mounts.is_mounted(folder / "outputs")
        ):
            raise Unavailable(
                f"the outputs of lease {folder.name} were lost when the machine restarted", 60.0
            )
        if self._outputs is BwrapOutputs.FOLDER:
            # Root can read what a program closed to its own user. Results must not differ.
            open_up(folder / "outputs")
        super()._collect(folder, destination, caps)

    def _roots_in_use(self) -> frozenset[str]:
        plans = list(self._home.glob("*/plan.json")) if self._home.is_dir() else []
        return frozenset(str(json.loads(plan.read_text()).get("root", "")) for plan in plans)


def check_bwrap() -> None:
    """Makes one sandbox as a trial. Raises Unavailable with the remedy."""
    if platform.machine() not in ARCHITECTURES:
        raise Unavailable(
            f"bubblewrap sandboxes need {' or '.join(ARCHITECTURES)}, not {platform.machine()}",
            3600.0,
        )
    words = [
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--uid",
        str(USER),
        "--gid",
        str(USER),
    ]
    words += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"]
    try:
        done = subprocess.run(
            [_program(), *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            timeout=_TRIAL_SECONDS,
            check=False,
            user=USER if is_root() else None,
            group=USER if is_root() else None,
            extra_groups=[] if is_root() else None,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable("bubblewrap does not answer", 60.0) from error
    if done.returncode != 0:
        remedy = (
            "allow user namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )
        raise Unavailable(
            f"bubblewrap cannot make a sandbox here "
            f"({done.stderr.decode(errors='replace').strip()}); "
            f"{remedy}",
            3600.0,
        )


def choose_outputs() -> BwrapOutputs:
    """Returns the safest form of outputs that this process may use."""
    if mounts.can_mount():
        return BwrapOutputs.LOOP
    return BwrapOutputs.MEMORY if is_root() else BwrapOutputs.FOLDER


def _check_folder(root: Path, working_dir: str) -> None:
    """Refuses a working folder that is neither in the image nor one that we mount."""
    place = working_folder(working_dir)
    if not place.startswith(("/scratch", "/tmp", "/inputs", "/outputs")) and not RootfsTree(
        root
    ).has_folder(place):
        raise Refused(
            Code.UNSUPPORTED, f"working_dir: the image has no folder {working_dir[:200]!r}"
        )


def _paths_to_mount_over(root: Path, task: Task, info: ImageInfo) -> tuple[str, ...]:
    """Returns paths without links: bubblewrap would follow a link out of the image, and make
    folders on the machine. `/tmp` is new and has nothing of the image.
    """
    inputs = [mount.target for mount in task.mounts]
    found = volumes_to_mount_over(info.volumes, inputs)
    fresh = [path for path in found if path.startswith("/tmp/")]
    return volumes_to_mount_over(
        [*fresh, *RootfsTree(root).make_folders([path for path in found if path not in fresh])],
        inputs,
    )


def _program() -> str:
    program = mounts.find_program("bwrap")
    if program is None:
        raise Unavailable(f"bubblewrap is not installed; {_INSTALL}", 60.0)
    return program


USER = 65534


@dataclass(frozen=True, slots=True)
class SandboxMounts:
    """The sources of the sandbox's mounts on the host; `inputs` in the task's order."""

    root: str
    outputs: str
    inputs: tuple[str, ...]
    # Folders inside the root that get a memory file system: the image's volumes.
    covered: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()  # of /scratch and /tmp; none if they are in memory


def check_task(task: Task, image: ImageInfo) -> tuple[str, ...]:
    """Returns the words of the command. Raises Refused(UNSUPPORTED), which names the field."""
    check_targets([mount.target for mount in task.mounts])
    for mount in task.mounts:
        if not mount.target.startswith("/inputs/"):
            raise Refused(
                Code.UNSUPPORTED,
                f"mounts: {mount.target[:200]!r}: in this sandbox inputs must be below /inputs",
            )
    if task.gpus:
        raise Refused(Code.UNSUPPORTED, "gpus: they need a container engine")
    argv = task.argv or (*image.entrypoint, *image.command)
    if not argv:
        raise Refused(Code.MALFORMED, "command: the job gives none and the image has none")
    refuse_shell_command(image, argv)
    return argv


def bwrap_command(
    program: str, task: Task, image: ImageInfo, sources: SandboxMounts, masks: Sequence[str]
) -> list[str]:
    """What the program sees is that of the hardened container. A job chooses only what `Task` has
    fields for. `masks` are files of /proc that this kernel has and that a job must not read.
    """
    argv = check_task(task, image)
    words = [
        program,
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    words += [
        "--die-with-parent",
        "--uid",
        str(USER),
        "--gid",
        str(USER),
        "--cap-drop",
        "ALL",
        "--hostname",
        "job",
        "--clearenv",
    ]
    for name, value in environment(task, image).items():
        words += ["--setenv", name, value]
    words += ["--ro-bind", sources.root, "/", "--proc", "/proc", "--dev", "/dev"]
    # The machine has few terminals for all jobs together.
    words += ["--dev-bind", "/dev/null", "/dev/pts/ptmx", "--mqueue", "/dev/mqueue"]
    for mask in masks:
        words += ["--ro-bind", "/dev/null", mask]
    # Otherwise a program could undo its score as the first to be killed when memory runs out
    # (`supervised_program.OOM_SCORE`).
    words += ["--remount-ro", "/proc"]
    if task.shm_bytes:
        words += _sized("/dev/shm", task.shm_bytes)
    words += ["--remount-ro", "/dev"]
    for source, target in zip(sources.scratch, SCRATCH_TARGETS):
        words += ["--bind", source, target]
    for target in () if sources.scratch else SCRATCH_TARGETS:
        words += _sized(target, task.scratch_bytes)
    for target in sources.covered:
        words += _sized(target, task.scratch_bytes)
    words += ["--perms", "0755", "--tmpfs", "/inputs"]
    for source, mount in zip(sources.inputs, mounts_of(task), strict=True):
        words += ["--ro-bind", source, mount.target]
    words += ["--remount-ro", "/inputs", "--bind", sources.outputs, "/outputs"]
    folder = working_folder(task.working_dir)
    if folder.startswith(tuple(f"{place}/" for place in SCRATCH_TARGETS)):
        words += ["--dir", folder]
    return [*words, "--chdir", folder, "--", *argv]


def working_folder(working_dir: str) -> str:
    """With `..` bubblewrap would make a folder outside the sandbox, on the machine itself."""
    return posixpath.normpath("/" + working_dir.lstrip("/")) if working_dir else "/scratch"


def environment(task: Task, image: ImageInfo) -> Mapping[str, str]:
    """May hold loader variables, because no host program runs with it."""
    return {"PATH": PATH_DEFAULT, "HOSTNAME": "job", **program_env(task, image.env)}


def _sized(target: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(max(size, LEAST_BYTES)), "--tmpfs", target]
