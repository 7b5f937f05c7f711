"""Attacks that succeed against an engine's defaults must fail in every hardened sandbox.

gVisor is a kernel of its own: it refuses with other errors than ours, and shows less in /proc.
"""

import asyncio
from pathlib import Path

import pytest

from quorate_protocol.messages.ports import Executor, Sandbox
from quorate_protocol.refusals import Code, Refused
from support.executors.attack_programs import (
    ATTEMPT,
    FILL,
    TELL,
    attack,
    check_filled,
    filling_task,
    results,
)
from support.executors.executor_cases import MIB, python_task
from support.executors.image_archives import declare_volumes

FOLDERS = '"/data", "/made/here", "/tmp", "/data/below"'


async def test_system_calls(executor: Executor, image: Path) -> None:
    """Numbers are those of x86-64, because a C library would hide some of the calls."""
    found = await attack(
        executor,
        image,
        """
calls = {
    "io_uring_setup": (425, 1, 0),
    "ptrace": (101, 0, 0, 0, 0),
    "unshare_user": (272, 0x10000000),
    "mount": (165, 0, 0, 0, 0, 0),
    "keyctl": (250, 0, 0),
    "bpf": (321, 0, 0, 0),
    "perf_event_open": (298, 0, 0, 0, 0, 0),
    "userfaultfd": (323, 0),
    "setns": (308, 0, 0),
    "open_by_handle_at": (304, 0, 0, 0),
    "init_module": (175, 0, 0, 0),
    "chroot": (161, b"/tmp"),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "reboot": (169, 0, 0, 0, 0),
    "personality": (135, 0x0040000),
    "clone_newuser": (56, 0x10000000 | 17, 0, 0, 0, 0),
}
for name, arguments in calls.items():
    results[name] = syscall(*arguments)
results["clone3"] = syscall(435, 0, 0)
""",
    )
    clone3 = found.pop("clone3")
    if executor.sandbox is Sandbox.DOCKER_RUNSC:
        # gVisor serves these, but only on its own kernel: a namespace there, a trace of the
        # program's own child.
        harmless = {
            "unshare_user",
            "clone_newuser",
            "chroot",
            "ptrace",
            "personality",
            "setns",
            "process_vm_readv",
        }
        assert harmless >= {name for name, result in found.items() if result == "done"}
        return
    # as in gVisor and in kernels without them, so that programs use something else
    assert {clone3, found.pop("io_uring_setup"), found.pop("userfaultfd")} == {"ENOSYS"}
    assert set(found.values()) == {"EPERM"}, found


async def test_network(executor: Executor, image: Path) -> None:
    found = await attack(
        executor,
        image,
        """
def open_socket(*arguments):
    socket.socket(*arguments).close()
results["vsock"] = attempt(lambda: open_socket(40, socket.SOCK_STREAM))
results["alg"] = attempt(lambda: open_socket(38, socket.SOCK_SEQPACKET))
results["packet"] = attempt(lambda: open_socket(socket.AF_PACKET, socket.SOCK_RAW))
results["raw"] = attempt(lambda: open_socket(socket.AF_INET, socket.SOCK_RAW, 1))
results["connect"] = attempt(lambda: socket.create_connection(("192.0.2.1", 80), timeout=3))
results["interfaces"] = [name for _, name in socket.if_nameindex()]
server = socket.create_server(("127.0.0.1", 0))
results["loopback"] = attempt(lambda: socket.create_connection(server.getsockname()).close())
""",
    )
    assert found.pop("connect") in ("ENETUNREACH", "EHOSTUNREACH")
    if executor.sandbox is Sandbox.DOCKER_RUNSC:
        assert {found.pop(name) for name in ("vsock", "alg", "packet", "raw")} <= {
            "EPERM",
            "EAFNOSUPPORT",
            "EACCES",
            "EPROTONOSUPPORT",
        }
        assert found == {"interfaces": ["lo"], "loopback": "done"}
        return
    assert found == {
        "vsock": "EPERM",
        "alg": "EPERM",
        "packet": "EPERM",
        "raw": "EPERM",
        "interfaces": ["lo"],
        "loopback": "done",
    }


