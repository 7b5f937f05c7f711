"""Tests that the folders of killed clients are deleted, and those of living ones stay."""

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.programs.job_preparation import JobPreparation
from support.executors.image_archives import entry, image_entries, tar


async def stage(home: Path, job: Job, session: ClientSession, stack: AsyncExitStack) -> set[str]:
    before = set(os.listdir(home))
    await JobPreparation(home, session, lambda _sentence: None, stack).prepared(job)
    return set(os.listdir(home)) - before


async def test_only_folders_whose_client_is_gone_are_deleted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    image, program = tmp_path / "image.tar", tmp_path / "x.py"
    layer = tar([entry("etc/os-release")])
    image.write_bytes(tar(image_entries([layer], {"Env": ["PYTHON_VERSION=3.12.4"]})))
    program.write_text("")
    killed = home / ".staging-killed"
    killed.mkdir()
    (killed / "lock").touch()
    old, new = home / ".staging-old", home / ".staging-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (1, 1))
    job = Job(image=image, max_price="1", file=program)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession())
        first = await stage(home, job, session, stack)
        second = await stage(home, job, session, stack)
        assert set(os.listdir(home)) == {new.name} | first | second
        assert len(first) == len(second) == 1
    assert os.listdir(home) == [new.name]


@pytest.mark.parametrize(
    "fields",
    [
        {"file": "nope.py"},
        {"requirements": Path("nope.txt"), "command": ("x",)},
        {"inputs": {"/inputs/data": Path("nope.csv")}, "command": ("x",)},
    ],
)
async def test_missing_files_are_named_before_the_image_is_looked_up(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    job = Job(image="nowhere.invalid/image:1", max_price="1", **fields)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession())
        with pytest.raises(UsageError, match="nope.* does not exist"):
            await stage(tmp_path, job, session, stack)
