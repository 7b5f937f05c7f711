"""Tests local folders that cannot be inputs, and folders of clients that were killed."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from quorate.base.errors import UsageError
from quorate.client.base.transfer import _counted, no_progress
from quorate.job import packing
from quorate.job.job import Job
from quorate.programs.job_preparation import JobPreparation
from quorate_content.dag.cid import parse
from quorate_content.dag.content_limits import Bounds
from quorate_content.store.content_store import ContentStore
from support.executors.image_archives import entry, image_entries, tar

IMAGE = "docker.io/library/python@sha256:" + "ab" * 32


def many(root: Path) -> None:
    (root / "sub").mkdir()
    for number in range(60):
        (root / "sub" / str(number)).touch()


def deep(root: Path) -> None:
    (root / "/".join("d" * 80)).mkdir(parents=True)


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "many": (many, "sub"),
    "link": (lambda root: (root / "out").symlink_to("/etc/shadow"), "out"),
    "loop": (lambda root: (root / "loop").symlink_to(root), "loop"),
    "fifo": (lambda root: os.mkfifo(root / "pipe"), "pipe"),
    "control": (lambda root: (root / "a\nb").touch(), r"a\\nb"),
    "deep": (deep, "d/d"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_an_unusable_folder_is_refused_with_its_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, part = FOLDERS[name]
    small = replace(Bounds(), entries_max=50) if name == "many" else Bounds()
    monkeypatch.setattr(packing, "Bounds", lambda: small)
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    job = Job(
        image=IMAGE,
        command=["true"],
        max_price="0.50",
        max_duration="60s",
        inputs={"/inputs/data": tmp_path / "data"},
    )
    with pytest.raises(UsageError, match=part) as refusal:
        packing.pack(job, {})
    assert str(refusal.value).startswith("inputs./inputs/data: ")


def test_similar_names_and_hard_links_are_uploaded(tmp_path: Path) -> None:
    names = ("Readme", "readme", "caf\u00e9", "cafe\u0301")
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").write_text("x")
    for name in names:
        os.link(tmp_path / "elsewhere", tmp_path / "data" / name)
    job = Job(
        image=IMAGE,
        command=["true"],
        max_price="0.50",
        max_duration="60s",
        inputs={"/inputs/data": tmp_path / "data"},
    )
    (upload,) = packing.pack(job, {}).uploads
    (tmp_path / "data" / names[0]).unlink()
    assert packing.pack(job, {}).uploads[0].cid != upload.cid, "each of them counts"


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


@pytest.mark.parametrize(
    ("link", "target", "said"),
    [
        ("out", "../elsewhere", "out is a symbolic link that leads out of the folder"),
        ("sub/up", "..", "sub/up is a symbolic link that leads to a folder around it"),
        ("one", "two", "one is a symbolic link that leads to nothing, or to other links"),
        ("gone", "absent", "gone is a symbolic link that leads to nothing"),
        ("other/back", "../sub", "in a circle"),
    ],
)
def test_a_link_that_cannot_be_kept_is_named_with_its_remedy(
    tmp_path: Path, link: str, target: str, said: str
) -> None:
    root = tmp_path / "data"
    for name in ("data/sub", "data/other", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (root / link).symlink_to(target)
    if link == "one":
        (root / "two").symlink_to("one")
    if link == "other/back":
        (root / "sub" / "forth").symlink_to("../other")
    with pytest.raises(UsageError, match=said) as refusal:
        packing.pack(linked(root), {})
    assert "copy what it means" in str(refusal.value)


def linked(root: Path) -> Job:
    return Job(image=IMAGE, command=["true"], max_price="1", inputs={"/inputs/data": root})


async def test_links_inside_a_folder_are_kept_and_sent_once(tmp_path: Path) -> None:
    """A hub's cache has each file once, and links to it."""
    root = tmp_path / "models--org--model"
    for name in ("blobs", "snapshots/c/sub"):
        (root / name).mkdir(parents=True)
    weights = bytes(range(256)) * 20_000
    (root / "blobs" / "w").write_bytes(weights)
    (root / "blobs" / "j").write_bytes(b"{}")
    (root / "snapshots" / "c" / "model.bin").symlink_to("../../blobs/w")
    (root / "snapshots" / "c" / "sub" / "x.json").symlink_to("../../../blobs/j")
    (root / "main").symlink_to("snapshots/c")
    packed = packing.pack(linked(root), {})
    (upload,) = packed.uploads
    plain = tmp_path / "plain"
    shutil.copytree(root, plain)
    assert packing.pack(linked(plain), {}).spec.inputs == packed.spec.inputs
    pieces = [piece async for piece in _counted(upload, no_progress)]
    assert sum(map(len, pieces)) < len(weights) + 4096, "each block is sent once"

    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    store = ContentStore(tmp_path / "store", 1 << 26)
    await store.import_car(stream(), 1 << 25, "me", parse(upload.cid))
    async with await store.lease(parse(upload.cid)) as lease:
        for name in ("main/model.bin", "snapshots/c/model.bin", "blobs/w"):
            assert (lease.path / name).read_bytes() == weights
    await store.close()
