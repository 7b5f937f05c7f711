"""The hardened profile: from a task to the one container request that an engine ever sees. Pure.

A job chooses only what `Task` has fields for; nothing of a job reaches the host configuration
otherwise. Each setting answers an attack that succeeds against an engine's defaults: unbounded
forks, memory, disk and logs; a network; setuid programs; device nodes; io_uring and vsock;
volumes that an image declares; environment variables that steer the loader or the GPU hooks,
which run as root on the host.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorate_node.images.image_volumes import covers
from quorate_protocol.ports import Task
from quorate_protocol.refusals import Code, Refused

LABEL_LEASE = "quorate.lease"
LABEL_OWNER = "quorate.owner"
LABEL_LIFE = "quorate.engine-life"
LABEL_MAX_DURATION = "quorate.max-duration"
LABEL_OUTPUT_BYTES = "quorate.output-bytes"
LABEL_OUTPUT_INODES = "quorate.output-inodes"

USER = "65534:65534"
OPEN_FILES_MAX = 8192
OOM_SCORE = 1000  # a machine without memory ends jobs before its owner's programs
LEAST_BYTES = 4096  # of a memory file system: a size of zero would mean no limit
RUNTIME_GVISOR = "runsc"
_GVISOR_PIDS = 64
_ENV_PROGRAM = "/usr/bin/env"
_HIDDEN_PREFIX = "LD_"
# variables with which an image could ask the GPU hooks for devices that nobody rented to it
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
)
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
    """What the profile must know of the engine. `cgroup_parent` "" = the engine's own; `runtime`
    "" = its default (runc).
    """

    seccomp: str  # the profile as JSON text
    cgroup_parent: str = ""
    runtime: str = ""
    has_cdi: bool = False
    life: str = ""  # which one a container begins in: `docker_life`


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image that the engine holds. `has_env` False = known to lack /usr/bin/env; None = not
    looked into (registry images).
    """

    reference: str
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    has_env: bool | None
    volumes: tuple[str, ...] = ()  # as the image declares them


@dataclass(frozen=True, slots=True)
class Places:
    """Where inputs and outputs come from.

    `outputs` is a host folder or a volume's name; `outputs_in_memory` bytes of it count in
    memory. `are_views`: the inputs are mounts of ours that are read-only, nosuid and nodev
    already; an engine that is asked for read-only mounts them anew and drops the rest.
    """

    inputs: tuple[tuple[str, str], ...]  # (host path, target)
    outputs: str
    is_volume: bool
    outputs_in_memory: int = 0
    are_views: bool = False


def container_request(
    task: Task, owner: str, engine: EngineFacts, image: ImageFacts, places: Places
) -> dict[str, object]:
    """The body of the engine's create call. Refused(UNSUPPORTED) names the field that cannot be
    granted.
    """
    check_targets([target for _, target in places.inputs])
    hidden, env = _environment(task, image)
    return {
        "Image": image.reference,
        "Entrypoint": [*_restorer(hidden, image), *_command(task, image)],
        "Cmd": [],
        "Env": env,
        "User": USER,
        "WorkingDir": task.working_dir or "/scratch",
        "Hostname": "job",
        "Domainname": "",
        # the mode `none` is the network; "disabled" would leave /etc/hosts, and so localhost, out
        "NetworkDisabled": False,
        "Tty": False,
        "OpenStdin": False,
        "AttachStdout": True,
        "AttachStderr": True,
        "Healthcheck": {"Test": ["NONE"]},
        # the engine adds the image's to it, unless something stands there: see `covers`
        "Volumes": {},
        "Labels": {
            LABEL_LEASE: task.lease_id,
            LABEL_OWNER: owner,
            LABEL_LIFE: engine.life,
            LABEL_MAX_DURATION: str(task.max_duration),
            LABEL_OUTPUT_BYTES: str(task.output_bytes),
            LABEL_OUTPUT_INODES: str(task.output_inodes),
        },
        "HostConfig": _host_config(
            task, engine, places, covers(image.volumes, [target for _, target in places.inputs])
        ),
    }


def strange_mounts(body: Mapping[str, object], container: Mapping[str, object]) -> str:
    """What stands in a container beside the mounts of its request, for the reader; "" when
    nothing does.
    """
    config = body["HostConfig"]
    assert isinstance(config, dict), "a request as made here"
    asked = {
        (item["Type"], item["Source"] if item["Type"] == "volume" else "", item["Target"])
        for item in config["Mounts"]
    }
    found = [_mount_of(item) for item in _list(container["Mounts"])]
    # Engines list a memory file system either nowhere or by its target; it holds nothing of the
    # machine's disk.
    strange = [
        item
        for item in found
        if item not in asked and (item[0] != "tmpfs" or item[2] not in config["Tmpfs"])
    ]
    return ", ".join(f"a {kind} at {target[:200]}" for kind, _, target in sorted(strange)[:8])


def _mount_of(item: Mapping[str, object]) -> tuple[str, str, str]:
    """(kind, a volume's name, target): engines in a machine of their own write the sources of
    binds in another way.
    """
    kind = str(item["Type"])
    return kind, str(item["Name"]) if kind == "volume" else "", str(item["Destination"])


def _list(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list), "the engine lists mounts"
    return value


def check_targets(targets: Sequence[str]) -> None:
    """Inputs may stand anywhere that is not taken and not inside each other (their mount points
    would be made in the store).
    """
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
        if any(_is_below(target, taken) or _is_below(taken, target) for taken in _TARGETS_TAKEN):
            raise Refused(
                Code.UNSUPPORTED, f"mounts: {target[:200]!r} is taken; put inputs below /inputs"
            )
    for index, target in enumerate(targets):
        if any(_is_below(target, other) for place, other in enumerate(targets) if place != index):
            raise Refused(Code.UNSUPPORTED, f"mounts: {target[:200]!r} lies inside another input")


