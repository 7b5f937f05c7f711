"""Images whose configuration is strange: what an owner's machine does with each, the same in
every sandbox.
"""

import asyncio
from pathlib import Path

import pytest

from quorate_node.executors.docker import docker_executor
from quorate_protocol.ports import EngineRefuses, Executor, Sandbox, Task
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.executors.executor_cases import python_task
from support.executors.image_archives import reconfigured

STRANGE: dict[str, dict[str, object]] = {
    "user": {"User": "nobody-has-this-name"},
    "signal": {"StopSignal": "SIGCONT"},
    "health": {
        "Healthcheck": {"Test": ["CMD", "/bin/touch", "/outputs/health"], "Interval": 1_000_000}
    },
    "build": {"OnBuild": ["RUN touch /outputs/built"]},
    "folder": {"WorkingDir": "/etc/passwd"},
    "ports": {"ExposedPorts": {"1/tcp": {}, "65535/udp": {}}},
    "escaped": {"ArgsEscaped": True, "Shell": ["/bin/false"]},
    "endless": {"StopTimeout": 86_400},
    "labels": {
        "Labels": {
            "quorate.lease": "another",
            "quorate.output-bytes": "1",
            "quorate.max-duration": "1",
        }
    },
}


async def ended(executor: Executor, task: Task, folder: Path) -> tuple[int, list[str], bytes]:
    async with asyncio.timeout(60):
        await executor.start(task)
        status = (await executor.wait(task.lease_id)).status
        await executor.collect(task.lease_id, folder)
        log = b"".join([chunk async for chunk in executor.logs(task.lease_id, follow=True)])
    await executor.remove(task.lease_id)
    return status, sorted(path.name for path in folder.iterdir()), log


async def test_what_an_image_wants_beside_files_and_words_is_nothing(
    executor: Executor, image: Path, tmp_path: Path
) -> None:
    for name, changes in STRANGE.items():
        archive = tmp_path / f"{name}.tar"
        reconfigured(image, archive, changes)
        task = python_task(
            archive,
            "import os, time; time.sleep(0.3); open('/outputs/x', 'w').write(os.getcwd()); "
            "print(os.getuid())",
        )
        status, names, log = await ended(executor, task, tmp_path / name)
        assert (status, names, log) == (0, ["x"], b"65534\n"), name
        assert (tmp_path / name / "x").read_text() == "/scratch", name


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
async def test_more_than_a_kernel_takes_is_refused(
    executor: Executor, image: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    reconfigured(image, tmp_path / "large.tar", changes)
    with pytest.raises(Refused) as refusal:
        await ended(
            executor, python_task(tmp_path / "large.tar", "", argv=()), tmp_path / "collected"
        )
    assert refusal.value.code in (Code.OVERSIZE, Code.UNSUPPORTED), refusal.value


@pytest.mark.parametrize("place", ["/etc/passwd", "/etc/passwd/below", "/" + "x" * 300])
async def test_a_working_folder_that_is_none_keeps_no_slot(
    executor: Executor, image: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine answers may be its own trouble, and is asked again; after a while it is the
    job's.
    """
    task = python_task(image, "", working_dir=place)
    if executor.sandbox is not Sandbox.BWRAP:  # which looks at the image itself
        with pytest.raises(Unavailable):
            await executor.start(task)
        monkeypatch.setattr(docker_executor, "REFUSING_SECONDS", 0.0)
    with pytest.raises(Refused) as refusal:
        await executor.start(task)
    assert refusal.value.code is Code.UNSUPPORTED and isinstance(refusal.value, EngineRefuses) == (
        executor.sandbox is not Sandbox.BWRAP
    )
