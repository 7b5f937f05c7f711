"""Converts a task to the request that creates its hardened container. Pure.

A job chooses only what `Task` has fields for; nothing else of it reaches the host configuration.
Each setting stops an attack that succeeds against an engine's defaults. The attacks are: unbounded
forks, memory, disk and logs; a network; setuid programs; device nodes; io_uring and vsock; volumes
that an image declares; environment variables that control the loader or the GPU hooks, which run as
root on the host.
"""

import json
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate_node.executors.base.images import volumes_to_mount_over
from quorate_node.executors.base.lease import HOOK_TARGET, python_path
from quorate_node.executors.base.slot_users import SHOWN_USER
from quorate_node.executors.base.start_program import (
    BIND_ALL,
    IGNORE_SET_USER,
    MAKE_READ_ONLY,
    NEW_NAMESPACES,
)
from quorate_protocol.messages.ports import Task
from quorate_protocol.refusals import Code, Refused

# All sandboxes have these alike, because auditors compare results to the bit. Engines and kernels
# have defaults of their own.
PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FILES: Mapping[str, str] = {
    "/etc/hosts": (
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tjob\n"
    ),
    "/etc/resolv.conf": "",
}
"""Files that name the machine and its network; `/etc/hostname` is `job` in every sandbox."""

_MIB = 1 << 20
UNLIMITED = -1
LIMITS: Mapping[str, tuple[int, int]] = {
    "core": (0, 0),
    "nofile": (8192, 8192),
    "memlock": (65_536, 65_536),
    "msgqueue": (819_200, 819_200),
    "nproc": (16_384, 16_384),  # the lease's group has the lower limit
    "sigpending": (4096, 4096),
    "stack": (8 * _MIB, UNLIMITED),
}
"""Soft and hard limits of a job's processes, by the kernel's name.

An engine inside another container cannot raise its own limits, so these are low.
"""


LABEL_LEASE = "quorate.lease"
LABEL_OWNER = "quorate.owner"
LABEL_ENGINE_BOOT = "quorate.engine-life"
LABEL_MAX_DURATION = "quorate.max-duration"
LABEL_OUTPUT_BYTES = "quorate.output-bytes"
LABEL_OUTPUT_INODES = "quorate.output-inodes"

START_TARGET = "/sbin/quorate-start"
SECRETS_TARGET = "/run/secrets"
ENTER_TARGET = "/sbin/quorate-enter"  # starts SHELL_TARGET as START_TARGET starts the job
SHELL_TARGET = "/sbin/quorate-shell"  # what each shell and command in a rental runs
WAIT_TARGET = "/sbin/quorate-wait"  # a rental's own program if its spec names none
SCRATCH_TARGETS = ("/scratch", "/tmp")
HOME_TARGET = "/home"  # of rentals; it lies where /scratch and /tmp do
OOM_SCORE = 1000  # the kernel kills jobs first when the machine has no memory left
LEAST_BYTES = 4096  # of a memory file system: size 0 would mean no limit
RUNTIME_GVISOR = "runsc"
_GVISOR_PIDS = 64
_ENV_PROGRAM = "/usr/bin/env"
_HIDDEN_PREFIX = "LD_"
# Variables by which an image could ask the GPU hooks for devices that it was not given.
_GPU_CONTROLS = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_GDS",
    "NVIDIA_MOFED",
    "NVIDIA_NVSWITCH",
    "NVIDIA_GDRCOPY",
    "NVIDIA_DRIVER_CAPABILITIES",
)
_TARGETS_TAKEN = (
    "/proc",
    "/sys",
    "/dev",
    "/outputs",
    "/scratch",
    "/tmp",
    "/etc",
    "/sbin/docker-init",
    START_TARGET,
    SECRETS_TARGET,
    ENTER_TARGET,
    SHELL_TARGET,
    WAIT_TARGET,
)
_TERMINALS = "/dev/pts/ptmx"  # the machine has few for all jobs, so only rentals may make them
# What an engine masks by default, and then terminals, and files of the kernel that name other
# leases and the owner's folders.
_MASKED = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/interrupts",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    _TERMINALS,
    "/proc/diskstats",
    "/proc/partitions",
    "/sys/block",
    "/sys/class/block",
    "/sys/dev/block",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/bdi",
)
COMMAND_VARIABLE = "QUORATE_COMMAND"
_SHELL = Path(__file__).with_name("shell.sh")
_CACHES = {
    "HOME": "",
    "TMPDIR": "",
    "XDG_CACHE_HOME": "/.cache",
    "XDG_CONFIG_HOME": "/.config",
    "XDG_DATA_HOME": "/.local/share",
    "HF_HOME": "/.cache/huggingface",
    "TORCH_HOME": "/.cache/torch",
    "TRITON_CACHE_DIR": "/.cache/triton",
    "CUDA_CACHE_PATH": "/.cache/cuda",
    "NUMBA_CACHE_DIR": "/.cache/numba",
    "MPLCONFIGDIR": "/.cache/matplotlib",
}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Empty `cgroup_parent`: the engine chooses. Empty `runtime`: its default (runc)."""

    seccomp: str  # the profile as JSON text
    cgroup_parent: str = ""
    runtime: str = ""
    has_cdi: bool = False
    has_ipv6: bool = False
    has_user_namespaces: bool = False  # whether containers may make them, see `start_program`
    boot_id: str = ""  # of the engine's current run, see `engine_boot_id`


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image that the engine has.

    `has_env`: whether it has /usr/bin/env; None if unknown (registry images).
    """

    reference: str
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    has_env: bool | None
    volumes: tuple[str, ...] = ()  # as the image declares them


