"""Local folders that cannot be inputs are refused before anything is sent, with the wrong path."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quorate.base.errors import UsageError
from quorate.job import packing
from quorate.job.job import Job
from quorate_content.dag.content_limits import Bounds

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
