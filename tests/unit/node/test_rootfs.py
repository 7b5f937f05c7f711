"""Tests unpacking images without an engine: the layer rules, and no write outside the root."""

import hashlib
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from quorate_content.images.archive_reader import read_archive
from quorate_content.images.image_info import ImageInfo
from quorate_node.executors.sandbox.rootfs import RootfsTree, unpack
from quorate_node.executors.sandbox.rootfs_cache import IMAGES_MAX, RootfsCache
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.executors.image_archives import Member, entry, image_entries, tar

LINK, HARD, FOLDER, FIFO = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE


def archive(folder: Path, *layers: list[Member], **changes: object) -> tuple[Path, ImageInfo]:
    path = folder / "image.tar"
    path.write_bytes(tar(image_entries([tar(layer) for layer in layers], **changes)))
    return path, read_archive(path)


def unpacked(folder: Path, *layers: list[Member]) -> Path:
    path, info = archive(folder, *layers)
    unpack(path, info, folder / "root")
    return folder / "root"


def test_layers_add_replace_and_remove(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        [
            entry("a/one", b"1"),
            entry("a/two", b"2"),
            entry("b/three", b"3"),
            entry("c", b"file"),
            entry("d/x", b"x"),
            entry("keep", b"k"),
        ],
        [
            entry("a/.wh.one"),
            entry("b/new", b"n"),
            entry("b/.wh..wh..opq"),
            entry("c", kind=FOLDER),
            entry("c/in", b"i"),
            entry("d", b"now a file"),
        ],
        [
            entry("hard", kind=HARD, link="keep"),
            entry("soft", kind=LINK, link="/a/two"),
            entry("fifo", kind=FIFO),
        ],
    )
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    found = {name: content for name, content in found.items() if not name.startswith("etc/")}
    assert found == {
        "a/two": b"2",
        "b/new": b"n",
        "c/in": b"i",
        "d": b"now a file",
        "keep": b"k",
        "hard": b"k",
        ".dockerenv": b"",
    }
    assert (root / "soft").readlink() == Path("/a/two")
    assert stat.S_ISFIFO((root / "fifo").lstat().st_mode)
    assert (root / "etc/hosts").read_text().startswith("127.0.0.1\tlocalhost\n")
    assert {path.name for path in root.iterdir()} >= {
        "proc",
        "dev",
        "tmp",
        "scratch",
        "inputs",
        "outputs",
    }


