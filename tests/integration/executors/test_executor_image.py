"""An ordinary scientific image runs unchanged in every sandbox.

It uses numpy, worker processes, shared memory, and a compiled extension of its own.
"""

import asyncio
import hashlib
import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

from quorate.images import build_python_image
from quorate_node.executors.docker import docker_executor
from quorate_protocol.messages.ports import EngineRefuses, Executor, Sandbox, Task
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.executors.executor_cases import MIB, python_task, said
from support.executors.image_archives import reconfigured
from support.requirements import require

EXTENSION = """
#include <Python.h>
static PyObject *twice(PyObject *self, PyObject *value) {
    return PyLong_FromLong(2 * PyLong_AsLong(value));
}
static PyMethodDef methods[] = {{"twice", twice, METH_O, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", 0, -1, methods};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""
PROGRAM = """
import json, multiprocessing, os, shutil, socket, sys, threading
from multiprocessing import shared_memory
import numpy as np

def fill(name):
    block = shared_memory.SharedMemory(name)
    np.ndarray((1000, 1000), buffer=block.buf)[:] = np.arange(1_000_000.0).reshape(1000, 1000)
    block.close()

def square(number):
    return number * number

if __name__ == "__main__":
    shutil.copy("/inputs/fast.so", "/scratch/fast.so")
    sys.path.insert(0, "/scratch")
    import fast
    block = shared_memory.SharedMemory(create=True, size=8_000_000)
    worker = multiprocessing.Process(target=fill, args=(block.name,))
    worker.start(); worker.join()
    array = np.ndarray((1000, 1000), buffer=block.buf)
    np.save("/outputs/product.npy", array @ array.T)
    del array
    block.close(); block.unlink()
    sums = {}
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(3) as pool:
            sums[method] = sum(pool.map(square, range(100)))
    server = socket.create_server(("localhost", 0))
    thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"))
    thread.start()
    with socket.create_connection(server.getsockname()) as client:
        word = client.recv(5).decode()
    thread.join()
    shm = os.path.isdir("/dev/shm")
    found = {"fast": fast.twice(21), "sums": sums, "word": word, "exit": worker.exitcode}
    print(json.dumps({**found, "shm": shm}))
"""
EXPECTED = {
    "fast": 42,
    "sums": {"fork": 328_350, "spawn": 328_350},
    "word": "hello",
    "exit": 0,
    "shm": True,
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_python_image(tmp_path_factory.mktemp("image") / "numpy.tar", ["numpy"]).path


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("cc")
    folder = tmp_path_factory.mktemp("extension")
    (folder / "fast.c").write_text(EXTENSION)
    include = sysconfig.get_path("include")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", f"-I{include}", "fast.c", "-o", "fast.so"],
        cwd=folder,
        check=True,
        timeout=60,
    )
    return folder / "fast.so"


async def test_a_scientific_image_runs_unchanged(
    executor: Executor, image: Path, extension: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    mounts = {"/inputs/fast.so": extension, "/inputs/program.py": tmp_path / "program.py"}
    task = python_task(
        image,
        "",
        argv=("python3", "/inputs/program.py"),
        mounts=mounts,
        shm_bytes=32 * MIB,
        memory_bytes=1024 * MIB,
        output_bytes=16 * MIB,
        env={"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"},
    )
    assert json.loads((await said(executor, task, 120)).splitlines()[-1]) == EXPECTED
    await executor.collect(task.lease_id, tmp_path / "collected")
    product = (tmp_path / "collected" / "product.npy").read_bytes()
    assert len(product) == 8_000_128
    DIGESTS.add(hashlib.sha256(product).hexdigest())
    assert len(DIGESTS) == 1, "every sandbox computes the same bits"


DIGESTS: set[str] = set()


# Settings that no sandbox may follow. They are independent, so one image has them all: bringing an
# image into a sandbox takes seconds.
IGNORED: dict[str, object] = {
    "User": "nobody-has-this-name",
    "StopSignal": "SIGCONT",
    "StopTimeout": 86_400,
    "Healthcheck": {"Test": ["CMD", "/bin/touch", "/outputs/health"], "Interval": 1_000_000},
    "OnBuild": ["RUN touch /outputs/built"],
    "WorkingDir": "/etc/passwd",
    "ExposedPorts": {"1/tcp": {}, "65535/udp": {}},
    "ArgsEscaped": True,
    "Shell": ["/bin/false"],
    "Labels": {
        "quorate.lease": "another",
        "quorate.output-bytes": "1",
        "quorate.max-duration": "1",
    },
}


async def ended(executor: Executor, task: Task, folder: Path) -> tuple[int, list[str], bytes]:
    async with asyncio.timeout(60):
        await executor.start(task)
        status = (await executor.wait(task.lease_id)).status
        await executor.collect(task.lease_id, folder)
        log = b"".join([piece.text async for piece in executor.logs(task.lease_id, follow=True)])
    await executor.remove(task.lease_id)
    return status, sorted(path.name for path in folder.iterdir()), log


async def test_other_settings_of_an_image_have_no_effect(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    reconfigured(image, tmp_path / "image.tar", IGNORED)
    task = python_task(
        tmp_path / "image.tar",
        "import os, time; time.sleep(1.2); open('/outputs/x', 'w').write(os.getcwd()); "
        "print(os.getuid())",
    )
    status, names, log = await ended(executor, task, tmp_path / "collected")
    assert (status, names, log) == (0, ["x"], b"65534\n")
    assert (tmp_path / "collected" / "x").read_text() == "/scratch"


@pytest.mark.parametrize(
    "changes",
    [
        {"Entrypoint": ["/bin/true", *["word"] * 100_000]},
        {"Entrypoint": ["/bin/true", "w" * 200_000]},
        {"Env": [f"A{number}={'x' * 4000}" for number in range(500)]},
        {"Env": ["A=" + "x" * 200_000]},
    ],
    ids=["words", "word", "environment", "variable"],
)
async def test_commands_and_variables_beyond_the_kernels_limit_are_refused(
    executor: Executor, image: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    reconfigured(image, tmp_path / "large.tar", changes)
    with pytest.raises(Refused) as refusal:
        await ended(
            executor, python_task(tmp_path / "large.tar", "", argv=()), tmp_path / "collected"
        )
    assert refusal.value.code in (Code.OVERSIZE, Code.UNSUPPORTED), refusal.value


@pytest.mark.parametrize("place", ["/etc/passwd", "/etc/passwd/below", "/" + "x" * 300])
async def test_an_invalid_working_folder_frees_the_slot(
    executor: Executor, image: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine's refusal may be the machine's problem, so the start is repeated; after a while the
    job fails.
    """
    task = python_task(image, "", working_dir=place)
    if executor.sandbox is not Sandbox.BWRAP:  # it reads the image itself
        with pytest.raises(Unavailable):
            await executor.start(task)
        monkeypatch.setattr(docker_executor, "REFUSING_SECONDS", 0.0)
    with pytest.raises(Refused) as refusal:
        await executor.start(task)
    assert refusal.value.code is Code.UNSUPPORTED and isinstance(refusal.value, EngineRefuses) == (
        executor.sandbox is not Sandbox.BWRAP
    )
