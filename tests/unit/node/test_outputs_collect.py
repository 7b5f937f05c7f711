"""Tests the outputs of hostile programs: what is collected, and what is refused without harm."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate_content.dag.disk_tree import cid_of_path
from quorate_node.executors.base.outputs import (
    CONTROL_CHARACTERS,
    OutputCaps,
    collect_tree,
    delete_tree,
)
from quorate_node.executors.docker.lease_dirs import collect_tar
from quorate_protocol.refusals import Code, Refused

CAPS = OutputCaps(total_bytes=1 << 20, inodes=100)


def deep(root: Path, depth: int, name: str = "d") -> None:
    """Makes a chain of directories that is deeper than any path may be long."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def sparse(root: Path) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 42)


def many(root: Path) -> None:
    for number in range(101):
        (root / str(number)).touch()


def large(root: Path) -> None:
    (root / "a").write_bytes(bytes(700_000))
    (root / "b").write_bytes(bytes(700_000))


def not_text(root: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    os.close(os.open(b"\xff\xfe", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)


ATTACKS: list[tuple[str, Callable[[Path], object], Code, str]] = [
    ("symlink", lambda root: (root / "link").symlink_to("/etc/shadow"), Code.MALFORMED, "link"),
    ("symlinked directory", lambda root: (root / "dir").symlink_to("/etc"), Code.MALFORMED, "dir"),
    ("fifo", lambda root: os.mkfifo(root / "pipe"), Code.MALFORMED, "pipe"),
    ("sparse terabytes", sparse, Code.OVERSIZE, "huge"),
    ("3000 deep", lambda root: deep(root, 3000), Code.MALFORMED, "d/d"),
    (
        "60 deep, long names",
        lambda root: deep(root, 60, "n" * 200),
        Code.MALFORMED,
        "the path is longer than 2048",
    ),
    ("inodes", many, Code.OVERSIZE, "100 files"),
    ("bytes", large, Code.OVERSIZE, "1048576"),
    ("newline", lambda root: (root / "a\nb").touch(), Code.MALFORMED, "control"),
    ("not text", not_text, Code.MALFORMED, "UTF-8"),
]


@pytest.mark.parametrize(
    ("make", "code", "part"), [case[1:] for case in ATTACKS], ids=[case[0] for case in ATTACKS]
)
def test_attack_is_refused_and_leaves_nothing(
    tmp_path: Path, make: Callable[[Path], object], code: Code, part: str
) -> None:
    source = tmp_path / "outputs"
    source.mkdir()
    make(source)
    with pytest.raises(Refused) as refusal:
        collect_tree(source, tmp_path / "collected", CAPS)
    assert refusal.value.code is code
    assert part in refusal.value.detail
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]
    delete_tree(source)
    assert not source.exists()


@pytest.mark.rule("3.30")
def test_tree_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "outputs"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "x.bin").write_bytes(bytes(range(256)) * 1000)
    os.link(source / "a" / "x.bin", source / "second-name")
    (source / "größe").write_text("text")
    collect_tree(source, tmp_path / "collected", CAPS)
    copied = tmp_path / "collected"
    assert (copied / "a" / "empty").is_dir()
    assert (
        (copied / "second-name").read_bytes()
        == (copied / "a" / "x.bin").read_bytes()
        == bytes(range(256)) * 1000
    )
    assert (copied / "größe").read_text() == "text"
    assert (copied / "second-name").stat().st_nlink == 1


def test_exact_caps_are_allowed_and_open_files_do_not_leak(tmp_path: Path) -> None:
    source = tmp_path / "outputs"
    source.mkdir()
    deep(source, 64)
    before = len(os.listdir("/proc/self/fd"))
    collect_tree(source, tmp_path / "collected", OutputCaps(0, 64))
    deep(source / "d", 0)
    with pytest.raises(Refused):
        collect_tree(source, tmp_path / "again", OutputCaps(0, 63))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_partial_copy_of_a_crash_is_replaced(tmp_path: Path) -> None:
    source = tmp_path / "outputs"
    source.mkdir()
    (source / "x").write_text("new")
    (tmp_path / "collected.partial").mkdir()
    (tmp_path / "collected.partial" / "old").write_text("old")
    collect_tree(source, tmp_path / "collected", CAPS)
    assert [path.name for path in (tmp_path / "collected").iterdir()] == ["x"]