def test_names_are_resolved_inside_the_root(tmp_path: Path) -> None:
    """One layer has a link out of the root, and the next layer has a file with a path through
    that link.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    root = unpacked(
        tmp_path,
        [
            entry("out", kind=LINK, link=str(outside)),
            entry("lib", kind=LINK, link="usr/lib"),
            entry("up", kind=LINK, link="/../../../.."),
        ],
        [
            entry("out/evil", b"e"),
            entry("lib/real", b"r"),
            entry("up/high", b"h"),
            entry("out/.wh.gone"),
        ],
    )
    assert list(outside.iterdir()) == []
    assert (root / str(outside).lstrip("/") / "evil").read_bytes() == b"e"
    assert (root / "usr/lib/real").read_bytes() == b"r"
    assert (root / "high").read_bytes() == b"h"


def test_whiteouts_through_links_stay_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    unpacked(
        tmp_path,
        [entry("out", kind=LINK, link=str(outside))],
        [entry("out/.wh.precious"), entry("out/.wh..wh..opq")],
    )
    assert (outside / "precious").read_text() == "kept"


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    links = [
        entry("x", kind=LINK, link=str(target)),
        entry("etc/hosts", kind=LINK, link=str(target)),
    ]
    root = unpacked(tmp_path, links, [entry("x", b"new")])
    assert target.read_text() == "kept"
    assert (root / "x").read_bytes() == b"new"
    assert not (root / "etc/hosts").is_symlink()


def test_unpacked_files_keep_their_time_and_lose_special_modes_and_owners(tmp_path: Path) -> None:
    info, body = entry("setuid", b"x", mode=0o6755)
    info.mtime, info.uid = 1_000_000, 0
    closed = entry("closed", kind=FOLDER, mode=0o000)
    root = unpacked(tmp_path, [(info, body), closed])
    status = (root / "setuid").stat()
    assert stat.S_IMODE(status.st_mode) == 0o755
    assert status.st_mtime == 1_000_000
    assert status.st_uid == os.geteuid()
    assert stat.S_IMODE((root / "closed").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ([entry("a", kind=HARD, link="nothing")], "not a file of the image"),
        ([entry("f", b"x"), entry("f/y", b"y")], "not a directory"),
        (
            [
                entry("l1", kind=LINK, link="l2"),
                entry("l2", kind=LINK, link="l1"),
                entry("l1/x", b"x"),
            ],
            "not a directory",
        ),
        ([entry("tmp", kind=LINK, link="/etc")], "/tmp must be a folder"),
        ([entry("proc", b"file")], "/proc must be a folder"),
        ([entry("a/.wh...")], "not a valid whiteout"),
    ],
)
def test_invalid_layers_are_refused(tmp_path: Path, members: list[Member], word: str) -> None:
    with pytest.raises(Refused, match=word):
        unpacked(tmp_path, members)


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    """A terabyte of zeros is a few bytes of archive.

    The test makes it by hand, because the tar module writes none.
    """
    info = tarfile.TarInfo("huge")
    info.size, info.type = 1 << 40, tarfile.GNUTYPE_SPARSE
    info.sparse = [(0, 0)]  # type: ignore[attr-defined]
    (tmp_path / "root").mkdir()
    with pytest.raises(Refused) as refusal:
        RootfsTree(tmp_path / "root").place(None, info)  # type: ignore[arg-type]
    assert refusal.value.code is Code.UNSUPPORTED


def test_a_layer_with_another_hash_than_the_configs_is_refused(tmp_path: Path) -> None:
    """Two archives with one configuration share a cache entry. The second must not choose its
    content.
    """
    honest = "sha256:" + hashlib.sha256(tar([entry("a", b"honest")])).hexdigest()
    path, info = archive(
        tmp_path, [entry("a", b"poison")], rootfs={"type": "layers", "diff_ids": [honest]}
    )
    cache = RootfsCache(tmp_path / "cache", frozenset)
    with pytest.raises(Refused) as refusal:
        cache.ensure(path, info)
    assert refusal.value.code is Code.MALFORMED
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_unpacks_once_and_keeps_images_in_use(tmp_path: Path) -> None:
    used: set[str] = set()
    cache = RootfsCache(tmp_path / "cache", lambda: frozenset(used))
    for number in range(IMAGES_MAX + 3):
        path, info = archive(tmp_path, [entry("number", str(number).encode())])
        root = cache.ensure(path, info)
        os.utime(root, (number, number))
        if number == 0:
            used.add(root.name)
            first = root
    assert len(list((tmp_path / "cache").iterdir())) <= IMAGES_MAX
    assert (first / "number").read_text() == "0"
    (root / "mark").touch()
    assert (cache.ensure(path, info) / "mark").exists()


def test_a_full_cache_removes_the_longest_unused_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[str] = set()
    cache = RootfsCache(tmp_path / "cache", lambda: frozenset(used), bytes_max=3 << 20)
    roots = []
    for number in range(3):
        path, info = archive(tmp_path, [entry("data", bytes([number]) * (1 << 20))])
        roots.append(cache.ensure(path, info))
        os.utime(roots[-1], (number, number))
    assert [root.is_dir() for root in roots] == [False, True, True]
    path, info = archive(tmp_path, [entry("data", b"x" * (4 << 20))])
    with pytest.raises(Refused, match="have room for"):
        cache.ensure(path, info)
    path, info = archive(tmp_path, [entry("data", b"y" * (1 << 20))])
    used.update(root.name for root in roots)
    with pytest.raises(Unavailable, match="no room for an image"):
        cache.ensure(path, info)
    used.clear()
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda folder: free._replace(free=0 if roots[2].exists() else free.free),
    )
    assert (cache.ensure(path, info) / "data").stat().st_size == 1 << 20, (
        "unused images go even when the disk is full"
    )
    assert not roots[2].exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free._replace(free=0))
    path, info = archive(tmp_path, [entry("data", b"z")])
    with pytest.raises(Unavailable, match="no room to unpack"):
        cache.ensure(path, info)
    assert len(list((tmp_path / "cache").iterdir())) == 1, (
        "what was asked for just now is about to be started"
    )