def standard_env(
    inputs: str = "/inputs", outputs: str = "/outputs", scratch: str = "/scratch"
) -> dict[str, str]:
    """Variables that every executor sets: where inputs, outputs and every cache are."""
    return {
        **{name: scratch + below for name, below in _CACHES.items()},
        "QUORATE_INPUTS": inputs,
        "QUORATE_OUTPUTS": outputs,
        "QUORATE_SCRATCH": scratch,
    }


def program_env(task: Task, image_env: Sequence[str]) -> dict[str, str]:
    """What the program sees in the end, by whatever way it gets there: the image's variables,
    ours, the job's.
    """
    named = dict(
        item.partition("=")[::2] for item in image_env if "=" in item[1:]
    )  # the rest are no variables, whatever an image says
    wanted = {
        name: value
        for name, value in {**named, **standard_env(), **task.env}.items()
        if name not in _GPU_CONTROLS
    }
    wanted["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    if not task.gpus:
        wanted["NVIDIA_VISIBLE_DEVICES"] = "void"
    return wanted


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + "/")


def _environment(task: Task, image: ImageFacts) -> tuple[dict[str, str], list[str]]:
    """(loader variables to restore inside, the engine's list). A bare name in that list removes
    the image's variable.
    """
    named = dict(item.partition("=")[::2] for item in image.env)
    wanted = {**standard_env(), **task.env}
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


def _restorer(hidden: Mapping[str, str], image: ImageFacts) -> list[str]:
    """Restores loader variables inside the container, after every hook of the engine and the GPU
    toolkit has run.

    The engine's init cannot set variables and an image need not have a shell, but whatever image
    relies on LD_LIBRARY_PATH has coreutils' env. One that is known not to have it is refused
    rather than run differently from what its maker meant.
    """
    if not hidden:
        return []
    if image.has_env is False:
        raise Refused(
            Code.UNSUPPORTED,
            (
                f"image: sets {', '.join(sorted(hidden))}, which is hidden from the engine, and "
                f"has "
                f"no {_ENV_PROGRAM} to restore it"
            ),
        )
    return [_ENV_PROGRAM, *(f"{name}={hidden[name]}" for name in sorted(hidden))]


def _command(task: Task, image: ImageFacts) -> list[str]:
    """The job's words replace the image's entry point and command alike; without them the
    image's own run.
    """
    command = list(task.argv) or [*image.entrypoint, *image.command]
    if not command:
        raise Refused(Code.UNSUPPORTED, "command: the job gives none and the image has none")
    return command


def _host_config(
    task: Task, engine: EngineFacts, places: Places, covered: Sequence[str]
) -> dict[str, object]:
    memory = task.memory_bytes + places.outputs_in_memory
    sized = f"nosuid,nodev,size={max(task.scratch_bytes, LEAST_BYTES)},mode=1777"
    scratch, cover = f"rw,exec,{sized}", f"rw,noexec,{sized}"
    config: dict[str, object] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges", f"seccomp={engine.seccomp}"],
        "Init": True,
        "IpcMode": "private" if task.shm_bytes else "none",
        "CgroupnsMode": "private",
        "ShmSize": task.shm_bytes,
        "PidsLimit": _host_pids(task, engine),
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": task.cpu_millis * 1_000_000,
        "OomKillDisable": False,
        "OomScoreAdj": OOM_SCORE,
        "Ulimits": [
            {"Name": "nofile", "Soft": OPEN_FILES_MAX, "Hard": OPEN_FILES_MAX},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "Tmpfs": {**dict.fromkeys(covered, cover), "/scratch": scratch, "/tmp": scratch},
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Mounts": _mounts(places),
    }
    if engine.cgroup_parent:
        config["CgroupParent"] = f"{engine.cgroup_parent}/{task.lease_id}"
    if engine.runtime and not task.gpus:
        config["Runtime"] = engine.runtime
    if task.gpus:
        config["DeviceRequests"] = [_gpu_request(task.gpus, engine.has_cdi)]
    return config


def _host_pids(task: Task, engine: EngineFacts) -> int:
    """gVisor's kernel is a program with some thirty threads of its own and two for each process
    inside (measured); the limit counts those of the machine. One who goes beyond ends the
    sandbox, not the machine.
    """
    return (
        2 * task.pids + _GVISOR_PIDS
        if engine.runtime == RUNTIME_GVISOR and not task.gpus
        else task.pids
    )


def _mounts(places: Places) -> list[dict[str, object]]:
    """Not the `Binds` shorthand: it splits at colons, and makes folders for sources that are not
    there.
    """
    inputs: list[dict[str, object]] = [
        {
            "Type": "bind",
            "Source": source,
            "Target": target,
            "ReadOnly": not places.are_views,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for source, target in places.inputs
    ]
    outputs: dict[str, object] = {
        "Type": "volume" if places.is_volume else "bind",
        "Source": places.outputs,
        "Target": "/outputs",
    }
    if places.is_volume:
        outputs["VolumeOptions"] = {"NoCopy": True}
    return [*inputs, outputs]


def _gpu_request(gpus: Sequence[str], has_cdi: bool) -> dict[str, object]:
    """By CDI where the engine knows it (a static list of devices, no hook that runs as root),
    else through the nvidia runtime's hook.
    """
    if has_cdi:
        return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}" for gpu in gpus]}
    return {
        "Driver": "nvidia",
        "DeviceIDs": list(gpus),
        "Capabilities": [["gpu", "compute", "utility"]],
    }
