"""The hardened container against a real engine: each attack that succeeds against an engine's defaults is tried and must fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from executor_support import MIB, RealClock, python_task
from image_support import add_layer
from quorate.images import build_python_image
from quorate_node.adapters import mounts
from quorate_node.adapters.docker import DockerExecutor
from quorate_node.adapters.docker_places import OutputKind, choose_kind
from quorate_node.adapters.reap import reap
from quorate_protocol.ports import Task
from quorate_protocol.refusals import Code, Refused

pytestmark = pytest.mark.docker

ATTEMPT = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    result = libc.syscall(number, *arguments)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(work):
    try:
        work()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
results = {}
"""
TELL = "\nprint(json.dumps(results))"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_python_image(tmp_path_factory.mktemp("image") / "python.tar", ()).path


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[DockerExecutor]:
    made = DockerExecutor(tmp_path / "leases", "hardening-" + tmp_path.name, RealClock())
    await made.check()
    yield made
    for lease in await made.leases():
        await made.remove(lease)
    await made.close()
    assert await asyncio.to_thread(reap, "hardening-" + tmp_path.name, tmp_path / "leases") == 0


async def results(executor: DockerExecutor, task: Task) -> dict[str, object]:
    """What the attack program reports."""
    async with asyncio.timeout(60):
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
        text = b"".join([chunk async for chunk in executor.logs(task.lease_id, follow=True)])
    assert ended.status == 0, text
    found: dict[str, object] = json.loads(text.splitlines()[-1])
    return found


async def attack(executor: DockerExecutor, image: Path, code: str, **changes: object) -> dict[str, object]:
    return await results(executor, python_task(image, ATTEMPT + code + TELL, **changes))


async def test_system_calls(executor: DockerExecutor, image: Path) -> None:
    """Numbers are those of x86-64: a C library would hide some of the calls."""
    found = await attack(executor, image, """
calls = {
    "io_uring_setup": (425, 1, 0), "ptrace": (101, 0, 0, 0, 0), "unshare_user": (272, 0x10000000), "mount": (165, 0, 0, 0, 0, 0),
    "keyctl": (250, 0, 0), "bpf": (321, 0, 0, 0), "perf_event_open": (298, 0, 0, 0, 0, 0), "userfaultfd": (323, 0),
    "setns": (308, 0, 0), "open_by_handle_at": (304, 0, 0, 0), "init_module": (175, 0, 0, 0), "chroot": (161, b"/tmp"),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "reboot": (169, 0, 0, 0, 0), "personality": (135, 0x0040000),
    "clone_newuser": (56, 0x10000000 | 17, 0, 0, 0, 0),
}
for name, arguments in calls.items():
    results[name] = syscall(*arguments)
results["clone3"] = syscall(435, 0, 0)
""")
    assert found.pop("clone3") == "ENOSYS"
    assert set(found.values()) == {"EPERM"}, found


async def test_network(executor: DockerExecutor, image: Path) -> None:
    found = await attack(executor, image, """
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
""")
    assert found == {
        "vsock": "EPERM", "alg": "EPERM", "packet": "EPERM", "raw": "EPERM", "connect": "ENETUNREACH", "interfaces": ["lo"],
        "loopback": "done",
    }  # fmt: skip


async def test_privileges(executor: DockerExecutor, image: Path) -> None:
    found = await attack(executor, image, """
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
results["capabilities"] = sum(int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
results["no_new_privileges"] = status["NoNewPrivs"].strip()
results["seccomp"] = status["Seccomp"].strip()
results["ids"] = [os.getuid(), os.getgid(), os.getgroups()]
results["setuid"] = attempt(lambda: os.setuid(0))
results["device"] = attempt(lambda: os.mknod("/scratch/disk", 0o060600, os.makedev(8, 0)))
results["host_name"] = socket.gethostname()
results["engine_socket"] = os.path.exists("/var/run/docker.sock")
results["core"] = __import__("resource").getrlimit(4)[1]
""")
    ids = found.pop("ids")
    assert isinstance(ids, list)
    assert ids[:2] == [65534, 65534]
    assert 0 not in ids[2]
    assert found == {
        "capabilities": 0, "no_new_privileges": "1", "seccomp": "2", "setuid": "EPERM", "device": "EPERM", "host_name": "job",
        "engine_socket": False, "core": 0,
    }  # fmt: skip


async def test_set_user_id_program_gains_nothing(executor: DockerExecutor, image: Path, tmp_path: Path) -> None:
    """A set-uid root copy of an interpreter, given as an input by somebody whose files stand on the owner's disk."""
    import shutil
    import sys

    program = tmp_path / "program"
    shutil.copy(sys.executable, program)
    program.chmod(0o4755)
    code = "pid=os.fork()\nif not pid: os.execv('/inputs/p', ['p','-c','import os; os._exit(42 if os.geteuid() == 0 else 7)'])\n"
    code += "results['exit'] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    task = python_task(image, ATTEMPT + code + TELL, mounts={"/inputs/p": program}, env={"PYTHONHOME": "/usr/local"})
    assert (await results(executor, task))["exit"] != 42