@dataclass(frozen=True, slots=True)
class ContainerMounts:
    """`outputs` is a host folder or a volume's name; `outputs_in_memory`: its bytes that count as
    memory. `are_views`: inputs are our own read-only mounts. The engine must not remount those: it
    would drop nosuid and nodev.
    """

    inputs: tuple[tuple[str, str], ...]  # (host path, target)
    outputs: str
    is_volume: bool
    outputs_in_memory: int = 0
    are_views: bool = False
    # host folders of /scratch, /tmp and a rental's /home; () in memory
    scratch: tuple[str, ...] = ()
    user: int = SHOWN_USER  # that the container runs as
    start: str = ""  # the host path of the program that starts the job as another user
    files: tuple[tuple[str, str], ...] = ()  # (host path, target) of files that all sandboxes have


def container_request(
    task: Task, owner: str, engine: EngineFacts, image: ImageFacts, mounts: ContainerMounts
) -> dict[str, object]:
    """The body of the engine's create call. Raises Refused(UNSUPPORTED) with the field."""
    ours = () if task.hook is None else (HOOK_TARGET,)
    check_targets(
        [target for _, target in mounts.inputs if target not in ours],
        (HOME_TARGET,) if task.is_rental else (),
    )
    _, env = _environment(task, image)
    start = [START_TARGET] if mounts.start else []
    return {
        "Image": image.reference,
        "Entrypoint": [*start, *program_words(task, image)],
        "Cmd": [],
        "Env": env,
        "User": f"{mounts.user}:{mounts.user}",
        "WorkingDir": task.working_dir or "/scratch",
        "Hostname": "job",
        "Domainname": "",
        # The network mode `none` is enough. True would also remove /etc/hosts, and so localhost.
        "NetworkDisabled": False,
        "Tty": False,
        "OpenStdin": False,
        "AttachStdout": True,
        "AttachStderr": True,
        "Healthcheck": {"Test": ["NONE"]},
        # The engine adds the image's volumes, unless the folder is a mount already. See
        # `volumes_to_mount_over`.
        "Volumes": {},
        "Labels": {
            LABEL_LEASE: task.lease_id,
            LABEL_OWNER: owner,
            LABEL_ENGINE_BOOT: engine.boot_id,
            LABEL_MAX_DURATION: str(task.max_duration),
            LABEL_OUTPUT_BYTES: str(task.output_bytes),
            LABEL_OUTPUT_INODES: str(task.output_inodes),
        },
        "HostConfig": _host_config(
            task,
            engine,
            mounts,
            volumes_to_mount_over(image.volumes, [target for _, target in mounts.inputs]),
        ),
    }


def program_words(task: Task, image: ImageFacts) -> list[str]:
    """Raises Refused(UNSUPPORTED)."""
    hidden, _ = _environment(task, image)
    return [*_env_restorer(hidden, image), *_command(task, image)]


def shell_script(task: Task, image: ImageFacts) -> bytes:
    """SHELL_TARGET: runs the command in a variable, or else a shell."""
    hidden, _ = _environment(task, image)
    restored = [f"export {name}={shlex.quote(hidden[name])}\n" for name in sorted(hidden)]
    return "".join(["#!/bin/sh\n", *restored, _SHELL.read_text()]).encode()


def program_path(task: Task, image: ImageFacts) -> str:
    named = dict(item.partition("=")[::2] for item in image.env)
    return {"PATH": PATH_DEFAULT, **named, **task.env}["PATH"]


def unrequested_mounts(body: Mapping[str, object], container: Mapping[str, object]) -> str:
    """Lists mounts that were not requested; "" if there are none."""
    config = body["HostConfig"]
    assert isinstance(config, dict), "a request as made here"
    asked = {
        (item["Type"], item["Source"] if item["Type"] == "volume" else "", item["Target"])
        for item in config["Mounts"]
    }
    found = [_mount_of(item) for item in _list(container["Mounts"])]
    # Engines list a memory file system either nowhere or by its target; it uses no disk.
    strange = [
        item
        for item in found
        if item not in asked and (item[0] != "tmpfs" or item[2] not in config["Tmpfs"])
    ]
    return ", ".join(f"a {kind} at {target[:200]}" for kind, _, target in sorted(strange)[:8])


