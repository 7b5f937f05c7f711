"""Images with unusual configurations: every sandbox must treat them alike."""

import asyncio
from pathlib import Path

import pytest

from quorate_node.executors.docker import docker_executor
from quorate_protocol.messages.ports import EngineRefuses, Executor, Sandbox, Task
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.executors.executor_cases import python_task
from support.executors.image_archives import reconfigured

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
        log = b"".join([chunk async for chunk in executor.logs(task.lease_id, follow=True)])
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