def tar(*members: tuple[str, bytes, str, bytes]) -> bytes:
    """Returns an engine's stream of members (name, type, link, content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, link, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


ROOT = ("outputs", tarfile.DIRTYPE, "", b"")


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 1000] for at in range(0, len(data), 1000)]


def test_stream_is_copied(tmp_path: Path) -> None:
    data = tar(
        ROOT,
        ("outputs/a", tarfile.DIRTYPE, "", b""),
        ("outputs/a/x", tarfile.REGTYPE, "", b"12345"),
        ("outputs/y", tarfile.LNKTYPE, "outputs/a/x", b""),
    )
    collect_tar(iter(pieces(data)), tmp_path / "collected", CAPS)
    assert (
        (tmp_path / "collected" / "a" / "x").read_bytes()
        == (tmp_path / "collected" / "y").read_bytes()
        == b"12345"
    )


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (("outputs/x", tarfile.SYMTYPE, "/etc/shadow", b""), Code.MALFORMED),
        (("outputs/x", tarfile.LNKTYPE, "outputs/../../x", b""), Code.MALFORMED),
        (("outputs/x", tarfile.FIFOTYPE, "", b""), Code.MALFORMED),
        (("outputs/../x", tarfile.REGTYPE, "", b"1"), Code.MALFORMED),
        (("outputs/x", tarfile.REGTYPE, "", bytes(2 << 20)), Code.OVERSIZE),
    ],
)
def test_stream_attack_is_refused(
    tmp_path: Path, member: tuple[str, bytes, str, bytes], code: Code
) -> None:
    with pytest.raises(Refused) as refusal:
        collect_tar(iter(pieces(tar(ROOT, member))), tmp_path / "collected", CAPS)
    assert refusal.value.code is code
    assert list(tmp_path.iterdir()) == []


def test_cut_stream_is_refused(tmp_path: Path) -> None:
    data = tar(ROOT, ("outputs/x", tarfile.REGTYPE, "", bytes(100_000)))
    with pytest.raises(Refused):
        collect_tar(iter(pieces(data[:50_000])), tmp_path / "collected", CAPS)
    assert list(tmp_path.iterdir()) == []


def test_a_hundred_thousand_files_are_refused_at_the_first_too_many(tmp_path: Path) -> None:
    source = tmp_path / "outputs"
    for number in range(40):
        (source / f"{number:02}").mkdir(parents=True)
        for name in range(100):
            (source / f"{number:02}" / f"{name:02}").touch()
    with pytest.raises(Refused) as refusal:
        collect_tree(source, tmp_path / "collected", CAPS)
    path, _, rest = refusal.value.detail.partition(": ")
    assert refusal.value.code is Code.OVERSIZE and (source / path).exists() and "100 files" in rest
    entries = [(f"outputs/{number:06}", tarfile.REGTYPE, "", b"") for number in range(5_000)]
    with pytest.raises(Refused) as refusal:
        collect_tar(iter(pieces(tar(ROOT, *entries))), tmp_path / "collected", CAPS)
    assert refusal.value.code is Code.OVERSIZE and refusal.value.detail.startswith("000100: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]


def test_a_second_name_of_a_file_is_copied_and_counts_again(tmp_path: Path) -> None:
    """A job may link files of its scratch space into its outputs; each name counts all its
    bytes.
    """
    (tmp_path / "outputs").mkdir()
    (tmp_path / "scratch").write_bytes(b"s" * 400_000)
    for name in ("a", "b"):
        os.link(tmp_path / "scratch", tmp_path / "outputs" / name)
    collect_tree(tmp_path / "outputs", tmp_path / "collected", CAPS)
    (tmp_path / "scratch").write_bytes(b"changed later")
    assert {(tmp_path / "collected" / name).read_bytes() for name in ("a", "b")} == {b"s" * 400_000}
    os.link(tmp_path / "collected" / "a", tmp_path / "outputs" / "c")
    os.unlink(tmp_path / "outputs" / "a")
    (tmp_path / "scratch").write_bytes(b"s" * 700_000)
    with pytest.raises(Refused, match="[bc]: outputs are larger"):
        collect_tree(tmp_path / "outputs", tmp_path / "again", CAPS)


ALIKE = "Readme readme README caf\u00e9 cafe\u0301 \u212b \u00c5 stra\u00dfe strasse \u017f s S"
NAMES = ALIKE.split()


def test_names_that_look_alike_stay_different(tmp_path: Path) -> None:
    """Names are compared as bytes: which letters look alike depends on the version of a table.

    Honest providers must agree on the result.
    """
    source = tmp_path / "outputs"
    source.mkdir()
    for name in NAMES:
        (source / name).write_text(name)
    collect_tree(source, tmp_path / "collected", CAPS)
    assert {path.name: path.read_text() for path in (tmp_path / "collected").iterdir()} == {
        name: name for name in NAMES
    }
    entries = [(f"outputs/{name}", tarfile.REGTYPE, "", name.encode()) for name in NAMES]
    collect_tar(iter(pieces(tar(ROOT, *entries))), tmp_path / "from-tar", CAPS)
    assert cid_of_path(tmp_path / "from-tar") == cid_of_path(tmp_path / "collected")


def test_one_name_twice_in_a_stream_is_refused_by_its_name(tmp_path: Path) -> None:
    twice = [("outputs/x", tarfile.REGTYPE, "", b"1"), ("outputs/x", tarfile.REGTYPE, "", b"2")]
    for members in (
        twice,
        [twice[0], ("outputs/x", tarfile.DIRTYPE, "", b"")],
        [twice[0], ("outputs/x/y", tarfile.REGTYPE, "", b"1")],
    ):
        with pytest.raises(Refused, match="x") as refusal:
            collect_tar(iter(pieces(tar(ROOT, *members))), tmp_path / "collected", CAPS)
        assert refusal.value.code is Code.MALFORMED
        assert list(tmp_path.iterdir()) == []


REFUSED = ["\x01", "\x1b[2J", "\x7f", "\x85", "\x9b2J", "\u2028", "\u202e", "\u2066", "\ufeff"]
ALLOWED = ["a b", "\u00a0", "\u00ad", "\u200d", "\u0301", "\U0001f600", "~", "-rf", "'\"$`"]


@pytest.mark.rule("3.57")
@pytest.mark.parametrize("is_tar", [False, True])
@pytest.mark.parametrize("is_folder", [False, True])
def test_names_with_control_characters_are_refused_by_every_collector(
    tmp_path: Path, is_tar: bool, is_folder: bool
) -> None:
    for number, part in enumerate([*REFUSED, *ALLOWED]):
        source = tmp_path / str(number) / "outputs"
        source.mkdir(parents=True)
        (source / f"x{part}").mkdir() if is_folder else (source / f"x{part}").touch()
        destination = tmp_path / str(number) / "collected"

        def collect(source: Path = source, destination: Path = destination) -> None:
            if not is_tar:
                collect_tree(source, destination, CAPS)
                return
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive.add(source, "outputs")
            collect_tar(iter([buffer.getvalue()]), destination, CAPS)

        if part in REFUSED:
            with pytest.raises(Refused, match="control characters") as refusal:
                collect()
            assert refusal.value.code is Code.MALFORMED
            assert not CONTROL_CHARACTERS & set(map(ord, refusal.value.detail))
        else:
            collect()
            assert [path.name for path in destination.iterdir()] == [f"x{part}"]