def _mount_of(item: Mapping[str, object]) -> tuple[str, str, str]:
    """Leaves out sources of bind mounts: engines in a virtual machine write them differently."""
    kind = str(item["Type"])
    return kind, str(item["Name"]) if kind == "volume" else "", str(item["Destination"])


def _list(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list), "the engine lists mounts"
    return value


def check_targets(targets: Sequence[str], more_taken: Sequence[str] = ()) -> None:
    """Raises Refused for taken or nested targets: the engine would make a folder in the store."""
    for target in targets:
        if (
            not target.startswith("/")
            or posixpath.normpath(target) != target
            or target == "/"
            or ":" in target
        ):
            raise Refused(
                Code.UNSUPPORTED, f"mounts: {target[:200]!r} is not a plain absolute path"
            )
        if any(
            _is_below(target, taken) or _is_below(taken, target)
            for taken in (*_TARGETS_TAKEN, *more_taken)
        ):
            raise Refused(
                Code.UNSUPPORTED, f"mounts: {target[:200]!r} is taken; put inputs below /inputs"
            )
    for index, target in enumerate(targets):
        if any(
            _is_below(target, other) for position, other in enumerate(targets) if position != index
        ):
            raise Refused(Code.UNSUPPORTED, f"mounts: {target[:200]!r} lies inside another input")


def standard_env(
    inputs: str = "/inputs", outputs: str = "/outputs", scratch: str = "/scratch"
) -> dict[str, str]:
    return {
        **{name: scratch + below for name, below in _CACHES.items()},
        "QUORATE_INPUTS": inputs,
        "QUORATE_OUTPUTS": outputs,
        "QUORATE_SCRATCH": scratch,
    }


def _home_env() -> dict[str, str]:
    """What a rental keeps lies in /home; what is temporary does not."""
    return {name: HOME_TARGET + below for name, below in _CACHES.items() if name != "TMPDIR"}


def program_env(task: Task, image_env: Sequence[str]) -> dict[str, str]:
    """The image's variables, ours, the job's."""
    # An image may also list words that are no variables.
    named = dict(item.partition("=")[::2] for item in image_env if "=" in item[1:])
    wanted = {
        name: value
        for name, value in {
            **named,
            **standard_env(),
            **task.env,
            **python_path(task, {**named, **task.env}),
        }.items()
        if name not in _GPU_CONTROLS
    }
    wanted["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    if not task.gpus:
        wanted["NVIDIA_VISIBLE_DEVICES"] = "void"
    return wanted


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + "/")