async def test_privileges(executor: Executor, image: Path) -> None:
    found = await attack(
        executor,
        image,
        """
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":", 1) for line in lines if ":" in line)
names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
results["capabilities"] = sum(int(status.get(name, "0"), 16) for name in names)
results["no_new_privileges"] = status.get("NoNewPrivs", "1").strip()
results["seccomp"] = status.get("Seccomp", "").strip()
results["ids"] = [os.getuid(), os.getgid(), os.getgroups()]
results["setuid"] = "done" if attempt(lambda: os.setuid(0)) == "done" else "refused"
results["device"] = attempt(lambda: os.mknod("/scratch/disk", 0o060600, os.makedev(8, 0)))
results["host_name"] = socket.gethostname()
results["engine_socket"] = os.path.exists("/var/run/docker.sock")
results["core"] = __import__("resource").getrlimit(4)[1]
results["ends first"] = open("/proc/self/oom_score_adj").read().strip()
""",
    )
    ids = found.pop("ids")
    assert isinstance(ids, list)
    assert ids[:2] == [65534, 65534]
    assert 0 not in ids[2]
    if executor.sandbox is Sandbox.DOCKER_RUNSC:
        found["seccomp"] = (
            "2"  # its own calls to the machine are filtered; the program's calls to it are not
        )
        found["device"] = "EPERM"  # a device node on its own kernel, which has no such device
        found["ends first"] = "1000"  # the sandbox process has it, but gVisor does not show it
    assert found == {
        "capabilities": 0,
        "no_new_privileges": "1",
        "seccomp": "2",
        "setuid": "refused",
        "device": "EPERM",
        "host_name": "job",
        "engine_socket": False,
        "core": 0,
        "ends first": "1000",
    }


async def test_set_user_id_program_gains_nothing(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    """A set-uid root copy of an interpreter, given as an input by a client."""
    import shutil
    import sys

    program = tmp_path / "program"
    shutil.copy(sys.executable, program)
    program.chmod(0o4755)
    code = (
        "pid=os.fork()\nif not pid: os.execv('/inputs/p', ['p','-c','import os; os._exit(42 if "
        "os.geteuid() == 0 else 7)'])\n"
    )
    code += "results['exit'] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    task = python_task(
        image,
        ATTEMPT + code + TELL,
        mounts={"/inputs/p": program},
        env={"PYTHONHOME": "/usr/local"},
    )
    assert (await results(executor, task))["exit"] != 42