async def test_file_system(executor: DockerExecutor, image: Path, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("given")
    (tmp_path / "input").chmod(0o666)
    task = python_task(image, ATTEMPT + """
import stat, subprocess
results["root"] = attempt(lambda: open("/x", "w"))
results["etc"] = attempt(lambda: open("/etc/passwd", "a"))
results["input"] = attempt(lambda: open("/inputs/a", "a"))
results["proc"] = attempt(lambda: open("/proc/sys/kernel/core_pattern", "w"))
os.symlink("/usr/local/bin/python3", "/scratch/link")
def copy(to):
    open(to, "wb").write(open("/usr/local/bin/python3", "rb").read()); os.chmod(to, 0o755)
    subprocess.run([to, "-c", ""], check=True, env={"PYTHONHOME": "/usr/local"})
results["run in scratch"] = attempt(lambda: copy("/scratch/p"))
results["run in outputs"] = attempt(lambda: copy("/outputs/p"))
flags = {line.split()[4]: set(line.split()[5].split(",")) for line in open("/proc/self/mountinfo")}
wanted = {"ro", "rw", "nosuid", "nodev", "noexec"}
results["flags"] = {name: sorted(flags[name] & wanted) for name in ("/outputs", "/scratch", "/tmp", "/inputs/a", "/dev/shm")}
""" + TELL, mounts={"/inputs/a": tmp_path / "input"}, output_bytes=32 * MIB)
    found = await results(executor, task)
    flags = found.pop("flags")
    assert found == {
        "root": "EROFS", "etc": "EACCES", "input": "EROFS", "proc": "EROFS", "run in scratch": "done", "run in outputs": "EACCES",
    }  # fmt: skip
    assert flags == {
        "/outputs": ["nodev", "noexec", "nosuid", "rw"], "/scratch": ["nodev", "nosuid", "rw"], "/tmp": ["nodev", "nosuid", "rw"],
        "/inputs/a": ["nodev", "nosuid", "ro"], "/dev/shm": ["nodev", "noexec", "nosuid", "rw"],
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(OutputKind))
async def test_space_is_limited_everywhere(image: Path, tmp_path: Path, kind: OutputKind) -> None:
    if kind is OutputKind.LOOP and choose_kind() is not OutputKind.LOOP:
        pytest.skip("not root, or no loop devices")
    executor = DockerExecutor(tmp_path / "leases", "space-" + tmp_path.name, RealClock(), outputs=kind)
    await executor.check()
    task = python_task(image, ATTEMPT + """
def fill(path):
    written = 0
    with open(path, "wb", buffering=0) as file:
        try:
            while written < 200 << 20:
                written += file.write(bytes(1 << 20))
        except OSError as error:
            results[os.path.dirname(path) + " error"] = errno.errorcode[error.errno]
    os.unlink(path)
    return written >> 20
for folder in ("/outputs", "/scratch", "/dev/shm"):
    results[folder] = fill(folder + "/x")
def touch():
    for number in range(10000):
        results["files"] = number
        os.close(os.open(f"/outputs/{number}", os.O_CREAT))
results["files error"] = attempt(touch)
""" + TELL, output_bytes=8 * MIB, scratch_bytes=16 * MIB, shm_bytes=4 * MIB, output_inodes=200)
    try:
        found = await results(executor, task)
    finally:
        await executor.remove(task.lease_id)
        await executor.close()
    for name, size in {"/outputs": 8, "/scratch": 16, "/dev/shm": 4}.items():
        reached, error = found[name], found[f"{name} error"]
        assert isinstance(reached, int)
        assert error == "ENOSPC"
        assert size - 1 <= reached <= size + 6, name
    assert found["files error"] == "ENOSPC"
    assert isinstance(found["files"], int)
    assert 200 <= found["files"] <= 260
    assert not mounts.is_mounted(tmp_path / "leases" / task.lease_id / "outputs")


async def test_processes_memory_and_processor_are_limited(executor: DockerExecutor, image: Path) -> None:
    found = await attack(executor, image, """
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
held = []
try:
    for _ in range(20000): held.append(os.open("/dev/null", 0))
except OSError as error:
    results["files"] = errno.errorcode[error.errno]
for descriptor in held: os.close(descriptor)
begin, used = time.monotonic(), time.process_time()
while time.monotonic() - begin < 1.5: pass
results["share"] = (time.process_time() - used) / 1.5
""", pids=32, cpu_millis=400)
    children, share = found.pop("children"), found.pop("share")
    assert isinstance(children, int)
    assert 20 <= children < 32
    assert isinstance(share, float)
    assert share < 0.55
    assert found == {"fork": "EAGAIN", "files": "EMFILE"}


async def test_shared_memory_counts_in_memory(executor: DockerExecutor, image: Path) -> None:
    """What fits /dev/shm but not the memory ends the program instead of the machine."""
    code = "f=open('/dev/shm/x','wb')\nfor _ in range(120): f.write(bytes(1<<20))"
    task = python_task(image, code, memory_bytes=64 * MIB, shm_bytes=128 * MIB)
    async with asyncio.timeout(60):
        await executor.start(task)
        ended = await executor.wait(task.lease_id)
    assert ended.status == 513
    assert ended.usage.wall_ms > 0


async def test_sparse_terabyte_is_refused_fast(executor: DockerExecutor, image: Path, tmp_path: Path) -> None:
    task = python_task(image, "import os; os.truncate(os.open('/outputs/huge', os.O_CREAT|os.O_RDWR), 1<<42)")
    await executor.start(task)
    await executor.wait(task.lease_id)
    async with asyncio.timeout(5):
        with pytest.raises(Refused) as refusal:
            await executor.collect(task.lease_id, tmp_path / "collected")
    assert refusal.value.code is Code.OVERSIZE
    assert "huge" in refusal.value.detail


async def test_three_thousand_directories_are_refused_and_removed(executor: DockerExecutor, image: Path, tmp_path: Path) -> None:
    code = "import os; os.chdir('/outputs')\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    task = python_task(image, code, output_inodes=4000, output_bytes=32 * MIB)
    await executor.start(task)
    assert (await executor.wait(task.lease_id)).status == 0
    with pytest.raises(Refused) as refusal:
        await executor.collect(task.lease_id, tmp_path / "collected")
    assert refusal.value.code is Code.MALFORMED
    await executor.remove(task.lease_id)
    assert not (tmp_path / "leases" / task.lease_id).exists()


async def test_loader_variables_never_reach_the_engine(executor: DockerExecutor, image: Path) -> None:
    """No image of ours has env to restore them with: such a task is refused, and leaves nothing."""
    task = python_task(image, "", env={"LD_PRELOAD": "/inputs/evil.so"})
    with pytest.raises(Refused) as refusal:
        await executor.start(task)
    assert refusal.value.code is Code.UNSUPPORTED
    assert "LD_PRELOAD" in refusal.value.detail
    assert await executor.leases() == []


async def test_loader_variables_of_an_image_are_restored_inside(executor: DockerExecutor, image: Path, tmp_path: Path) -> None:
    """The engine and its hooks never see LD_* of an image; the program does, in an image that has env."""
    archive = tmp_path / "with-env.tar"
    add_layer(image, archive, {"usr/bin/env": Path("/usr/bin/env")}, ["LD_LIBRARY_PATH=/opt/cuda", "NVIDIA_VISIBLE_DEVICES=all"])
    task = python_task(archive, "import os, json; print(json.dumps(dict(os.environ)))")
    seen = await results(executor, task)
    assert seen["LD_LIBRARY_PATH"] == "/opt/cuda"
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "void"
    api = docker.APIClient()
    try:
        env = api.inspect_container(f"quorate-{task.lease_id}")["Config"]["Env"]
    finally:
        api.close()
    assert not [item for item in env if item.startswith("LD_LIBRARY_PATH=")]
    assert "NVIDIA_VISIBLE_DEVICES=all" not in env


async def test_image_that_does_not_exist(executor: DockerExecutor, image: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_bytes(image.read_bytes()[:100_000])
    for archive, code in ((tmp_path / "none.tar", Code.UNKNOWN), (broken, Code.MALFORMED)):
        with pytest.raises(Refused) as refusal:
            await executor.start(python_task(archive, ""))
        assert refusal.value.code is code
    with pytest.raises(Refused) as refusal:
        await executor.start(python_task("docker.io/library/python:3.12", ""))
    assert "digest" in refusal.value.detail


async def test_reaper_removes_what_a_killed_daemon_left(image: Path, tmp_path: Path) -> None:
    home, owner = tmp_path / "leases", "reaped-" + tmp_path.name
    for kind in (choose_kind(), OutputKind.VOLUME):
        executor = DockerExecutor(home, owner, RealClock(), outputs=kind)
        task = python_task(image, "import time; time.sleep(100)", mounts={"/inputs/a": image})
        await executor.check()
        await executor.start(replace(task))
        await executor.close()
    assert await asyncio.to_thread(reap, owner, home) == 3
    assert list(home.iterdir()) == []
    assert str(home) not in Path("/proc/self/mountinfo").read_text()
    assert await asyncio.to_thread(reap, owner, home) == 0