def _environment(task: Task, image: ImageFacts) -> tuple[dict[str, str], list[str]]:
    """Returns (loader variables to restore, engine's list). A bare name removes a variable."""
    named = dict(item.partition("=")[::2] for item in image.env)
    path = python_path(task, {**named, **task.env})
    ours = {**standard_env(), **(_home_env() if task.is_rental else {})}
    wanted = {**ours, **task.env, **path, "PWD": task.working_dir or "/scratch"}
    hidden = {
        name: value
        for name, value in {**named, **wanted}.items()
        if name.startswith(_HIDDEN_PREFIX)
    }
    removed = [name for name in named if name.startswith(_HIDDEN_PREFIX) or name in _GPU_CONTROLS]
    wanted = {
        name: value
        for name, value in wanted.items()
        if name not in hidden and name not in _GPU_CONTROLS
    }
    wanted["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    if not task.gpus:
        wanted["NVIDIA_VISIBLE_DEVICES"] = "void"
    removed = [name for name in removed if name not in wanted]
    return hidden, sorted(removed) + [f"{name}={wanted[name]}" for name in sorted(wanted)]


def _env_restorer(hidden: Mapping[str, str], image: ImageFacts) -> list[str]:
    """Restores loader variables inside, after all hooks on the host ran. The engine's init cannot,
    and not every image has a shell. An image known to lack `env` would run differently, so it is
    refused.
    """
    if not hidden:
        return []
    if image.has_env is False:
        raise Refused(
            Code.UNSUPPORTED,
            f"image: sets {', '.join(sorted(hidden))}, which is hidden from the engine, and has "
            f"no {_ENV_PROGRAM} to restore it",
        )
    return [_ENV_PROGRAM, *(f"{name}={hidden[name]}" for name in sorted(hidden))]


def _command(task: Task, image: ImageFacts) -> list[str]:
    command = list(task.argv) or [*image.entrypoint, *image.command]
    if not command:
        raise Refused(Code.MALFORMED, "command: the job gives none and the image has none")
    return command


def _host_config(
    task: Task, engine: EngineFacts, mounts: ContainerMounts, covered: Sequence[str]
) -> dict[str, object]:
    memory = task.memory_bytes + mounts.outputs_in_memory
    sized = f"nosuid,nodev,size={max(task.scratch_bytes, LEAST_BYTES)},mode=1777"
    scratch, cover = f"rw,exec,{sized}", f"rw,noexec,{sized}"
    config: dict[str, object] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges", f"seccomp={_seccomp(engine, mounts)}"],
        "Init": True,
        "IpcMode": "private" if task.shm_bytes else "none",
        "CgroupnsMode": "private",
        "ShmSize": task.shm_bytes,
        "PidsLimit": _host_pids(task, engine),
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": task.cpu_millis * 1_000_000,
        "OomKillDisable": False,
        "MaskedPaths": [path for path in _MASKED if path != _TERMINALS or not task.is_rental],
        "OomScoreAdj": OOM_SCORE,
        "Ulimits": [
            {"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in LIMITS.items()
        ],
        "Tmpfs": {
            **dict.fromkeys(covered, cover),
            **({} if mounts.scratch else dict.fromkeys(_scratch_targets(task), scratch)),
        },
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Mounts": _mounts(task, mounts),
    }
    if engine.has_ipv6:
        # Without a network engines turn IPv6 off, and with it ::1.
        config["Sysctls"] = {
            f"net.ipv6.conf.{name}.disable_ipv6": "0" for name in ("all", "default", "lo")
        }
    if engine.cgroup_parent:
        config["CgroupParent"] = f"{engine.cgroup_parent}/{task.lease_id}"
    if engine.runtime and not task.gpus:
        config["Runtime"] = engine.runtime
    if task.gpus:
        config["DeviceRequests"] = [_gpu_request(task.gpus, engine.has_cdi)]
    return config


def _seccomp(engine: EngineFacts, mounts: ContainerMounts) -> str:
    """Our start program makes namespaces and /proc read-only, then refuses both to the job."""
    if not mounts.start:
        return engine.seccomp
    profile = json.loads(engine.seccomp)
    for name, index, value in (
        ("unshare", 0, NEW_NAMESPACES),
        ("mount", 3, BIND_ALL),
        ("mount", 3, MAKE_READ_ONLY),
        ("mount", 3, IGNORE_SET_USER),
    ):
        test = {"index": index, "value": value, "op": "SCMP_CMP_EQ"}
        profile["syscalls"].append({"names": [name], "action": "SCMP_ACT_ALLOW", "args": [test]})
    return json.dumps(profile)


def runs_in_gvisor(task: Task, engine: EngineFacts) -> bool:
    """gVisor has no devices of ours."""
    return engine.runtime == RUNTIME_GVISOR and not task.gpus


def _host_pids(task: Task, engine: EngineFacts) -> int:
    """gVisor has about thirty threads, and two a process (measured); the host counts them."""
    return 2 * task.pids + _GVISOR_PIDS if runs_in_gvisor(task, engine) else task.pids


def _scratch_targets(task: Task) -> tuple[str, ...]:
    return (*SCRATCH_TARGETS, HOME_TARGET) if task.is_rental else SCRATCH_TARGETS


def _mounts(task: Task, mounts: ContainerMounts) -> list[dict[str, object]]:
    """Not `Binds`: it splits at colons, and makes folders for sources that are missing."""
    inputs: list[dict[str, object]] = [
        {
            "Type": "bind",
            "Source": source,
            "Target": target,
            "ReadOnly": not mounts.are_views,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for source, target in mounts.inputs
    ]
    outputs: dict[str, object] = {
        "Type": "volume" if mounts.is_volume else "bind",
        "Source": mounts.outputs,
        "Target": "/outputs",
    }
    if mounts.is_volume:
        outputs["VolumeOptions"] = {"NoCopy": True}
    scratch: list[dict[str, object]] = [
        {"Type": "bind", "Source": source, "Target": target}
        for source, target in zip(mounts.scratch, _scratch_targets(task))
    ]
    start = ((mounts.start, START_TARGET),) if mounts.start else ()
    ours: list[dict[str, object]] = [
        {
            "Type": "bind",
            "Source": source,
            "Target": target,
            "ReadOnly": True,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for source, target in (*mounts.files, *start)
    ]
    return [*inputs, outputs, *scratch, *ours]


def _gpu_request(gpus: Sequence[str], has_cdi: bool) -> dict[str, object]:
    """CDI is a static list of devices; the nvidia runtime's hook runs as root."""
    if has_cdi:
        return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}" for gpu in gpus]}
    return {
        "Driver": "nvidia",
        "DeviceIDs": list(gpus),
        "Capabilities": [["gpu", "compute", "utility"]],
    }