async def test_file_system(executor: Executor, image: Path, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("given")
    (tmp_path / "input").chmod(0o666)
    task = python_task(
        image,
        ATTEMPT
        + """
import stat, subprocess
results["root"] = "done" if attempt(lambda: open("/x", "w")) == "done" else "refused"
results["etc"] = attempt(lambda: open("/etc/passwd", "a"))
results["input"] = attempt(lambda: open("/inputs/a", "a"))
pattern = attempt(lambda: open("/proc/sys/kernel/core_pattern", "w"))
results["proc"] = "done" if pattern == "done" else "refused"
os.symlink("/usr/local/bin/python3", "/scratch/link")
def copy(to):
    open(to, "wb").write(open("/usr/local/bin/python3", "rb").read()); os.chmod(to, 0o755)
    subprocess.run([to, "-c", ""], check=True, env={"PYTHONHOME": "/usr/local"})
results["run in scratch"] = attempt(lambda: copy("/scratch/p"))
try:
    copied = attempt(lambda: copy("/outputs/p"))
    results["run in outputs"] = "done" if copied == "done" else "refused"
except subprocess.CalledProcessError:
    # gVisor maps no code from there, which kills the program
    results["run in outputs"] = "refused"
flags = {line.split()[4]: set(line.split()[5].split(",")) for line in open("/proc/self/mountinfo")}
wanted = {"ro", "rw", "nosuid", "nodev", "noexec"}
folders = ("/outputs", "/scratch", "/tmp", "/inputs/a", "/dev/shm")
results["flags"] = {name: sorted(flags[name] & wanted) for name in folders}
# some sandboxes add noexec there; /scratch does not have it
results["flags"]["/dev/shm"] = [flag for flag in results["flags"]["/dev/shm"] if flag != "noexec"]
"""
        + TELL,
        mounts={"/inputs/a": tmp_path / "input"},
        output_bytes=32 * MIB,
    )
    found = await results(executor, task)
    flags = found.pop("flags")
    assert found == {
        "root": "refused",
        "etc": "EACCES",
        "input": "EROFS",
        "proc": "refused",
        "run in scratch": "done",
        "run in outputs": "refused",
    }
    if executor.sandbox is Sandbox.DOCKER_RUNSC:
        return  # gVisor follows the flags, as seen above, but does not show them
    assert flags == {
        "/outputs": ["nodev", "noexec", "nosuid", "rw"],
        "/scratch": ["nodev", "nosuid", "rw"],
        "/tmp": ["nodev", "nosuid", "rw"],
        "/inputs/a": ["nodev", "nosuid", "ro"],
        "/dev/shm": ["nodev", "nosuid", "rw"],
    }


async def test_processes_are_limited(executor: Executor, image: Path) -> None:
    task = python_task(
        image,
        ATTEMPT
        + """
import time
children = []
try:
    for _ in range(500):
        pid = os.fork()
        if not pid:
            time.sleep(20); os._exit(0)
        children.append(pid)
except OSError as error:
    results["fork"] = errno.errorcode[error.errno]
results["children"] = len(children)
for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)
"""
        + TELL,
        pids=32,
    )
    if executor.sandbox is Sandbox.DOCKER_RUNSC:
        async with asyncio.timeout(
            60
        ):  # gVisor's kernel is a program of the machine, and the machine's limit ends it
            await executor.start(task)
            assert (await executor.wait(task.lease_id)).status != 0
        return
    found = await results(executor, task)
    children = found["children"]
    assert isinstance(children, int)
    assert 20 <= children < 32
    assert found["fork"] == "EAGAIN"


async def test_files_and_processor_are_limited(executor: Executor, image: Path) -> None:
    found = await attack(
        executor,
        image,
        """
import time
held = []
try:
    for _ in range(20000): held.append(os.open("/dev/null", 0))
except OSError as error:
    results["files"] = errno.errorcode[error.errno]
for descriptor in held: os.close(descriptor)
begin, used = time.monotonic(), time.process_time()
while time.monotonic() - begin < 1.5: pass
results["share"] = (time.process_time() - used) / 1.5
""",
        cpu_millis=400,
    )
    share = found.pop("share")
    assert isinstance(share, float)
    if (
        executor.sandbox is not Sandbox.DOCKER_RUNSC
    ):  # gVisor's clock of processor time runs while the machine throttles it
        assert share < 0.55
    assert found == {"files": "EMFILE"}


async def test_shared_memory_counts_in_memory(executor: Executor, image: Path) -> None:
    """A program that fits /dev/shm but not its memory is ended, instead of filling the machine."""
    code = "f=open('/dev/shm/x','wb')\nfor _ in range(120): f.write(bytes(1<<20))"
    task = python_task(image, code, memory_bytes=64 * MIB, shm_bytes=128 * MIB)
    async with asyncio.timeout(60):
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
    assert ended.status == 513
    assert ended.usage.wall_ms > 0


async def test_sparse_terabyte_is_refused_fast(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    task = python_task(
        image, "import os; os.truncate(os.open('/outputs/huge', os.O_CREAT|os.O_RDWR), 1<<42)"
    )
    await executor.start(task)
    await executor.wait(task.lease_id)
    async with asyncio.timeout(20):
        with pytest.raises(Refused) as refusal:
            await executor.collect(task.lease_id, tmp_path / "collected")
    assert refusal.value.code is Code.OVERSIZE
    assert "huge" in refusal.value.detail


async def test_three_thousand_directories_are_refused_and_removed(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    code = "import os; os.chdir('/outputs')\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    task = python_task(image, code, output_inodes=4000, output_bytes=32 * MIB)
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    with pytest.raises(Refused) as refusal:
        await executor.collect(task.lease_id, tmp_path / "collected")
    assert refusal.value.code is Code.MALFORMED
    await executor.remove(task.lease_id)
    assert not (tmp_path / "leases" / task.lease_id).exists()


async def test_space_is_limited_everywhere(executor: Executor, image: Path) -> None:
    check_filled(await results(executor, filling_task(image)))


async def test_volumes_that_an_image_declares_are_sized_memory(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    """An engine would answer each volume with a folder on the owner's disk.

    That folder would have no size limit, and set-user-id programs could run from it.
    """
    declare_volumes(
        image, tmp_path / "volumes.tar", ["/data/", "/made/here", "/tmp", "/data/below"]
    )
    task = python_task(
        tmp_path / "volumes.tar",
        ATTEMPT
        + FILL.replace('"/outputs", "/scratch", "/dev/shm"', FOLDERS)
        + """
flags = {line.split()[4]: set(line.split()[5].split(",")) for line in open("/proc/self/mountinfo")}
folders, safe = ("/data", "/made/here", "/tmp"), {"nosuid", "nodev"}
results["flags"] = {name: sorted(flags.get(name, set()) & safe) for name in folders}
mounts = [line.split() for line in open("/proc/self/mounts")]
results["kinds"] = sorted({mount[2] for mount in mounts if mount[1] in folders})
results["given"] = os.path.exists("/data/given")
"""
        + TELL,
        scratch_bytes=16 * MIB,
    )
    found = await results(executor, task)
    for folder in ("/data", "/made/here", "/tmp", "/data/below"):
        written = found[folder]
        assert isinstance(written, int)
        assert found[f"{folder} error"] == "ENOSPC"
        assert 15 <= written <= 16 + 6
    assert found["given"] is False, "every sandbox hides what the image has there"
    assert found["kinds"] == ["tmpfs"]
    if (
        executor.sandbox is not Sandbox.DOCKER_RUNSC
    ):  # gVisor follows the flags, but does not show them
        assert found["flags"] == {
            name: ["nodev", "nosuid"] for name in ("/data", "/made/here", "/tmp")
        }


@pytest.mark.parametrize("volume", ["/proc/sys", "/outputs/deep", "no/slash", "/", "/linked/deep"])
async def test_a_volume_that_cannot_be_covered_is_refused(
    executor: Executor, image: Path, tmp_path: Path, volume: str
) -> None:
    declare_volumes(image, tmp_path / "volumes.tar", [volume])
    with pytest.raises(Refused, match="[Vv]olume") as refusal:
        await executor.start(python_task(tmp_path / "volumes.tar", ""))
    assert refusal.value.code is Code.UNSUPPORTED
    assert await executor.leases() == []
